import { readFile } from "node:fs/promises";

import { load } from "./engine.js";

export * from "./api.js";

/** Loads the wasm module, once. Everything else of this package needs that. */
export function init(): Promise<void> {
  return load(async () => new Uint8Array(await readFile(new URL("./wasm/rollmesh_wasm_bg.wasm", import.meta.url))));
}

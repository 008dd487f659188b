import { readFile } from "node:fs/promises";

import { load } from "./engine.js";

export * from "./api.js";

const read = (name: string) => async () => new Uint8Array(await readFile(new URL(`./wasm/${name}_bg.wasm`, import.meta.url)));

/** Loads the wasm module, once. Everything else in this package requires it. */
export function init(): Promise<void> {
  return load({ wasm: read("rollmesh_wasm"), reader: read("rollmesh_reader"), trainer: read("rollmesh_trainer") });
}

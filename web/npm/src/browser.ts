import { load } from "./engine.js";

export * from "./api.js";

/** Loads the wasm module, once. Everything else of this package needs that. */
export function init(): Promise<void> {
  return load(() => fetch(new URL("./wasm/rollmesh_wasm_bg.wasm", import.meta.url)));
}

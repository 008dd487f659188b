import { load } from "./engine.js";

export * from "./api.js";

/** Loads the wasm module, once. Everything else of this package needs that. */
export function init(): Promise<void> {
  // Written out, since bundlers find the files in this form alone.
  return load({
    wasm: () => fetch(new URL("./wasm/rollmesh_wasm_bg.wasm", import.meta.url)),
    reader: () => fetch(new URL("./wasm/rollmesh_reader_bg.wasm", import.meta.url)),
    trainer: () => fetch(new URL("./wasm/rollmesh_trainer_bg.wasm", import.meta.url)),
  });
}

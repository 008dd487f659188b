import { load } from "./engine.js";

export * from "./api.js";

/** Loads the wasm module, once. Everything else in this package requires it. */
export function init(): Promise<void> {
  // Literal URLs, since bundlers find the files only in this form.
  return load({
    wasm: () => fetch(new URL("./wasm/rollmesh_wasm_bg.wasm", import.meta.url)),
    reader: () => fetch(new URL("./wasm/rollmesh_reader_bg.wasm", import.meta.url)),
    trainer: () => fetch(new URL("./wasm/rollmesh_trainer_bg.wasm", import.meta.url)),
  });
}

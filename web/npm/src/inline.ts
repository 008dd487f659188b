import { load } from "./engine.js";

export * from "./api.js";

const unpack = ({ wasm }: { wasm: string }) => Uint8Array.from(atob(wasm), (char) => char.charCodeAt(0));

/** Loads the wasm module, once. Everything else in this package requires it. */
export function init(): Promise<void> {
  return load({
    wasm: async () => unpack(await import("./wasm/rollmesh_wasm_inline.js")),
    reader: async () => unpack(await import("./wasm/rollmesh_reader_inline.js")),
    trainer: async () => unpack(await import("./wasm/rollmesh_trainer_inline.js")),
  });
}

import { load } from "./engine.js";
import { wasm } from "./wasm/inline.js";

export * from "./api.js";

/** Loads the wasm module, once. Everything else of this package needs that. */
export function init(): Promise<void> {
  return load(() => Promise.resolve(Uint8Array.from(atob(wasm), (char) => char.charCodeAt(0))));
}

import { RollmeshError } from "./error.js";
import * as wasm from "./wasm/rollmesh_wasm.js";

/** A module with one function, which creates a vector: valid only in a runtime with SIMD. */
const SIMD = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
);

type Source = () => Promise<BufferSource | Response>;

/** The sources of the wasm modules: the one that samples and acts, and those that are loaded when they are needed. */
export interface Sources {
  wasm: Source;
  reader: Source;
  trainer: Source;
}

let sources: Sources | undefined;
let isLoaded = false;

/** Loads the wasm module that samples and acts, once. */
export async function load(from: Sources): Promise<void> {
  sources ??= from;
  await loadWasm();
}

const loadWasm = once(async ({ wasm: source }) => {
  if (!WebAssembly.validate(SIMD)) {
    throw new RollmeshError("unsupported", "rollmesh needs WebAssembly with SIMD, which browsers have since 2023 and Node since version 16");
  }
  await wasm.default({ module_or_path: await source() });
  wasm.useErrorClass(RollmeshError);
  isLoaded = true;
});

/** Loads the module that reads files of logged experience, once. */
export const reader = once(async ({ reader: source }) => {
  const module = await import("./wasm/rollmesh_reader.js");
  await module.default({ module_or_path: await source() });
  return module;
});

/** Loads the hub and the learner, once. */
export const trainer = once(async ({ trainer: source }) => {
  const module = await import("./wasm/rollmesh_trainer.js");
  await module.default({ module_or_path: await source() });
  module.useErrorClass(RollmeshError);
  return module;
});

/** Returns the wasm module that samples and acts. */
export function engine(): typeof wasm {
  if (!isLoaded) throw notLoaded();
  return wasm;
}

/** Returns a function that loads at its first call; after a failure a later call retries. */
function once<Loaded>(start: (sources: Sources) => Promise<Loaded>): () => Promise<Loaded> {
  let loading: Promise<Loaded> | undefined;
  return () => {
    if (!sources) return Promise.reject(notLoaded());
    loading ??= start(sources).catch((error: unknown) => {
      loading = undefined;
      throw error;
    });
    return loading;
  };
}

const notLoaded = () => new RollmeshError("not_loaded", "the wasm module is not loaded: `await init()` first");

/** An object in wasm memory, until it is freed. */
export class Handle<Raw extends { free(): void }> {
  #raw: Raw | undefined;
  /** Whether a call that steps the user's environments is in progress. */
  #isAtWork = false;
  readonly #what: string;

  constructor(what: string, raw: Raw) {
    this.#what = what;
    this.#raw = raw;
  }

  get raw(): Raw {
    if (!this.#raw) throw new RollmeshError("freed", `this ${this.#what} was freed`);
    if (this.#isAtWork) throw this.#busy("an environment cannot use what steps it");
    return this.#raw;
  }

  get isFreed(): boolean {
    return !this.#raw;
  }

  /** Calls a function that may call the user's environments. */
  work<T>(call: (raw: Raw) => T): T {
    const { raw } = this;
    this.#isAtWork = true;
    try {
      return call(raw);
    } finally {
      this.#isAtWork = false;
      if (this.isFreed) raw.free();
    }
  }

  /** Frees the memory. Throws during a call that steps the user's environments, after which the memory is freed. */
  free(): void {
    const raw = this.#raw;
    this.#raw = undefined;
    if (raw && this.#isAtWork) throw this.#busy("it is freed once the call that steps its environments has returned");
    raw?.free();
  }

  #busy(what: string): RollmeshError {
    return new RollmeshError("busy", `this ${this.#what} is at work: ${what}`);
  }
}

/** An object that holds wasm memory. The garbage collector eventually frees objects that are not freed explicitly. */
export abstract class Freeable {
  /** Frees the memory. The object cannot be used afterwards; another call does nothing. */
  abstract free(): void;

  /** Calls {@link free}, for `using`. */
  [Symbol.dispose](): void {
    this.free();
  }
}

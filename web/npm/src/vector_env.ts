import { Freeable, Handle, engine } from "./engine.js";
import { count, elements, json, numbers, seedOf, text, typed } from "./rows.js";
import type { DType, NumberArray, Picture, Rows, Space, Spaces, TypedArrays } from "./types.js";
import type { LanesHandle } from "./wasm/rollmesh_wasm.js";

/** The settings of a {@link VectorEnv}. */
export interface VectorEnvOptions {
  /** The number of environments, 1 by default. */
  numEnvs?: number;
  /** The seed of all random numbers. */
  seed?: number | bigint;
  /** The settings of the environment. */
  config?: Record<string, unknown>;
}

/** The result of a step, with a row or an entry per environment. */
export interface Steps {
  /** The observations to act on next; if an episode has ended, the first observation of the next one. */
  observations: NumberArray;
  /** The observations right after the step, even if an episode has ended. */
  finalObservations: NumberArray;
  rewards: Float64Array;
  /** 1 for environments that have reached a terminal state. */
  terminateds: Uint8Array;
  /** 1 for environments whose episode was truncated for another reason, such as a time limit. */
  truncateds: Uint8Array;
}

/**
 * Registered environments with one agent each, built-in ones or JavaScript's, stepped together. An environment whose episode
 * ends begins the next one in the same step, as Gymnasium's `AutoresetMode.SAME_STEP`. The random numbers are those of a {@link
 * RolloutWorker} with the same seed.
 */
export class VectorEnv extends Freeable {
  readonly #handle: Handle<LanesHandle>;
  readonly #spaces: Spaces;
  readonly name: string;
  readonly numEnvs: number;

  constructor(name: string, { numEnvs = 1, seed = 0, config = {} }: VectorEnvOptions = {}) {
    super();
    const { LanesHandle } = engine();
    this.#handle = new Handle("VectorEnv", new LanesHandle(text("name", name), json(config), count("numEnvs", numEnvs), seedOf(seed)));
    this.#spaces = JSON.parse(this.#handle.raw.spaces) as Spaces;
    this.name = name;
    this.numEnvs = numEnvs;
  }

  /** The space of an environment's observations; `observations` has the same number of elements for each environment. */
  get observationSpace(): Space {
    return this.#spaces.observation;
  }

  /** The space of an environment's actions. */
  get actionSpace(): Space {
    return this.#spaces.action;
  }

  /** Begins the next episode of every environment. Returns the first observations, row-major. */
  reset(): NumberArray {
    return joined(this.#handle.work((raw) => raw.reset()) as TypedArrays[DType][]);
  }

  /**
   * Takes a step of every environment, with a row of actions each.
   *
   * @throws {RollmeshError} of kind `environment`. An action outside the space steps no environment; after another error call {@link reset}
   */
  step(actions: Rows): Steps {
    const rows = typed(this.#spaces.actionType, actions, "environment", "actions");
    const { ends, observations, ...rest } = this.#handle.work((raw) => raw.step(rows)) as Omit<Steps, "observations" | "finalObservations"> & {
      observations: TypedArrays[DType];
      ends: [number, TypedArrays[DType]][];
    };
    const finalObservations = numbers(observations), next = ends.length > 0 ? finalObservations.slice() : finalObservations;
    for (const [lane, row] of ends) next.set(numbers(row), lane * elements(this.#spaces.observation));
    return { ...rest, observations: next, finalObservations };
  }

  /** Returns the current picture of an environment; `undefined` if it has none. */
  picture(index = 0): Picture | undefined {
    return this.#handle.work((raw) => raw.picture(index)) as Picture | undefined;
  }

  free(): void {
    this.#handle.free();
  }
}

function joined(rows: TypedArrays[DType][]): NumberArray {
  // There is at least one environment.
  const parts = rows.map(numbers), first = parts[0] as NumberArray;
  const Numbers = first.constructor as new (length: number) => NumberArray;
  const all = new Numbers(first.length * parts.length);
  parts.forEach((row, at) => all.set(row, at * first.length));
  return all;
}

import { type AnyBatch, wrapBatch } from "./batch.js";
import { Freeable, Handle, engine } from "./engine.js";
import { type Policy, PolicyMap } from "./policy.js";
import { count, settings, text } from "./rows.js";
import type { Picture, RolloutConfig } from "./types.js";
import type { WorkerHandle } from "./wasm/rollmesh_wasm.js";

/** The metrics since the last call of `metrics`. */
export interface Metrics {
  /** The episodes that have ended, in the order of their ends. */
  episodes: Episode[];
  /** The number of env steps that are in no batch because of a failure. */
  discardedEnvSteps: number;
  /** The number of agents' rows in those. */
  discardedAgentSteps: number;
  /** The environments that failed repeatedly, without which the worker continues. */
  quarantined: { env: number; reason: string }[];
  /** The warnings of possible mistakes, each only once. */
  warnings: string[];
}

/** An episode that has ended, or was lost with its environment. */
export interface Episode {
  /** The id in column `eps_id`. */
  id: bigint;
  /** The index of the environment. */
  env: number;
  /** The number of env steps. */
  length: number;
  /** The sum of the raw rewards of all agents. */
  episodeReturn: number;
  /** The reason why the episode was lost, if it was: its rows are in no batch. */
  faulty?: string;
}

/** An environment of a worker. */
export interface WorkerEnv {
  index: number;
  /** Returns the current picture, if it has one. */
  picture(): Picture | undefined;
}

/**
 * A worker like RLlib's: steps environments with policies and returns the experience.
 *
 * With the same settings the batches are bit-identical to those of `rollmesh sample`, for any budgets and on any host.
 */
export class RolloutWorker extends Freeable {
  readonly #handle: Handle<WorkerHandle>;
  /** The policies by id. */
  readonly policies: PolicyMap;

  /** @throws {RollmeshError} of kind `config`, with a remedy */
  constructor(config: RolloutConfig) {
    super();
    const { WorkerHandle } = engine();
    this.#handle = new Handle("RolloutWorker", new WorkerHandle(settings(config)));
    this.policies = new PolicyMap(this.#handle);
  }

  /**
   * Returns the next sample: in `truncate_episodes` mode exactly {@link stepsPerSample} env steps, in `complete_episodes` mode whole
   * episodes until there are at least as many.
   *
   * @throws {RollmeshError} of kind `environment` or `policy`. Steps of earlier samples are kept, and the next call begins the next episode
   * of each environment
   */
  sample(): AnyBatch {
    return wrapBatch(this.#handle.work((raw) => raw.sample()));
  }

  /**
   * Continues the sample for the given number of milliseconds. Returns the batch once it is complete. Every call takes at least one step of
   * all environments, also with 0, and reads the clock before each further one. With `Infinity` it equals {@link sample}.
   */
  sampleWithin(milliseconds: number): AnyBatch | undefined {
    const batch = this.#handle.work((raw) => raw.sampleWithin(milliseconds));
    return batch && wrapBatch(batch);
  }

  /** Returns the episodes that have ended since the last call, and the warnings and quarantined environments. */
  metrics(): Metrics {
    return this.#handle.raw.metrics() as Metrics;
  }

  /** The minimum number of env steps of a sample. */
  get stepsPerSample(): number {
    return this.#handle.raw.stepsPerSample;
  }

  /** The environments. */
  get envs(): WorkerEnv[] {
    const picture = (index: number) => this.#handle.work((raw) => raw.picture(index)) as Picture | undefined;
    return Array.from({ length: this.#handle.raw.numEnvs }, (_, index) => ({ index, picture: () => picture(index) }));
  }

  /** Returns a policy of the worker. */
  policy(id = "default_policy"): Policy {
    return this.policies.get(id);
  }

  /** Returns the weights of all policies, or of the given ones, as safetensors files. */
  weights(ids = this.policies.keys()): Record<string, Uint8Array> {
    return Object.fromEntries(ids.map((id) => [id, this.policy(id).weights]));
  }

  /**
   * Sets the weights of policies, from the next sample on. If one fails, no weights change.
   *
   * @throws {RollmeshError} of kind `policy`, which names the tensor that does not fit; nothing has changed then
   */
  setWeights(weights: Record<string, Uint8Array>): void {
    this.#handle.raw.setWeights(Object.keys(weights), Object.values(weights));
  }

  /** Returns a policy as bytes, for {@link importPolicy} of any worker with the same spaces: kind, settings, weights and filter. */
  exportPolicy(id = "default_policy"): Uint8Array {
    return this.#handle.raw.exportPolicy(text("id", id));
  }

  /**
   * Imports a policy of {@link exportPolicy} under this id: an existing policy gets its weights and filter, a new one is added.
   *
   * @throws {RollmeshError} for damaged bytes, and for a policy that does not fit; nothing has changed then
   */
  importPolicy(state: Uint8Array, id = "default_policy"): Policy {
    this.#handle.raw.importPolicy(text("id", id), state);
    return this.policies.get(id);
  }

  /** Returns the worker's state as bytes: policies, filters, progress, and the position of each environment. */
  save(): Uint8Array {
    return this.#handle.raw.save();
  }

  /** Restores the state of {@link save} of a worker with the same settings. */
  restore(state: Uint8Array): void {
    this.#handle.work((raw) => raw.restore(state));
  }

  free(): void {
    this.policies.free();
    this.#handle.free();
  }
}

/**
 * Returns the hash of a rollout of the given number of env steps, which `rollmesh sample` prints as `rollout_hash` for the same settings.
 */
export function rolloutHash(config: RolloutConfig, envSteps: number): string {
  return engine().rollout_hash(settings(config), count("envSteps", envSteps));
}

/** Returns the hash of a fixed rollout. Machines with the same hash compute the same bits. */
export function coreFingerprint(): string {
  return engine().core_fingerprint();
}

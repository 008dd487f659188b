import { type AnyBatch, wrapBatch } from "./batch.js";
import { Freeable, Handle, engine } from "./engine.js";
import { type Policy, PolicyMap } from "./policy.js";
import { count, settings, text } from "./rows.js";
import type { Picture, RolloutConfig } from "./types.js";
import type { WorkerHandle } from "./wasm/rollmesh_wasm.js";

/** What has happened since the last call of `metrics`. */
export interface Metrics {
  /** Episodes that have ended, in the order of their ends. */
  episodes: Episode[];
  /** Env steps that were taken and will be in no batch, since something failed. */
  discardedEnvSteps: number;
  /** Rows of agents in those. */
  discardedAgentSteps: number;
  /** Environments that failed repeatedly: the others continue without them. */
  quarantined: { env: number; reason: string }[];
  /** What may be a mistake; each is mentioned once. */
  warnings: string[];
}

/** An episode that has ended, or was lost with its environment. */
export interface Episode {
  /** As in column `eps_id`. */
  id: bigint;
  /** Index of the environment. */
  env: number;
  /** Env steps. */
  length: number;
  /** Sum of the raw rewards of all agents. */
  episodeReturn: number;
  /** Why the episode was lost, if it was: its rows are nowhere. */
  faulty?: string;
}

/** An environment of a worker. */
export interface WorkerEnv {
  index: number;
  /** Its picture now, if it has one. */
  picture(): Picture | undefined;
}

/**
 * Steps environments with policies and returns what happened: RLlib's worker.
 *
 * Same settings, same bits: whatever the budgets, and wherever this runs, the batches are those of `rollmesh sample`.
 */
export class RolloutWorker extends Freeable {
  readonly #handle: Handle<WorkerHandle>;
  /** The policies by id. */
  readonly policies: PolicyMap;

  /** @throws {RollmeshError} of kind `config`, which says what to change */
  constructor(config: RolloutConfig) {
    super();
    const { WorkerHandle } = engine();
    this.#handle = new Handle("RolloutWorker", new WorkerHandle(settings(config)));
    this.policies = new PolicyMap(this.#handle);
  }

  /**
   * The next sample: in `truncate_episodes` mode exactly {@link stepsPerSample} env steps, in `complete_episodes` mode whole
   * episodes until there are at least as many.
   *
   * @throws {RollmeshError} of kind `environment` or `policy`. What was finished before is kept, and the next call begins the
   * next episode of each environment
   */
  sample(): AnyBatch {
    return wrapBatch(this.#handle.work((raw) => raw.sample()));
  }

  /**
   * Continues the sample for the given number of milliseconds; the batch once it is complete. Every call takes one step of all
   * environments at least, also with 0, and looks at the clock before each further one. With `Infinity` it is {@link sample}.
   */
  sampleWithin(milliseconds: number): AnyBatch | undefined {
    const batch = this.#handle.work((raw) => raw.sampleWithin(milliseconds));
    return batch && wrapBatch(batch);
  }

  /** Episodes that have ended since the last call, and what went wrong. */
  metrics(): Metrics {
    return this.#handle.raw.metrics() as Metrics;
  }

  /** Env steps that a sample has at least. */
  get stepsPerSample(): number {
    return this.#handle.raw.stepsPerSample;
  }

  /** The environments. */
  get envs(): WorkerEnv[] {
    const picture = (index: number) => this.#handle.work((raw) => raw.picture(index)) as Picture | undefined;
    return Array.from({ length: this.#handle.raw.numEnvs }, (_, index) => ({ index, picture: () => picture(index) }));
  }

  /** A policy of the worker. */
  policy(id = "default_policy"): Policy {
    return this.policies.get(id);
  }

  /** Weights by policy, of all or of those: safetensors files. */
  weights(ids = this.policies.keys()): Record<string, Uint8Array> {
    return Object.fromEntries(ids.map((id) => [id, this.policy(id).weights]));
  }

  /**
   * Lets policies act with these weights from the next sample on, all of them or none.
   *
   * @throws {RollmeshError} of kind `policy`, which names the tensor that does not fit. Nothing has changed then
   */
  setWeights(weights: Record<string, Uint8Array>): void {
    this.#handle.raw.setWeights(Object.keys(weights), Object.values(weights));
  }

  /** A policy as bytes, for {@link importPolicy} of any worker with such spaces: kind, settings, weights and filter. */
  exportPolicy(id = "default_policy"): Uint8Array {
    return this.#handle.raw.exportPolicy(text("id", id));
  }

  /**
   * Takes a policy of {@link exportPolicy}, under this id: one that the worker has gets its weights and filter, another one is
   * added.
   *
   * @throws {RollmeshError} for damaged bytes, and for a policy that does not fit. Nothing has changed then
   */
  importPolicy(state: Uint8Array, id = "default_policy"): Policy {
    this.#handle.raw.importPolicy(text("id", id), state);
    return this.policies.get(id);
  }

  /** The worker's state as bytes: policies, filters, progress, and where each environment is in its life. */
  save(): Uint8Array {
    return this.#handle.raw.save();
  }

  /** Continues from what {@link save} of a worker with the same settings returned. */
  restore(state: Uint8Array): void {
    this.#handle.work((raw) => raw.restore(state));
  }

  free(): void {
    this.policies.free();
    this.#handle.free();
  }
}

/** The hash of a rollout of the given number of env steps: what `rollmesh sample` prints as `rollout_hash` for the same settings. */
export function rolloutHash(config: RolloutConfig, envSteps: number): string {
  return engine().rollout_hash(settings(config), count("envSteps", envSteps));
}

/** The hash of a fixed rollout. Machines with the same one make the same bits. */
export function coreFingerprint(): string {
  return engine().core_fingerprint();
}

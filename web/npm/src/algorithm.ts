import { Freeable, Handle, trainer } from "./engine.js";
import { registerAll } from "./env.js";
import { RollmeshError } from "./error.js";
import { Policy } from "./policy.js";
import { settings } from "./rows.js";
import type { RolloutConfig } from "./types.js";
import type { AlgorithmHandle } from "./wasm/rollmesh_trainer.js";

/** The sampling time after which the event loop runs. */
const SLICE_MS = 10;

/** The settings of a run: those of `config.toml` of `rollmesh train`. Omitted settings have the preset's values, else RLlib's. */
export interface TrainConfig extends Omit<RolloutConfig, "num_envs"> {
  /** The algorithm, `ppo` by default. */
  algorithm?: "ppo" | "a2c" | "pg" | (string & {});
  /** The settings of the algorithm, such as `lr` and `gamma`. */
  policy_config?: Record<string, unknown>;
  /** The number of environments, which are stepped together. */
  num_slots?: number;
  /** The stop criteria: the run ends after `env_steps`, or once the mean return or the seconds are reached. */
  stop?: { env_steps?: number; episode_return_mean?: number; wall_s?: number };
}

/** An iteration: a train batch and its update. */
export interface TrainResult {
  /** The number of the iteration, from 1. */
  iteration: number;
  /** The number of env steps learned from so far. */
  envSteps: number;
  wallMs: number;
  stepsPerSecond: number | null;
  /** The mean over the last 100 episodes that have ended; null before the first. */
  episodeReturnMean: number | null;
  episodeLenMean: number | null;
  policyLoss: number | null;
  vfLoss: number | null;
  entropy: number | null;
  kl: number | null;
}

/** The result of an iteration in the wasm modules' JSON. */
export interface Point {
  iteration: number;
  env_steps: number;
  wall_ms: number;
  steps_per_s: number | null;
  episode_return_mean: number | null;
  episode_len_mean: number | null;
  policy_loss: number | null;
  vf_loss: number | null;
  entropy: number | null;
  kl: number | null;
}

/**
 * Trains policies in this thread, in environments built in or {@link registerEnv registered}: RLlib's algorithm. With the same settings the
 * weights are bit-identical to those of `rollmesh train`. It samples in slices, between which the page or the server can respond; an update
 * of the weights is one slice.
 */
export class Algorithm extends Freeable {
  readonly #handle: Handle<AlgorithmHandle>;
  #isTraining = false;

  private constructor(raw: AlgorithmHandle) {
    super();
    this.#handle = new Handle("Algorithm", raw);
  }

  /**
   * Begins a run; the first call loads the wasm module of hub and learner.
   *
   * @throws {RollmeshError} of kind `config`, with a remedy, or `environment`
   */
  static async create(config: TrainConfig): Promise<Algorithm> {
    const json = settings(config), module = await trainer();
    registerAll(module);
    return new Algorithm(new module.AlgorithmHandle(json));
  }

  /**
   * Samples a train batch and learns from it.
   *
   * @throws {RollmeshError} of kind `environment`, `policy`, `sample` or `learner` if the run has failed, which ends it; of kind `busy`
   * during another call or after the last iteration
   */
  async train(): Promise<TrainResult> {
    if (this.#isTraining) throw new RollmeshError("busy", "the algorithm is training: await the call of train before the next one");
    this.#isTraining = true;
    try {
      while (!this.isOver) {
        const point = this.#handle.work((raw) => raw.work(SLICE_MS));
        if (point !== undefined) return toResult(JSON.parse(point) as Point);
        await pause();
      }
    } finally {
      this.#isTraining = false;
    }
    throw new RollmeshError("busy", "the run is over: create another algorithm, with later stop criteria");
  }

  /** Trains until the run ends: `for await (const result of algorithm.results())`. */
  async *results(): AsyncGenerator<TrainResult, void, undefined> {
    while (!this.isOver) yield await this.train();
  }

  /** Whether the run has reached a stop criterion. */
  get isOver(): boolean {
    return this.#handle.raw.isOver;
  }

  /** Returns a policy with the algorithm's current weights. */
  policy(id = "default_policy"): Policy {
    return Policy.fromCheckpoint(this.policyJson, this.weights, id);
  }

  /** Returns the weights as `rollmesh train` writes them to `weights.safetensors`. */
  get weights(): Uint8Array {
    return this.#handle.raw.weights();
  }

  /** Returns the description of the policy as `rollmesh train` writes it to `policy.json`. */
  get policyJson(): string {
    return this.#handle.raw.policyFile();
  }

  /** The hash of the weights, which `rollmesh train` prints for the same settings. */
  get weightsHash(): string {
    return this.#handle.raw.weightsHash();
  }

  free(): void {
    this.#handle.free();
  }
}

/** Renames the fields of a wasm module's result. */
export function toResult({ env_steps, wall_ms, steps_per_s, episode_return_mean, episode_len_mean, policy_loss, vf_loss, ...rest }: Point): TrainResult {
  const { iteration, entropy, kl } = rest;
  return {
    iteration, envSteps: env_steps, wallMs: wall_ms, stepsPerSecond: steps_per_s, episodeReturnMean: episode_return_mean,
    episodeLenMean: episode_len_mean, policyLoss: policy_loss, vfLoss: vf_loss, entropy, kl,
  };
}

/** Yields to the event loop. Timers would wait for 4 ms in browsers, and for a second in hidden tabs. */
function pause(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

import { Freeable, Handle, engine } from "./engine.js";
import { RollmeshError } from "./error.js";
import { checkSeed, finite, json, numbers, text, typed } from "./rows.js";
import type { DType, ModelConfig, NumberArray, Rows, Space, Spaces, TypedArrays } from "./types.js";
import { envInfo } from "./env.js";
import type { PolicyHandle, WorkerHandle } from "./wasm/rollmesh_wasm.js";

/** The description of a policy whose weights are given separately. */
export type PolicyOptions = (
  | { env: string; envConfig?: Record<string, unknown> }
  | { observationSpace: Space; actionSpace: Space }
) & {
  /** The networks, two layers of 64 by default. */
  model?: ModelConfig;
  /** Whether the policy acts within [-1, 1] in bounded boxes, as policies of runs do; true by default. */
  normalizeActions?: boolean;
  /** Whether actions are clipped to the space; false by default. */
  clipActions?: boolean;
  /** The seed of drawn actions. */
  seed?: number;
};

/** The options of a call of {@link Policy.computeActions}. */
export interface ActOptions {
  /** Whether to take the most likely actions instead of drawn ones. */
  deterministic?: boolean;
  /** The states of a recurrent policy, from the previous call; by default those at the start of an episode. */
  state?: Float32Array;
  /**
   * The previous actions, as the environment took them, for a model with `lstm_use_prev_action`; by default those of the states.
   */
  prevAction?: Rows;
  /** The rewards of the previous steps, for a model with `lstm_use_prev_reward`; 0 by default. */
  prevReward?: Rows;
}

/** The outputs of a policy, row by row. */
export interface Actions {
  /** The actions in the form that the environment takes, row-major. */
  actions: NumberArray;
  /** The log-probabilities of the actions. */
  logp: Float32Array;
  /** The value estimates of the observations. */
  vfPreds: Float32Array;
  /** The states after the rows, of a recurrent policy. */
  state?: Float32Array;
}

/** A policy that acts on batches of observations. */
export class Policy extends Freeable {
  readonly #handle: Handle<PolicyHandle>;
  readonly #spaces: Spaces;

  private constructor(raw: PolicyHandle) {
    super();
    this.#handle = new Handle("Policy", raw);
    this.#spaces = JSON.parse(raw.spaces) as Spaces;
  }

  /** @internal */
  static wrap(raw: PolicyHandle): Policy {
    return new Policy(raw);
  }

  /**
   * Creates a policy with the weights of a safetensors file, for example `weights.safetensors` of a checkpoint.
   *
   * @throws {RollmeshError} of kind `policy`, which names the tensor that does not fit
   */
  static fromSafetensors(weights: Uint8Array, options: PolicyOptions): Policy {
    checkSeed(options);
    return describe(weights, options, ["default_policy"], "default_policy");
  }

  /**
   * Creates the policy of a run from the text of its `policy.json` and the bytes of its `weights.safetensors`. `id` selects one of several
   * policies.
   */
  static fromCheckpoint(policyJson: string, weights: Uint8Array, id = "default_policy"): Policy {
    const { run, model, policies } = parse(policyJson);
    const { env, env_config: envConfig = {}, normalize_actions: normalizeActions = true, clip_actions: clipActions = false, seed = 0 } = run;
    return describe(weights, { env, envConfig, normalizeActions, clipActions, seed, model }, policies, id);
  }

  /** The space of its observations. */
  get observationSpace(): Space {
    return this.#spaces.observation;
  }

  /** The space of its actions. */
  get actionSpace(): Space {
    return this.#spaces.action;
  }

  /**
   * Chooses an action for every observation. The observations are in row-major order; the actions are in the form that the environment
   * takes. The same seed and the same calls give the same actions.
   */
  computeActions(observations: Rows, options: ActOptions = {}): Actions {
    const { deterministic = false, state = new Float32Array(), prevAction, prevReward } = options;
    const { observationType, actionType } = this.#spaces;
    const rows = finite(typed(observationType, observations, "policy", "observations"), "observations");
    const action = prevAction === undefined ? undefined : typed(actionType, prevAction, "policy", "prevAction");
    const reward = prevReward === undefined ? undefined : typed("float32", prevReward, "policy", "prevReward") as Float32Array;
    const answer = this.#handle.raw.act(rows, !deterministic, state, action, reward) as Omit<Actions, "actions"> & { actions: TypedArrays[DType] };
    return { ...answer, actions: numbers(answer.actions) };
  }

  /** Returns the weights as a safetensors file. */
  get weights(): Uint8Array {
    return this.#handle.raw.weights();
  }

  /** Replaces the weights by those of a safetensors file; a worker's policy uses them from the next sample on. */
  setWeights(weights: Uint8Array): void {
    this.#handle.raw.setWeights(weights);
  }

  /** @internal */
  get isFreed(): boolean {
    return this.#handle.isFreed;
  }

  free(): void {
    this.#handle.free();
  }
}

/** The policies of a worker, by id. */
export class PolicyMap implements Iterable<[string, Policy]> {
  readonly #worker: Handle<WorkerHandle>;
  /** One object per policy until it is freed, since a policy counts its calls. */
  readonly #policies = new Map<string, Policy>();

  /** @internal */
  constructor(worker: Handle<WorkerHandle>) {
    this.#worker = worker;
  }

  /** The number of policies. */
  get size(): number {
    return this.keys().length;
  }

  /** Returns the ids in order. */
  keys(): string[] {
    return this.#worker.raw.policyIds();
  }

  has(id: string): boolean {
    return this.keys().includes(id);
  }

  /** @throws {RollmeshError} of kind `policy` for an unknown id, with the existing ones */
  get(id: string): Policy {
    const known = this.#policies.get(id);
    if (known && !known.isFreed && this.has(id)) return known;
    const policy = Policy.wrap(this.#worker.raw.policy(text("id", id)));
    this.#policies.set(id, policy);
    return policy;
  }

  /** Adds a policy of a registered kind, with the spaces of the others. */
  add(id: string, kind = "net", config: Record<string, unknown> = {}): Policy {
    this.#worker.raw.addPolicy(text("id", id), text("kind", kind), json(config));
    return this.get(id);
  }

  /** Removes a policy. Throws for the last one, which stays. */
  delete(id: string): void {
    this.#worker.raw.removePolicy(text("id", id));
    this.#policies.get(id)?.free();
    this.#policies.delete(id);
  }

  *[Symbol.iterator](): Iterator<[string, Policy]> {
    for (const id of this.keys()) yield [id, this.get(id)];
  }

  /** @internal */
  free(): void {
    for (const policy of this.#policies.values()) policy.free();
  }
}

/** The fields of `policy.json` that are needed here. */
interface PolicyFile {
  policies: string[];
  model: ModelConfig;
  run: { env: string; env_config?: Record<string, unknown>; normalize_actions?: boolean; clip_actions?: boolean; seed?: number };
}

function parse(policyJson: string): PolicyFile {
  let file: Partial<PolicyFile> | null;
  try {
    file = JSON.parse(policyJson) as Partial<PolicyFile> | null;
  } catch (cause) {
    throw new RollmeshError("policy", "policy.json is no JSON", { cause });
  }
  const { policies, model, run } = file ?? {};
  if (!Array.isArray(policies) || !model || typeof run?.env !== "string") {
    throw new RollmeshError("policy", "this is no policy.json of a run: it needs `policies`, `model` and `run.env`");
  }
  return { policies, model, run };
}

function describe(weights: Uint8Array, options: PolicyOptions, policies: string[], policy: string): Policy {
  const { model = {}, normalizeActions = true, clipActions = false, seed = 0 } = options;
  const spaces = "env" in options ? spacesOf(options.env, options.envConfig)
    : { observation: options.observationSpace, action: options.actionSpace };
  const description = {
    observation_space: spaces.observation, action_space: spaces.action, model, normalize_actions: normalizeActions,
    clip_actions: clipActions, seed, policies, policy,
  };
  const { PolicyHandle } = engine();
  return Policy.wrap(new PolicyHandle(json(description), weights));
}

function spacesOf(env: string, config: Record<string, unknown> = {}): Spaces {
  const { spaces } = envInfo(env, config);
  if (!spaces) throw new RollmeshError("config", `'${env}' has several agents: give observationSpace and actionSpace of the policy's`);
  return spaces;
}

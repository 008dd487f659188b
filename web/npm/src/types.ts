/** The element types, under NumPy's names. */
export type DType = "float32" | "float64" | "int32" | "int64" | "uint8" | "bool";

/** The typed array of each element type. */
export interface TypedArrays {
  float32: Float32Array;
  float64: Float64Array;
  int32: Int32Array;
  /** For ids of episodes, which need all 64 bits, and discrete actions, as in NumPy. */
  int64: BigInt64Array;
  uint8: Uint8Array;
  /** 0 for false and 1 for true. */
  bool: Uint8Array;
}

/** Arrays between bounds. Without `low` or `high` there is no bound on that side; a single number is the bound of all components. */
export interface BoxSpace {
  type: "box";
  dtype: DType;
  shape: number[];
  low?: (number | null)[];
  high?: (number | null)[];
}

/** A set of observations or actions, in the form of rollmesh's settings. */
export type Space =
  | BoxSpace
  | { type: "discrete"; n: number }
  | { type: "multi_discrete"; nvec: number[] }
  | { type: "multi_binary"; n: number }
  | { type: "tuple"; spaces: Space[] }
  | { type: "dict"; spaces: Record<string, Space> };

/** The spaces of an agent. */
export interface Spaces {
  observation: Space;
  observationType: DType;
  action: Space;
  actionType: DType;
}

/** Rows of equal shape in row-major order: `data` has the number of rows times the product of `shape` elements. */
export type ArrayColumn<D extends DType = DType> = {
  [K in D]: { dtype: K; shape: number[]; data: TypedArrays[K] };
}[D];

/** Rows of bytes, or of JSON in UTF-8: row `i` is `data.subarray(offsets[i], offsets[i + 1])`. */
export interface RaggedColumn {
  dtype: "bytes" | "json";
  offsets: Uint32Array;
  data: Uint8Array;
}

export type Column = ArrayColumn | RaggedColumn;

/** A picture: rows of pixels from the top, each red, green, blue and alpha, as in `ImageData`. */
export interface Picture {
  width: number;
  height: number;
  data: Uint8ClampedArray;
}

/** An observation, an action, or several of them in row-major order. */
export type Rows = number | boolean | ArrayLike<number | boolean | bigint>;

/** Rows as numbers: 64-bit integers, for example of discrete spaces, are a `Float64Array`. */
export type NumberArray = Float32Array | Float64Array | Int32Array | Uint8Array;

/** The settings of a policy in a {@link RolloutConfig}. */
export interface PolicyConfig {
  /** The registered kind: `net`, `random`, `ppo`, `a2c`, `pg`. */
  policy?: string;
  observation_space?: Space;
  action_space?: Space;
  config?: Record<string, unknown>;
}

/** The activation function of a layer. */
export type Activation = "tanh" | "relu" | "silu" | "gelu" | "elu" | "linear";

/** A layer of a {@link ModelDescription}. */
export type LayerDescription =
  | { layer: "dense"; outputs: number; activation?: Activation }
  | {
      layer: "conv";
      filters: number;
      kernel: number | [number, number];
      stride: number | [number, number];
      is_padded?: boolean;
      activation?: Activation;
    }
  | { layer: "layer_norm"; activation?: Activation }
  | { layer: "lstm" | "gru"; cells: number };

/** The hidden layers of a custom model. */
export interface ModelDescription {
  trunk?: LayerDescription[];
  policy?: LayerDescription[];
  value?: LayerDescription[];
}

/** The settings of networks. */
export interface ModelConfig {
  custom_model?: ModelDescription | string | null;
  fcnet_hiddens?: number[];
  fcnet_activation?: Activation;
  fcnet_use_layernorm?: boolean;
  /**
   * The convolutions, each `[filters, kernel, stride]`, with `[height, width]` or one number for both; `"auto"` by the size of the images.
   */
  conv_filters?: [number, number | [number, number], number | [number, number]][] | "auto" | null;
  conv_activation?: Activation;
  post_fcnet_hiddens?: number[];
  post_fcnet_activation?: Activation;
  vf_share_layers?: boolean;
  weights_initializer?: "glorot_uniform" | "orthogonal";
  use_lstm?: boolean;
  lstm_cell_size?: number;
  lstm_use_prev_action?: boolean;
  lstm_use_prev_reward?: boolean;
  use_gru?: boolean;
  gru_cell_size?: number;
  free_log_std?: boolean;
  max_seq_len?: number;
}

/**
 * The settings of a {@link RolloutWorker}, under RLlib's names. Omitted settings have their defaults; an unknown key is an error, which
 * names the most similar one. Settings that need threads, processes or files (`sample_async`, `remote_worker_envs`, `output`, …) are
 * refused by name.
 */
export interface RolloutConfig {
  /** The registered name of the environment. */
  env?: string;
  env_config?: Record<string, unknown>;
  /** The number of environments of the worker, 1 by default. */
  num_envs?: number;
  /** The number of steps of each environment per sample, 200 by default. */
  rollout_fragment_length?: number | "auto";
  train_batch_size?: number;
  batch_mode?: "truncate_episodes" | "complete_episodes";
  count_steps_by?: "env_steps" | "agent_steps";
  horizon?: number | null;
  horizon_means?: "truncated" | "legacy_hard" | "legacy_soft";
  no_done_at_end?: boolean;
  /** The seed of all random numbers: an integer below 2^53. */
  seed?: number;
  policies?: Record<string, PolicyConfig>;
  policy_config?: Record<string, unknown>;
  model_config?: ModelConfig & Record<string, unknown>;
  /** The registered name: `default`, `agent_id` or `traffic`. */
  policy_mapping_fn?: string | null;
  policies_to_train?: string[] | null;
  policy_map_capacity?: number;
  policy_states_are_swappable?: boolean;
  /** Whether actions are drawn; if false, the policy takes the most likely ones. */
  explore?: boolean;
  observation_fn?: string | null;
  /** `auto` by default: `deepmind` for Atari's games, by their name, else `rllib`. */
  preprocessor_pref?: "auto" | "deepmind" | "rllib" | "none";
  observation_filter?: string | Record<string, unknown>;
  clip_rewards?: unknown;
  clip_actions?: boolean;
  normalize_actions?: boolean;
  compress_observations?: boolean | "bulk";
  callbacks?: string[];
  input?: string | string[] | Record<string, number>;
  input_evaluation?: string[];
  q_model_config?: Record<string, unknown>;
  legacy_step_estimates?: boolean;
  output?: string | null;
  io_config?: Record<string, unknown>;
  dataset_shards?: number | null;
  sample_async?: boolean;
  remote_worker_envs?: boolean;
  remote_env_batch_wait_ms?: number;
  remote_env_timeout_ms?: number;
  remote_env_memory_mb?: number;
  /** Whether a failed environment is restarted, and its episode discarded. */
  restart_failed_sub_environments?: boolean;
  create_env_on_local_worker?: boolean;
  fake_sampler?: boolean;
  log_dir?: string | null;
  log_level?: string;
  monitor_path?: string | null;
  extra_environs?: Record<string, string>;
}

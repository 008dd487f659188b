//! How a worker is set up: everything that can be written down. What cannot, closures and types, is registered and
//! named here.

mod parts;
mod set;
#[cfg(test)]
mod tests;

pub use parts::{Compression, FragmentLength, InputEvaluation, InputSource, LogLevel, PolicyConfig, PreprocessorPref};

use serde::{Deserialize, Serialize};

pub use crate::sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping};
use crate::{config::Config, filter::FilterKind, ids::PolicyId, prelude::*};

/// Settings of a [`RolloutWorker`](crate::worker::RolloutWorker), under RLlib's names. Every field has a default, so a file
/// holds only what differs.
///
/// Indices of the worker, its place in a run and its kernels are not in it: a configuration is the same for all
/// workers of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias = "AlgorithmConfig")]
pub struct RolloutConfig {
    /// Registered name of the environment; none for a worker that only reads or learns.
    pub env: Option<String>,
    /// Settings of the environment.
    pub env_config: Config,
    /// Environments of each worker.
    #[doc(alias = "num_envs_per_worker")]
    pub num_envs: u32,
    /// Steps of each environment per sample.
    #[doc(alias = "batch_steps")]
    pub rollout_fragment_length: FragmentLength,
    /// Rows to learn from at once; what `"auto"` divides among all environments.
    pub train_batch_size: u32,
    /// Whether episodes may be cut to make fragments of equal length.
    pub batch_mode: BatchMode,
    /// What the fragment's length counts.
    pub count_steps_by: CountStepsBy,
    /// Steps after which an episode is cut; none for the environment's own limit, whose place it takes if it is greater.
    #[doc(alias = "episode_horizon")]
    pub horizon: Option<u32>,
    /// What it means that an episode reaches the horizon.
    pub horizon_means: Horizon,
    /// With [`Horizon::LegacyHard`] or [`Horizon::LegacySoft`]: no recorded row says that its episode has ended.
    pub no_done_at_end: bool,
    /// Seed of everything random.
    pub seed: u64,

    /// The policies by id; one default policy if empty.
    pub policies: BTreeMap<PolicyId, PolicyConfig>,
    /// Settings that all policies share.
    pub policy_config: Config,
    /// Settings of the models of all policies; the same as `"model"` in [`policy_config`](Self::policy_config).
    pub model_config: Config,
    /// Registered name of the function that gives agents their policies; the default policy for all, if none.
    pub policy_mapping_fn: Option<String>,
    /// The policies that learn; all, if none.
    pub policies_to_train: Option<BTreeSet<PolicyId>>,
    /// Policies that are kept in memory at once. Others are put aside, but for those that are no registered kind: nobody
    /// could make them again.
    pub policy_map_capacity: usize,
    /// Whether policies of one kind may share an object, see [`PolicyMap::swappable`](crate::policy::PolicyMap::swappable).
    pub policy_states_are_swappable: bool,
    /// False for the most likely actions instead of drawn ones.
    pub explore: bool,

    /// Registered name of the function that observations go through first.
    pub observation_fn: Option<String>,
    /// How observations are preprocessed.
    pub preprocessor_pref: PreprocessorPref,
    /// How observations are normalised.
    pub observation_filter: FilterKind,
    /// How rewards are clipped before postprocessing. Metrics have the raw ones.
    pub clip_rewards: RewardClipping,
    /// Whether actions are clipped to the space before they are taken.
    pub clip_actions: bool,
    /// Whether policies act within [-1, 1], or count from 0, and actions are stretched to the space before they are taken:
    /// policies are told the space that [`policy_space`](crate::action::ActionTransform::policy_space) says. Goes before
    /// [`clip_actions`](Self::clip_actions).
    pub normalize_actions: bool,
    /// How observations are compressed, after the sample was written.
    pub compress_observations: Compression,

    /// Registered names of callbacks, called in this order.
    pub callbacks: Vec<String>,
    /// Where batches come from: `sampler`, the registered name of an input, files, or a mixture.
    pub input: InputSource,
    /// How policies are evaluated where batches are read, not sampled.
    pub input_evaluation: BTreeSet<InputEvaluation>,
    /// Settings of the model of values that `dm` and `dr` need.
    pub q_model_config: Config,
    /// Estimate by `is` and `wis` as RLlib did before version 2, without the last steps of episodes and with means that run
    /// on, see [`LegacyStepEstimator`](crate::estimate::LegacyStepEstimator).
    pub legacy_step_estimates: bool,
    /// Where batches are written to, if anywhere: the registered name of an output, or a directory.
    pub output: Option<String>,
    /// Settings of input and output.
    #[doc(alias("input_config", "output_config"))]
    pub io_config: Config,
    /// How many shards the input is divided into, of which each worker reads its own; one per worker, if none.
    pub dataset_shards: Option<u32>,

    /// Sample on a thread of its own, ahead of the calls.
    pub sample_async: bool,
    /// Run every environment in a process of its own.
    #[doc(alias = "async_remote_worker_envs")]
    pub remote_worker_envs: bool,
    /// How long a poll waits for all of those before it goes on with the ones that are ready, in milliseconds.
    pub remote_env_batch_wait_ms: u32,
    /// How long each of those, or the host of Python environments, may take to make one, for a reset, a step or a picture, in
    /// milliseconds; a process that takes longer is killed, and has failed.
    pub remote_env_timeout_ms: u32,
    /// The most memory that each of those processes may take for data, in MiB; 0 for as much as there is. Asking for more fails
    /// there, which ends most programs.
    pub remote_env_memory_mb: u32,
    /// Whether an environment that failed is made again, and its episode left out.
    pub restart_failed_sub_environments: bool,
    /// Whether the local worker makes environments although there are others.
    pub create_env_on_local_worker: bool,
    /// After the first sample, give that one again and again: to measure what comes after sampling.
    pub fake_sampler: bool,

    /// Directory for outputs that name none.
    pub log_dir: Option<String>,
    /// What is logged.
    pub log_level: LogLevel,
    /// Directory in which episodes are recorded, as numbers and pictures.
    pub monitor_path: Option<String>,
    /// Variables of the environment of child processes.
    #[doc(alias = "extra_python_environs")]
    pub extra_environs: BTreeMap<String, String>,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            env: None,
            env_config: Config::new(),
            num_envs: 1,
            rollout_fragment_length: FragmentLength::Steps(200),
            train_batch_size: 4000,
            batch_mode: BatchMode::TruncateEpisodes,
            count_steps_by: CountStepsBy::EnvSteps,
            horizon: None,
            horizon_means: Horizon::Truncated,
            no_done_at_end: false,
            seed: 0,
            policies: BTreeMap::new(),
            policy_config: Config::new(),
            model_config: Config::new(),
            policy_mapping_fn: None,
            policies_to_train: None,
            policy_map_capacity: 100,
            policy_states_are_swappable: false,
            explore: true,
            observation_fn: None,
            preprocessor_pref: PreprocessorPref::DeepMind,
            observation_filter: FilterKind::NoFilter,
            clip_rewards: RewardClipping::Auto,
            clip_actions: false,
            normalize_actions: true,
            compress_observations: Compression::None,
            callbacks: Vec::new(),
            input: InputSource::default(),
            input_evaluation: BTreeSet::new(),
            q_model_config: Config::new(),
            legacy_step_estimates: false,
            output: None,
            io_config: Config::new(),
            dataset_shards: None,
            sample_async: false,
            remote_worker_envs: false,
            remote_env_batch_wait_ms: 0,
            remote_env_timeout_ms: 60_000,
            remote_env_memory_mb: 4096,
            restart_failed_sub_environments: false,
            create_env_on_local_worker: false,
            fake_sampler: false,
            log_dir: None,
            log_level: LogLevel::default(),
            monitor_path: None,
            extra_environs: BTreeMap::new(),
        }
    }
}

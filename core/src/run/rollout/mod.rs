//! Describes the setup of a worker: everything that can be serialised. Closures and types cannot; they are registered, and
//! the settings name them.

mod parts;
mod set;
#[cfg(test)]
mod tests;

pub use parts::{Compression, FragmentLength, InputEvaluation, InputSource, LogLevel, PolicyConfig, PreprocessorPref};

use serde::{Deserialize, Serialize};

pub use crate::sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping};
use crate::{config::Config, filter::FilterKind, ids::PolicyId, prelude::*};

/// Settings of a [`RolloutWorker`](crate::worker::RolloutWorker), under RLlib's names. Every field has a default, so a file
/// needs only the settings that differ.
///
/// The settings do not include the worker's indices, its place in a run or its kernels: they are the same for all workers of
/// a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias = "AlgorithmConfig")]
pub struct RolloutConfig {
    /// Registered name of the environment; none for a worker that only reads or trains.
    pub env: Option<String>,
    /// Settings of the environment.
    pub env_config: Config,
    /// Number of environments of each worker.
    #[doc(alias = "num_envs_per_worker")]
    pub num_envs: u32,
    /// Steps of each environment per sample.
    #[doc(alias = "batch_steps")]
    pub rollout_fragment_length: FragmentLength,
    /// Rows per training batch; `"auto"` divides them among all environments.
    pub train_batch_size: u32,
    /// Whether episodes may be cut to make fragments of equal length.
    pub batch_mode: BatchMode,
    /// The unit of the fragment's length.
    pub count_steps_by: CountStepsBy,
    /// Steps after which an episode is cut; none for the environment's own limit. A greater horizon replaces that limit.
    #[doc(alias = "episode_horizon")]
    pub horizon: Option<u32>,
    /// The end of an episode that reaches the horizon.
    pub horizon_means: Horizon,
    /// With [`Horizon::LegacyHard`] or [`Horizon::LegacySoft`]: no recorded row is marked as the end of its episode.
    pub no_done_at_end: bool,
    /// Seed of all random numbers.
    pub seed: u64,

    /// The policies by id; one default policy if empty.
    pub policies: BTreeMap<PolicyId, PolicyConfig>,
    /// Settings that all policies share.
    pub policy_config: Config,
    /// Settings of the models of all policies; the same as `"model"` in [`policy_config`](Self::policy_config).
    pub model_config: Config,
    /// Registered name of the function that maps agents to policies; if none, the default policy acts for all.
    pub policy_mapping_fn: Option<String>,
    /// The policies to train; all, if none.
    pub policies_to_train: Option<BTreeSet<PolicyId>>,
    /// Maximum number of policies in memory. Others are evicted, except those without a registered kind, which could not be
    /// recreated.
    pub policy_map_capacity: usize,
    /// Whether policies of one kind may share an object, see
    /// [`PolicyMap::with_swapping`](crate::policy::PolicyMap::with_swapping).
    pub policy_states_are_swappable: bool,
    /// False for the most likely actions instead of sampled ones.
    pub explore: bool,

    /// Registered name of the function that is first applied to observations.
    pub observation_fn: Option<String>,
    /// The preprocessing of observations.
    pub preprocessor_pref: PreprocessorPref,
    /// The normalisation of observations.
    pub observation_filter: FilterKind,
    /// The clipping of rewards before postprocessing. Metrics use the raw ones.
    pub clip_rewards: RewardClipping,
    /// Whether to clip actions to the space before the environment gets them.
    pub clip_actions: bool,
    /// Whether policies act within [-1, 1], or count from 0, and actions are unsquashed to the space before the environment
    /// gets them: policies get the space of [`policy_space`](crate::action::ActionTransform::policy_space). Takes precedence
    /// over [`clip_actions`](Self::clip_actions).
    pub normalize_actions: bool,
    /// The compression of observations, after the sample was written.
    pub compress_observations: Compression,

    /// Registered names of callbacks, called in this order.
    pub callbacks: Vec<String>,
    /// Source of batches: `sampler`, the registered name of an input, files, or a mixture.
    pub input: InputSource,
    /// The evaluation of policies where batches are read instead of sampled.
    pub input_evaluation: BTreeSet<InputEvaluation>,
    /// Settings of the value model that `dm` and `dr` need.
    pub q_model_config: Config,
    /// Whether `is` and `wis` estimate as in RLlib before version 2, without the last steps of episodes and with means that
    /// accumulate, see [`LegacyStepEstimator`](crate::estimate::LegacyStepEstimator).
    pub legacy_step_estimates: bool,
    /// Destination of batches, if any: the registered name of an output, or a directory.
    pub output: Option<String>,
    /// Settings of input and output.
    #[doc(alias("input_config", "output_config"))]
    pub io_config: Config,
    /// Number of shards of the input, of which each worker reads its own; if none, one per worker.
    pub dataset_shards: Option<u32>,

    /// Whether to sample on a separate thread, ahead of the calls.
    pub sample_async: bool,
    /// Whether to run every environment in a separate process.
    #[doc(alias = "async_remote_worker_envs")]
    pub remote_worker_envs: bool,
    /// Time in milliseconds that a poll waits for all environment processes before it continues with the ready ones.
    pub remote_env_batch_wait_ms: u32,
    /// Time limit in milliseconds for an environment process, or the host of Python environments, to create an environment,
    /// reset it, step it or render a picture; a process that exceeds it is killed and counts as failed.
    pub remote_env_timeout_ms: u32,
    /// Maximum data memory of each environment process in MiB; 0 for no limit. Larger allocations fail in the process, which
    /// ends most programs.
    pub remote_env_memory_mb: u32,
    /// Whether to recreate a failed environment, and leave out its episode.
    pub restart_failed_sub_environments: bool,
    /// Whether the local worker creates environments even if there are other workers.
    pub create_env_on_local_worker: bool,
    /// Whether to repeat the first sample forever, to measure the stages after sampling.
    pub fake_sampler: bool,

    /// Directory of outputs without their own.
    pub log_dir: Option<String>,
    /// The events to log.
    pub log_level: LogLevel,
    /// Directory for recordings of episodes, as numbers and pictures.
    pub monitor_path: Option<String>,
    /// Environment variables of child processes.
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
            preprocessor_pref: PreprocessorPref::Auto,
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

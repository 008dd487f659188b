//! Defines the structured settings of a run.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::WorkerSpec;
use crate::{config::Config, evaluation::RewardKey, prelude::*, time::Micros};

/// When a run ends: at the first of these conditions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StopConfig {
    /// The run is solved when the mean return of the last 100 finished episodes reaches this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_return_mean: Option<f64>,
    /// Env steps.
    pub env_steps: u64,
    /// Seconds, without pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
}

impl Default for StopConfig {
    fn default() -> Self {
        Self { episode_return_mean: None, env_steps: 1_000_000, wall_s: None }
    }
}

/// The evaluation of a run's policy: alongside it, or by a separate worker. Environment, policy and actions are the
/// run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Iterations between two evaluations, 0 for none. A new evaluation replaces those that wait while another one runs. A
    /// run that trains from files is always evaluated at its end, and with a stop return also after every ten iterations if
    /// this is 0.
    pub interval: u64,
    /// Number of episodes of an evaluation; 0 for no evaluation at all.
    pub episodes: u32,
    /// Env steps after which an episode of an evaluation is truncated, unless the environment ends it earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u32>,
    /// Seconds without progress after which an evaluation is aborted, also during the start of its worker. Alongside a run
    /// it has the lowest priority: on a busy machine a second of work takes a minute or two.
    pub timeout_s: NonZeroU32,
    /// Number of sub-environments. Alongside a run, at most the number of episodes.
    pub num_envs: u32,
    /// Seed of the evaluation's episodes and drawn actions; by default the run's. Training uses different random numbers,
    /// whatever its seed is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether to draw the first episode of each evaluation alongside a run, as a GIF in the run's directory.
    pub render: bool,
    /// The reward signal to sum up as returns.
    pub reward_key: RewardKey,
    /// The function to run first in the evaluation worker's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitSpec>,
}

/// A registered function to run first in an evaluation worker's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Its name, see [`Registry::with_init_fn`](crate::worker::Registry::with_init_fn).
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Config,
}

impl Default for EvaluationConfig {
    /// Returns settings without evaluations; if enabled, 20 episodes with a timeout of ten minutes without progress.
    fn default() -> Self {
        let timeout_s = const { NonZeroU32::new(600).unwrap() };
        Self {
            interval: 0,
            episodes: 20,
            horizon: None,
            timeout_s,
            // A fixed number, so that the same seed gives the same episodes.
            num_envs: 4,
            seed: None,
            render: false,
            reward_key: RewardKey::Reward,
            init: None,
        }
    }
}

impl EvaluationConfig {
    /// Maximum number of sub-environments.
    pub const MAX_ENVS: u32 = 4096;

    /// Returns true if the run has no evaluations between its iterations.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.interval == 0 || self.episodes == 0
    }

    /// Returns whether the weights of this iteration are evaluated.
    #[must_use]
    pub fn is_due(&self, iteration: u64) -> bool {
        !self.is_off() && iteration > 0 && iteration.is_multiple_of(self.interval)
    }
}

/// Element type of the weights that workers act with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsDtype {
    /// The learner's weights as they are.
    #[default]
    Float32,
    /// Rounded to 16 bits, once, by the hub: half the bytes for each worker. Rows are as reproducible, but others.
    Float16,
}

/// Settings that belong to one machine, in addition to the paths and variables in [`RolloutConfig`](super::RolloutConfig).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Device of the learner: `cpu`, `cuda:N` or `metal`.
    pub device: String,
    /// Resources of each local worker; by default those that the hub sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerSpec>,
    /// Resources of an evaluation worker's process, and its limits.
    #[serde(skip_serializing_if = "WorkerSpec::is_default")]
    #[doc(alias = "num_gpus")]
    pub evaluator: WorkerSpec,
    /// Whether that process runs with a lower priority than other programs; alongside a run it always does.
    pub evaluator_is_nice: bool,
    /// Whether the metrics are also written as event files of TensorBoard, in the run's directory.
    pub tensorboard: bool,
    /// Directory of an MLflow store to which the metrics are also written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            device: "cpu".into(),
            worker: None,
            evaluator: WorkerSpec::default(),
            evaluator_is_nice: false,
            tensorboard: false,
            mlflow: None,
        }
    }
}

impl HostConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The place where the networks of sampling workers' policies compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inference {
    /// In the worker itself.
    #[default]
    Local,
    /// In a worker that acts for others, or while none is connected in the hub's process. By the kernels the rows are the
    /// same. A worker with a device of its own, and a browser tab, which cannot wait for answers, act by themselves.
    Server,
}

/// The batching of rows in a worker that acts for others. Rows have the same outputs in every batch, except on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InferenceBatch {
    /// Rows for which it waits.
    pub min_rows: u32,
    /// Most rows that it computes in one pass, rounded up to a whole request.
    pub max_rows: u32,
    /// Microseconds that the oldest row waits at most for others.
    pub wait_us: u32,
}

impl Default for InferenceBatch {
    fn default() -> Self {
        Self { min_rows: 1, max_rows: 4_096, wait_us: 1_000 }
    }
}

/// The treatment of an open episode whose replay on another worker ends in another state, see
/// [`EnvState::Replay`](crate::env::EnvState::Replay).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMismatch {
    /// The fragment fails. The second time, the run ends with an error that names environment and step.
    #[default]
    Fail,
    /// The episode is abandoned, and its slot begins the next one, as for [opaque](crate::env::EnvState::Opaque)
    /// environments.
    Abandon,
}

/// The condition that completes a batch, and the maximum age of its weights.
///
/// In every mode, one version of the weights samples a fragment, and a slot's fragments are committed in order, without a
/// gap. The *lag* of a fragment is the number of versions between its weights and the newest ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SamplingMode {
    /// A batch is one fragment of every slot, all sampled with the same weights. Overdue slots are leased twice. The batches
    /// depend on the run's seed alone.
    #[default]
    Synchronous,
    /// Workers continue as soon as their lease is done, with the newest weights. A batch consists of the first committed
    /// fragments, up to its size; later ones go into the next batch. No batch waits for a slow worker.
    ///
    /// While a complete batch is waiting for the learner, no lease begins, so that no fragment becomes older than necessary.
    Asynchronous {
        /// Env steps of a batch, rounded up to whole fragments; 0 in a [`RunConfig`](super::RunConfig) for a fragment of
        /// every slot.
        #[serde(default)]
        batch_env_steps: u64,
        /// Maximum lag of a fragment, both when it is accepted and when it is put into a batch.
        #[serde(default = "usual_staleness")]
        max_staleness: u64,
    },
    /// A batch consists of the fragments that were committed when the iteration's time is up: at least one, and at most one
    /// of each slot that began with the iteration. If all slots finish earlier, the iteration ends then. Unfinished workers
    /// continue, and upload their fragments for a later batch.
    Deadline {
        /// Duration of an iteration, from its start.
        #[serde(default = "usual_deadline")]
        after: Micros,
        /// Maximum lag of a fragment, both when it is accepted and when it is put into a batch.
        #[serde(default = "usual_staleness")]
        max_staleness: u64,
    },
}

const fn usual_staleness() -> u64 {
    1
}

const fn usual_deadline() -> Micros {
    Micros::from_secs(1)
}

impl SamplingMode {
    /// Returns true if a batch is one fragment of every slot.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        *self == Self::Synchronous
    }

    /// Returns true if a fragment may have this lag.
    pub(crate) fn allows(self, lag: u64) -> bool {
        match self {
            Self::Synchronous => true,
            Self::Asynchronous { max_staleness, .. } | Self::Deadline { max_staleness, .. } => lag <= max_staleness,
        }
    }
}

//! Settings of a run that are more than a number.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::WorkerSpec;
use crate::{config::Config, evaluation::RewardKey, prelude::*, time::Micros};

/// When a run ends: at the first of these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StopConfig {
    /// The run is solved when the mean return of the last 100 finished episodes reaches this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_return_mean: Option<f64>,
    /// Env steps.
    pub env_steps: u64,
    /// Seconds without pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
}

impl Default for StopConfig {
    fn default() -> Self {
        Self { episode_return_mean: None, env_steps: 1_000_000, wall_s: None }
    }
}

/// How the policy of a run is evaluated: alongside it, or by a worker of its own. Environment, policy and actions are the
/// run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Iterations between two evaluations, 0 for none. One that comes while another is under way takes the place of those
    /// that wait. A run that learns from files is evaluated at its end in any case, and with a stop return after every ten
    /// iterations if this is 0.
    pub interval: u64,
    /// Episodes of an evaluation; 0 for no evaluation at all.
    pub episodes: u32,
    /// Env steps after which an episode of an evaluation is truncated, if the environment does not end it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u32>,
    /// An evaluation without progress for this many seconds is given up, also while its worker starts. Alongside a run it
    /// has the lowest priority: where all processors are busy, what takes a second takes a minute or two.
    pub timeout_s: NonZeroU32,
    /// Sub-environments. Alongside a run no more than there are episodes.
    pub num_envs: u32,
    /// Seed of the evaluation's episodes and drawn actions, the run's if none. Those of training are others, whatever its
    /// seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Draw the first episode of each evaluation alongside a run, as a GIF in the run's directory.
    pub render: bool,
    /// The signal that returns are sums of.
    pub reward_key: RewardKey,
    /// What runs first in the evaluation worker's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitSpec>,
}

/// A registered function that runs first in an evaluation worker's process.
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
    /// None; of 20 episodes if there were some, each of which has ten minutes for a move.
    fn default() -> Self {
        let timeout_s = const { NonZeroU32::new(600).unwrap() };
        Self {
            interval: 0,
            episodes: 20,
            horizon: None,
            timeout_s,
            // The same for everyone, so that the same seed means the same episodes.
            num_envs: 4,
            seed: None,
            render: false,
            reward_key: RewardKey::Reward,
            init: None,
        }
    }
}

impl EvaluationConfig {
    /// The most sub-environments.
    pub const MAX_ENVS: u32 = 4096;

    /// True if nothing is evaluated while the run goes on.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.interval == 0 || self.episodes == 0
    }

    /// Whether the weights of that iteration are evaluated.
    #[must_use]
    pub fn is_due(&self, iteration: u64) -> bool {
        !self.is_off() && iteration > 0 && iteration.is_multiple_of(self.interval)
    }
}

/// Settings that belong to one machine, besides the paths and variables among [`RolloutConfig`](super::RolloutConfig)'s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Where the learner computes: `cpu`, `cuda:N` or `metal`.
    pub device: String,
    /// What each local worker needs of the machine; as the hub says, if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerSpec>,
    /// What an evaluation worker's process needs of the machine, and is held to.
    #[serde(skip_serializing_if = "WorkerSpec::is_default")]
    #[doc(alias = "num_gpus")]
    pub evaluator: WorkerSpec,
    /// Whether that process runs with a lower priority than other programs; alongside a run it does in any case.
    pub evaluator_is_nice: bool,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { device: "cpu".into(), worker: None, evaluator: WorkerSpec::default(), evaluator_is_nice: false }
    }
}

impl HostConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of an open episode whose replay elsewhere ends in another state, see
/// [`EnvState::Replay`](crate::env::EnvState::Replay).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMismatch {
    /// The fragment fails. The second time the run ends, with environment and step.
    #[default]
    Fail,
    /// The episode is given up, and its slot begins the next one, as slots of [opaque](crate::env::EnvState::Opaque)
    /// environments do.
    Abandon,
}

/// Which fragments make a batch, and how old their weights may be.
///
/// In every mode a fragment is made with one version of the weights, and a slot's fragments are committed in order,
/// without a gap. The *lag* of a fragment is the number of versions that its weights are behind the newest ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SamplingMode {
    /// A batch is one fragment of every slot, all made with the same weights. Overdue slots are leased twice. The batches
    /// depend on the run's seed alone.
    #[default]
    Synchronous,
    /// Workers go on as soon as their lease is done, with the newest weights. A batch is what was committed first, as many
    /// fragments as it takes; what comes later is for the next one. No batch waits for a straggler.
    ///
    /// Whenever a whole batch is waiting to be taken no lease begins, so that nothing gets older than it must.
    Asynchronous {
        /// Env steps of a batch, rounded up to whole fragments; 0 in a [`RunConfig`](super::RunConfig) for a fragment of
        /// every slot.
        #[serde(default)]
        batch_env_steps: u64,
        /// The largest lag of a fragment that is accepted, and of one that is put into a batch.
        #[serde(default = "usual_staleness")]
        max_staleness: u64,
    },
    /// A batch is what was committed when the iteration's time is up, but at least one fragment and at most one of each
    /// slot that began with the iteration; if all slots are done before, it ends then. Workers that are not done continue, and
    /// hand in their fragments for a later batch.
    Deadline {
        /// The time of an iteration, from its begin.
        #[serde(default = "usual_deadline")]
        after: Micros,
        /// The largest lag of a fragment that is accepted, and of one that is put into a batch.
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
    /// True if a batch is one fragment of every slot.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        *self == Self::Synchronous
    }

    /// True if a fragment may be this many versions behind the newest weights.
    pub(crate) fn allows(self, lag: u64) -> bool {
        match self {
            Self::Synchronous => true,
            Self::Asynchronous { max_staleness, .. } | Self::Deadline { max_staleness, .. } => lag <= max_staleness,
        }
    }
}

//! User code at fixed points of sampling: callbacks, the mapping of agents to policies, and the observation function.
//!
//! ```
//! use rollmesh_core::callbacks::{CallbackError, Callbacks, EpisodeHook};
//!
//! /// Counts steps with a high return so far.
//! struct Luck;
//!
//! impl Callbacks for Luck {
//!     fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
//!         if hook.episode.total_reward() > 100.0 {
//!             *hook.episode.custom_metrics.entry("lucky_steps".into()).or_default() += 1.0;
//!         }
//!         Ok(())
//!     }
//! }
//! # let _: Box<dyn Callbacks> = Box::new(Luck);
//! ```

mod list;

pub use list::CallbackList;

use crate::{
    batch::{AnyBatch, SampleBatch},
    config::{Config, ConfigError},
    env::{
        BaseEnv, EnvContext, EnvError, SubEnv,
        multi_agent::{AgentRows, Turn},
    },
    episode::{Episode, OtherAgent, RolloutMetrics},
    ids::{AgentId, PolicyId},
    policy::{LearnInfo, Policy, PolicyMap},
    prelude::*,
    rng::Rng,
};

/// The worker that user code runs in, as it sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerInfo {
    /// 0 for the local worker, others count from 1.
    pub worker_index: u32,
    /// Number of the run's workers, without the local one.
    pub num_workers: u32,
    /// Whether the worker replaces a lost one.
    pub recreated_worker: bool,
    /// The settings that all policies share.
    #[doc(alias = "policy_config")]
    pub config: Config,
}

/// Returns the policy under which an agent acts until the episode ends. Called once per agent and episode; the random
/// numbers are addressed by the agent, so a replay of the episode gets the same answer.
pub type PolicyMappingFn = Arc<dyn Fn(&AgentId, &Episode, &WorkerInfo, &mut Rng) -> PolicyId + Send + Sync>;

/// Rewrites the observations of the agents that act next, before preprocessing.
pub type ObservationFn = Arc<dyn Fn(&mut AgentRows, &mut EpisodeHook<'_>) -> Result<(), CallbackError> + Send + Sync>;

/// An error of user code, which ends the operation that called it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hook} failed: {message}")]
pub struct CallbackError {
    /// The hook or function.
    pub hook: String,
    /// The user's message.
    pub message: String,
}

impl CallbackError {
    /// Creates an error of `hook`.
    #[must_use]
    pub fn new(hook: impl Into<String>, message: impl Into<String>) -> Self {
        Self { hook: hook.into(), message: message.into() }
    }
}

impl From<ConfigError> for CallbackError {
    fn from(error: ConfigError) -> Self {
        Self::new("reading or writing settings", error.to_string())
    }
}

/// The parts of an episode that its hooks may read and change.
pub struct EpisodeHook<'a> {
    /// The worker.
    pub worker: &'a WorkerInfo,
    /// The environments.
    pub env: &'a mut dyn BaseEnv,
    /// The policies.
    pub policies: &'a mut PolicyMap,
    /// The episode.
    pub episode: &'a mut Episode,
    /// The latest turn of the environment: observations, rewards, flags and infos of its agents. Empty before the first
    /// observations, and for observation functions, which get the observations as an argument.
    #[doc(alias("last_info_for", "last_observation_for"))]
    pub turn: &'a Turn,
}

/// A trajectory that was postprocessed and is about to join a batch.
#[derive(Debug)]
pub struct TrajectoryHook<'a> {
    /// The worker.
    pub worker: &'a WorkerInfo,
    /// The episode.
    pub episode: &'a Episode,
    /// The agent that the trajectory belongs to.
    pub agent: &'a AgentId,
    /// The agent's policy.
    pub policy: &'a PolicyId,
    /// The rows, to be changed.
    pub trajectory: &'a mut SampleBatch,
    /// Rows of the episode's other agents, not postprocessed.
    pub others: &'a [OtherAgent<'a>],
}

/// Hooks with empty default implementations. An error ends the call that the hook is part of.
#[doc(alias = "DefaultCallbacks")]
#[allow(clippy::missing_errors_doc)]
pub trait Callbacks: Send {
    /// Called once when a run is set up, before anything is sampled.
    fn on_algorithm_init(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after workers were lost and replaced: of a group with their indices; of a run over leases, before its next
    /// update, with the numbers of the hub's local workers that have joined in place of others.
    fn on_workers_recreated(&mut self, _worker_indices: &[u32]) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when a run resumes from a checkpoint.
    fn on_checkpoint_loaded(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after a policy was created or added.
    fn on_create_policy(&mut self, _id: &PolicyId, _policy: &mut dyn Policy) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after a sub-environment was created.
    fn on_sub_environment_created(
        &mut self,
        _worker: &WorkerInfo,
        _env: SubEnv<'_>,
        _context: &EnvContext,
    ) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called before an episode begins; its environment has not been reset yet.
    fn on_episode_created(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when an episode has begun, with its first observations.
    fn on_episode_start(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after each step of an episode.
    fn on_episode_step(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when an episode has ended, or was lost to a `fault` of its environment.
    fn on_episode_end(&mut self, _hook: &mut EpisodeHook<'_>, _fault: Option<&EnvError>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after a trajectory was postprocessed.
    fn on_postprocess_trajectory(&mut self, _hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when a sample is complete, and may change it; it has not been written, estimated or compressed yet.
    fn on_sample_end(&mut self, _worker: &WorkerInfo, _samples: &mut AnyBatch) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called before a policy learns from a batch. Entries added to `info` are returned with the policy's metrics.
    fn on_learn_on_batch(
        &mut self,
        _id: &PolicyId,
        _batch: &mut SampleBatch,
        _info: &mut LearnInfo,
    ) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when an evaluation begins: an evaluation worker calls its own callbacks, a run from files the run's.
    fn on_evaluate_start(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called when an evaluation has ended, with its episodes. Not called for one that fails or is cancelled.
    fn on_evaluate_end(&mut self, _worker: &WorkerInfo, _episodes: &[RolloutMetrics]) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Called after an iteration of training; may add metrics to its results.
    fn on_train_result(&mut self, _results: &mut BTreeMap<String, f64>) -> Result<(), CallbackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// The parts of a worker may move to another thread.
    #[test]
    fn workers_parts_can_move_to_other_threads() {
        fn movable<T: Send>() {}
        movable::<PolicyMap>();
        movable::<CallbackList>();
        movable::<Box<dyn BaseEnv>>();
        movable::<ObservationFn>();
    }

    /// Appends its digit.
    struct Notes(Arc<AtomicU32>);

    impl Callbacks for Notes {
        fn on_evaluate_start(&mut self, worker: &WorkerInfo) -> Result<(), CallbackError> {
            let seen = self.0.load(Ordering::Relaxed) * 10 + worker.worker_index;
            self.0.store(seen, Ordering::Relaxed);
            if seen == 111 { Err(CallbackError::new("on_evaluate_start", "seen enough")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_list_calls_one_after_the_other_until_one_fails() {
        let seen = Arc::new(AtomicU32::new(0));
        let mut list = CallbackList::new();
        list.push(Box::new(Notes(seen.clone())));
        list.push(Box::new(Notes(seen.clone())));
        let worker = WorkerInfo { worker_index: 1, ..WorkerInfo::default() };
        assert_eq!(list.on_evaluate_start(&worker), Ok(()));
        let error = list.on_evaluate_start(&worker).unwrap_err();
        assert_eq!(error.to_string(), "on_evaluate_start failed: seen enough");
        assert_eq!(seen.load(Ordering::Relaxed), 111);
    }
}

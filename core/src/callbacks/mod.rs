//! The user's own code at fixed points of sampling: callbacks, the mapping of agents to policies, and the function
//! that observations go through.
//!
//! ```
//! use rollmesh_core::callbacks::{CallbackError, Callbacks, EpisodeHook};
//!
//! /// Counts the steps in which much was gained.
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

/// What user code is told of the worker it runs in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerInfo {
    /// 0 for the local worker, then from 1.
    pub worker_index: u32,
    /// Workers of the run, without the local one.
    pub num_workers: u32,
    /// True if the worker replaces one that was lost.
    pub recreated_worker: bool,
    /// The settings that all policies share.
    #[doc(alias = "policy_config")]
    pub config: Config,
}

/// Says under which policy an agent acts until the episode ends. Called once per agent and episode; the random numbers
/// are the agent's own, so the answer is the same wherever and however often the episode is made.
pub type PolicyMappingFn = Arc<dyn Fn(&AgentId, &Episode, &WorkerInfo, &mut Rng) -> PolicyId + Send + Sync>;

/// Rewrites the observations of the agents that act next, before preprocessing.
pub type ObservationFn = Arc<dyn Fn(&mut AgentRows, &mut EpisodeHook<'_>) -> Result<(), CallbackError> + Send + Sync>;

/// Why user code gave up. What it was doing is then given up, too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hook} failed: {message}")]
pub struct CallbackError {
    /// The hook or function.
    pub hook: String,
    /// What the user says.
    pub message: String,
}

impl CallbackError {
    /// A failure of `hook`.
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

/// What hooks of an episode may look at and change.
pub struct EpisodeHook<'a> {
    /// The worker.
    pub worker: &'a WorkerInfo,
    /// The environments.
    pub env: &'a mut dyn BaseEnv,
    /// The policies.
    pub policies: &'a mut PolicyMap,
    /// The episode.
    pub episode: &'a mut Episode,
    /// What the environment brought last: observations, rewards, flags and infos of its agents. Empty before the first
    /// observations, and for observation functions, which get the observations by themselves.
    #[doc(alias("last_info_for", "last_observation_for"))]
    pub turn: &'a Turn,
}

/// A trajectory that has been postprocessed and is about to join a batch.
#[derive(Debug)]
pub struct TrajectoryHook<'a> {
    /// The worker.
    pub worker: &'a WorkerInfo,
    /// The episode.
    pub episode: &'a Episode,
    /// Whose trajectory it is.
    pub agent: &'a AgentId,
    /// The agent's policy.
    pub policy: &'a PolicyId,
    /// The rows, to be changed.
    pub trajectory: &'a mut SampleBatch,
    /// Rows of the episode's other agents, not postprocessed.
    pub others: &'a [OtherAgent<'a>],
}

/// Hooks, all of which do nothing unless written. An error ends the call that the hook is part of.
#[doc(alias = "DefaultCallbacks")]
#[allow(clippy::missing_errors_doc)]
pub trait Callbacks: Send {
    /// A run is set up. Called once, before anything is sampled.
    fn on_algorithm_init(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// Workers were lost and replaced.
    fn on_workers_recreated(&mut self, _worker_indices: &[u32]) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A run goes on from a checkpoint.
    fn on_checkpoint_loaded(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A policy was made or added.
    fn on_create_policy(&mut self, _id: &PolicyId, _policy: &mut dyn Policy) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A sub-environment was made.
    fn on_sub_environment_created(
        &mut self,
        _worker: &WorkerInfo,
        _env: SubEnv<'_>,
        _context: &EnvContext,
    ) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An episode is about to begin; its environment has not been reset.
    fn on_episode_created(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An episode has begun; the first observations are there.
    fn on_episode_start(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An episode has made a step.
    fn on_episode_step(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An episode has ended, or was lost to a `fault` of its environment.
    fn on_episode_end(&mut self, _hook: &mut EpisodeHook<'_>, _fault: Option<&EnvError>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A trajectory was postprocessed.
    fn on_postprocess_trajectory(&mut self, _hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A sample is complete and may be changed; it has not been written, estimated or compressed.
    fn on_sample_end(&mut self, _worker: &WorkerInfo, _samples: &mut AnyBatch) -> Result<(), CallbackError> {
        Ok(())
    }

    /// A policy is about to learn from a batch. What is put into `info` is given out with what the policy says.
    fn on_learn_on_batch(
        &mut self,
        _id: &PolicyId,
        _batch: &mut SampleBatch,
        _info: &mut LearnInfo,
    ) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An evaluation begins. An evaluation worker calls its own callbacks, a run from files the run's.
    fn on_evaluate_start(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An evaluation has ended, with these episodes. One that fails or is given up has no end.
    fn on_evaluate_end(&mut self, _worker: &WorkerInfo, _episodes: &[RolloutMetrics]) -> Result<(), CallbackError> {
        Ok(())
    }

    /// An iteration of training has ended; numbers may be added to its results.
    fn on_train_result(&mut self, _results: &mut BTreeMap<String, f64>) -> Result<(), CallbackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// What a worker holds may move to another thread.
    #[test]
    fn workers_parts_can_move_to_other_threads() {
        fn movable<T: Send>() {}
        movable::<PolicyMap>();
        movable::<CallbackList>();
        movable::<Box<dyn BaseEnv>>();
        movable::<ObservationFn>();
    }

    /// Writes its digit behind what is there.
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

//! Errors of sampling, reading and writing.

use super::SlotState;
use crate::{
    batch::BatchError,
    callbacks::CallbackError,
    env::EnvError,
    filter::FilterError,
    ids::{AgentId, PolicyId, SlotId},
    policy::{PolicyError, PolicyMapError},
    prelude::*,
    preprocess::PreprocessError,
    view::ViewError,
    weights::WeightsError,
};

/// The reason why a batch could not be made, read or written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// An environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// An environment failed in a known step of a slot's episode.
    #[error("slot {slot}, episode {episode}, step {t}: {source}")]
    EnvAt {
        /// The slot.
        slot: SlotId,
        /// The episode's number within the slot.
        episode: u32,
        /// The step of the episode, counted from 0.
        t: u32,
        /// The environment's error.
        source: EnvError,
    },
    /// A policy failed.
    #[error("policy '{id}': {source}")]
    Policy {
        /// The policy.
        id: PolicyId,
        /// The policy's error.
        source: PolicyError,
    },
    /// The weights are not those of the policies.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The policy does not exist, or cannot be restored from the store.
    #[error(transparent)]
    PolicyMap(#[from] PolicyMapError),
    /// The mapping function returned an unknown policy.
    #[error("the policy mapping function gave agent '{agent}' policy '{id}', but there are only: {known}")]
    UnknownPolicy {
        /// The agent.
        agent: AgentId,
        /// The returned id.
        id: PolicyId,
        /// The existing policies.
        known: String,
    },
    /// User code failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// An observation could not be preprocessed.
    #[error("agent '{agent}': {source}")]
    Preprocess {
        /// The agent.
        agent: AgentId,
        /// The cause.
        source: PreprocessError,
    },
    /// An observation could not be filtered.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The rows that a policy requires are unavailable.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The state of a slot is not available between two fragments.
    #[error("the state of slot {0} cannot be told: its environment has no snapshots, or failed to take one")]
    NoState(SlotId),
    /// The state of a slot exceeds the limit of a lease.
    #[error("the state of slot {slot} has {bytes} bytes, at most {max}: its open episode is too long, set a shorter `horizon` or give the environment a snapshot", max = SlotState::MAX_BYTES)]
    StateTooLarge {
        /// The slot.
        slot: SlotId,
        /// Its size in bytes.
        bytes: usize,
    },
    /// A fragment is incomplete after the most env steps that it may have: no episode has ended, or too few agents have
    /// acted.
    #[error(
        "a fragment of slot {slot} is not complete after {env_steps} env steps: set `horizon`, or a shorter rollout_fragment_length"
    )]
    EndlessFragment {
        /// The slot.
        slot: SlotId,
        /// Number of its env steps.
        env_steps: usize,
    },
    /// Rows could not be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An episode ended without a step of an agent.
    #[error("episode {0} ended without any agent having acted: check that reset gives observations")]
    NoAgentSteps(i64),
    /// A horizon is set for environments that begin their episodes by themselves.
    #[error("a horizon needs environments that can be reset; leave it out for external ones")]
    HorizonWithoutReset,
    /// The input could not be read.
    #[error("the input failed: {0}")]
    Input(String),
    /// A batch is larger than the shuffle buffer.
    #[error(
        "a batch of {bytes} bytes was read, and {buffer} may wait to be shuffled: raise buffer_size, or leave \
         shuffle_buffer_size out"
    )]
    BatchTooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// Size of the buffer in bytes.
        buffer: usize,
    },
    /// The output could not be written.
    #[error("the output failed: {0}")]
    Output(String),
    /// The sampler was stopped.
    #[error("the sampler was stopped")]
    Stopped,
    /// The sampler's thread has ended.
    #[error("the sampling thread has died: {0}; make a new worker")]
    Died(String),
}

impl SampleError {
    /// Adds where an environment failed, if its lane is known: `place` returns the slot, episode and step of a lane.
    pub(crate) fn located(self, lanes: usize, place: impl Fn(usize) -> Option<(SlotId, (u32, u32))>) -> Self {
        let Self::Env(error) = self else { return self };
        let (lane, source) = error.split_lane();
        let is_of_all = matches!(source, EnvError::AllGivenUp { .. } | EnvError::Stopped | EnvError::Undriven(_));
        let is_only = lanes == 1 && !is_of_all;
        let lane = lane.or_else(|| is_only.then_some(0));
        match lane.and_then(place) {
            Some((slot, (episode, t))) => Self::EnvAt { slot, episode, t, source },
            None => source.into(),
        }
    }

    /// Returns the error of a sampler that returns nothing although its budget is endless.
    pub(crate) fn no_update() -> Self {
        EnvError::Failed("a poll brought no updates of any environment".into()).into()
    }
}

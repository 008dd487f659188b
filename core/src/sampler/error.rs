//! Why there is no batch.

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

/// Why a batch could not be made, read or written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// An environment failed, in the step of an episode of a slot.
    #[error("slot {slot}, episode {episode}, step {t}: {source}")]
    EnvAt {
        /// The slot.
        slot: SlotId,
        /// The episode's number within the slot.
        episode: u32,
        /// The step of the episode, counted from 0.
        t: u32,
        /// What the environment says.
        source: EnvError,
    },
    /// A policy failed.
    #[error("policy '{id}': {source}")]
    Policy {
        /// The policy.
        id: PolicyId,
        /// What it says.
        source: PolicyError,
    },
    /// The weights are not those of the policies.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// There is no such policy, or it cannot be brought back.
    #[error(transparent)]
    PolicyMap(#[from] PolicyMapError),
    /// The mapping function named a policy that there is not.
    #[error("the policy mapping function gave agent '{agent}' policy '{id}', but there are only: {known}")]
    UnknownPolicy {
        /// The agent.
        agent: AgentId,
        /// What the function said.
        id: PolicyId,
        /// The policies that there are.
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
        /// What is wrong.
        source: PreprocessError,
    },
    /// An observation could not be filtered.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The rows a policy wants to see cannot be had.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The state of a slot cannot be told between two fragments.
    #[error("the state of slot {0} cannot be told: its environment has no snapshots")]
    NoState(SlotId),
    /// The state of a slot has more bytes than a lease may carry.
    #[error("the state of slot {slot} has {bytes} bytes, at most {max}: its open episode is too long, set a shorter `horizon` or give the environment a snapshot", max = SlotState::MAX_BYTES)]
    StateTooLarge {
        /// The slot.
        slot: SlotId,
        /// Its bytes.
        bytes: usize,
    },
    /// A fragment is not complete after the most env steps that it may have: no episode has ended, or too few agents have acted.
    #[error(
        "a fragment of slot {slot} is not complete after {env_steps} env steps: set `horizon`, or a shorter rollout_fragment_length"
    )]
    EndlessFragment {
        /// The slot.
        slot: SlotId,
        /// Its env steps.
        env_steps: usize,
    },
    /// Rows could not be put together.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An episode ended and no agent has acted in it.
    #[error("episode {0} ended without any agent having acted: check that reset gives observations")]
    NoAgentSteps(i64),
    /// A horizon was set for environments that begin their episodes by themselves.
    #[error("a horizon needs environments that can be reset; leave it out for external ones")]
    HorizonWithoutReset,
    /// The input could not be read.
    #[error("the input failed: {0}")]
    Input(String),
    /// A batch that was read is larger than all that may wait to be shuffled.
    #[error(
        "a batch of {bytes} bytes was read, and {buffer} may wait to be shuffled: raise buffer_size, or leave \
         shuffle_buffer_size out"
    )]
    BatchTooLarge {
        /// Its bytes.
        bytes: usize,
        /// Bytes that may wait.
        buffer: usize,
    },
    /// The output could not be written.
    #[error("the output failed: {0}")]
    Output(String),
    /// It was stopped before.
    #[error("the sampler was stopped")]
    Stopped,
    /// It ran on a thread of its own, which is no more.
    #[error("the sampling thread has died: {0}; make a new worker")]
    Died(String),
}

impl SampleError {
    /// Says where an environment failed, if its lane is known: `place` gives the slot, episode and step of a lane.
    pub(crate) fn located(self, lanes: usize, place: impl Fn(usize) -> Option<(SlotId, (u32, u32))>) -> Self {
        let Self::Env(error) = self else { return self };
        let (lane, source) = error.split_lane();
        let is_only = lanes == 1 && !matches!(source, EnvError::AllGivenUp { .. } | EnvError::Stopped);
        let lane = lane.or_else(|| is_only.then_some(0));
        match lane.and_then(place) {
            Some((slot, (episode, t))) => Self::EnvAt { slot, episode, t, source },
            None => source.into(),
        }
    }

    /// There is all the time there is, and nothing to wait for.
    pub(crate) fn no_news() -> Self {
        EnvError::Failed("a poll brought no news of any environment".into()).into()
    }
}

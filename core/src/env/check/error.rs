//! What an environment can do wrong.

use crate::{column::DType, env::EnvError, prelude::*, space::SpaceError};

/// What an environment does wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The environment failed where it should not.
    #[error("step {step}, during {during}: {source}")]
    Failed {
        /// What it was doing.
        during: &'static str,
        /// Steps before.
        step: u32,
        /// The failure.
        source: EnvError,
    },
    /// It has another number of lanes than it was made for.
    #[error("made for {wanted} lanes, it has {found}")]
    Lanes {
        /// Lanes asked for.
        wanted: usize,
        /// Lanes there.
        found: usize,
    },
    /// A space makes no sense.
    #[error("the {what} space makes no sense: {source}")]
    BadSpace {
        /// `observation` or `action`.
        what: &'static str,
        /// Why.
        source: SpaceError,
    },
    /// Rows have an element type that the space does not have.
    #[error("{what}s are rows of {found}, which the space {space} does not have")]
    WrongType {
        /// `observation` or `action`.
        what: &'static str,
        /// The space.
        space: String,
        /// Element type of the rows.
        found: DType,
    },
    /// An observation is not in the observation space.
    #[error("step {step}, lane {lane}: the observation {obs} after {after} is not in {space}")]
    OutsideSpace {
        /// What the environment had done.
        after: &'static str,
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
        /// The beginning of the observation.
        obs: String,
        /// The observation space.
        space: String,
    },
    /// A reward is infinite or not a number.
    #[error("step {step}, lane {lane}: the reward is {reward}")]
    Reward {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
        /// The reward.
        reward: f64,
    },
    /// The same resets and actions gave other results the second time.
    #[error(
        "step {step}, lane {lane}: {during} is not deterministic, the same random numbers and actions gave other \
         results; everything random must come from the given Rng"
    )]
    NotDeterministic {
        /// What the environment had done.
        during: &'static str,
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// What had been in the buffers before is in the results.
    #[error("step {step}, lane {lane}: {during} does not write all of its {array}")]
    NotWritten {
        /// Where it should write: `obs`, `rewards`, `terminateds` or `truncateds`.
        array: &'static str,
        /// What the environment had done.
        during: &'static str,
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// A lane gave other results among others than alone.
    #[error("step {step}, lane {lane}: results depend on what the other lanes do, or on how many there are")]
    Coupled {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// Going on from a snapshot gave other results than going on.
    #[error(
        "step {step}, lane {lane}: a lane that `restore` brought back continues differently; does `snapshot` write all of its state?"
    )]
    BadRestore {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// An action was refused, but lanes have moved.
    #[error("step {step}, lane {lane}: moved by actions that were refused for {action}")]
    MovedByRefused {
        /// The lane that moved.
        lane: usize,
        /// Steps before.
        step: u32,
        /// The action that was refused.
        action: String,
    },
    /// The agents that are known beforehand are not in ascending order, each once.
    #[error("the agents that are known beforehand must be in ascending order, each once")]
    UnorderedAgents,
    /// The same resets and actions said other things to an agent the second time.
    #[error(
        "step {step}, agent {agent}: {during} is not deterministic, the same random numbers and actions gave other \
         results; everything random must come from the given Rng"
    )]
    AgentNotDeterministic {
        /// What the environment had done.
        during: &'static str,
        /// The agent, or `all` for what is said to everybody.
        agent: String,
        /// Steps before.
        step: u32,
    },
    /// A step after the episode's end was taken.
    #[error("step {step}: the episode is over, but the environment takes a step; that must be an error")]
    GoesOn {
        /// Steps before.
        step: u32,
    },
}

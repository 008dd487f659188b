//! Violations found by the conformance checks.

use crate::{column::DType, env::EnvError, prelude::*, space::SpaceError};

/// A violation of an environment's contract.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The environment failed unexpectedly.
    #[error("step {step}, during {during}: {source}")]
    Failed {
        /// The operation.
        during: &'static str,
        /// Number of steps before.
        step: u32,
        /// The failure.
        source: EnvError,
    },
    /// The number of lanes differs from the requested one.
    #[error("made for {wanted} lanes, it has {found}")]
    Lanes {
        /// Lanes asked for.
        wanted: usize,
        /// Lanes there.
        found: usize,
    },
    /// A space is invalid.
    #[error("the {what} space makes no sense: {source}")]
    BadSpace {
        /// `observation` or `action`.
        what: &'static str,
        /// The reason.
        source: SpaceError,
    },
    /// The rows' element type does not fit the space.
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
        /// The operation before.
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
    /// A reward is infinite or NaN as a 32-bit float.
    #[error("step {step}, lane {lane}: the reward is {reward}")]
    Reward {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
        /// The reward.
        reward: f64,
    },
    /// Repeating the same resets and actions gave other results.
    #[error(
        "step {step}, lane {lane}: {during} is not deterministic, the same random numbers and actions gave other \
         results; everything random must come from the given Rng"
    )]
    NotDeterministic {
        /// The operation.
        during: &'static str,
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// The results depend on the previous content of the buffers.
    #[error("step {step}, lane {lane}: {during} does not write all of its {array}")]
    NotWritten {
        /// The array: `obs`, `rewards`, `terminateds` or `truncateds`.
        array: &'static str,
        /// The operation.
        during: &'static str,
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// A lane's results depend on the other lanes.
    #[error("step {step}, lane {lane}: results depend on what the other lanes do, or on how many there are")]
    Coupled {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// Continuing from a snapshot gave other results than the original.
    #[error(
        "step {step}, lane {lane}: a lane that `restore` brought back continues differently; does `snapshot` write all of its state?"
    )]
    BadRestore {
        /// The lane.
        lane: usize,
        /// Steps before.
        step: u32,
    },
    /// An action was rejected, but lanes have moved.
    #[error("step {step}, lane {lane}: moved by actions that were refused for {action}")]
    MovedByRefused {
        /// The lane that moved.
        lane: usize,
        /// Steps before.
        step: u32,
        /// The rejected action.
        action: String,
    },
    /// The agents that are known beforehand are not in ascending order, each once.
    #[error("the agents that are known beforehand must be in ascending order, each once")]
    UnorderedAgents,
    /// Repeating the same resets and actions gave an agent other results.
    #[error(
        "step {step}, agent {agent}: {during} is not deterministic, the same random numbers and actions gave other \
         results; everything random must come from the given Rng"
    )]
    AgentNotDeterministic {
        /// The operation.
        during: &'static str,
        /// The agent, or `all` for what concerns all agents.
        agent: String,
        /// Steps before.
        step: u32,
    },
    /// A step after the episode's end was not rejected.
    #[error("step {step}: the episode is over, but the environment takes a step; that must be an error")]
    GoesOn {
        /// Steps before.
        step: u32,
    },
}

//! Environments with several agents, which may come and go, act in turn or all at once.

mod roster;
mod rows;
mod turn;

pub(super) use roster::Roster;
pub use rows::AgentRows;
pub(super) use turn::Debts;
pub use turn::{Outcome, Turn};

use super::{EnvError, EnvSpaces, Frame, Rng};
use crate::{ids::AgentId, prelude::*};

/// A single environment with several agents.
///
/// Deterministic: everything random comes from the given [`Rng`]. Whoever has an observation acts next, nobody else.
pub trait MultiAgentEnv: Send {
    /// Every agent that is known beforehand, ascending. An environment may bring up others later.
    #[doc(alias("get_agent_ids", "possible_agents"))]
    fn agents(&self) -> Vec<AgentId>;

    /// Spaces of an agent, of any that may ever appear; none for an agent that cannot.
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces>;

    /// Begins an episode: observations of the agents that act first. `turn` comes empty.
    ///
    /// # Errors
    /// [`EnvError::Failed`].
    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError>;

    /// Takes one step with the actions of the agents that had an observation. `turn` comes empty.
    ///
    /// # Errors
    /// [`EnvError::InvalidAction`]; [`EnvError::Failed`], also for a step after the episode's end.
    fn step(&mut self, actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError>;

    /// Draws the current state, and returns false if the environment has no picture.
    fn render(&self, _frame: &mut Frame) -> bool {
        false
    }

    /// The environment itself, for functions that know its type.
    fn as_any(&mut self) -> &mut dyn core::any::Any;
}

pub(super) fn register(_registry: &mut super::EnvRegistry) {}

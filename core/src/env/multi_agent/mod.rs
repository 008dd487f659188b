//! Environments with several agents, which may appear and leave, and act in turns or simultaneously.
//!
//! A custom one is a [`MultiAgentEnv`], registered by name; [`check_multi_agent_env`](super::check_multi_agent_env) checks
//! whether it keeps the contract:
//!
//! ```
//! use rollmesh_core::{
//!     column::DType,
//!     env::{
//!         EnvError, EnvSpaces, MultiAgentEnv, MultiAgentSpec, Rng, RowsRef, check_multi_agent_env,
//!         multi_agent::{AgentRows, Turn},
//!     },
//!     ids::AgentId,
//!     space::Space,
//! };
//!
//! /// Two players count to twenty in turns, one or two further each time. The player who reaches twenty wins.
//! #[derive(Default)]
//! struct Twenty {
//!     count: i64,
//!     player: u32,
//! }
//!
//! impl MultiAgentEnv for Twenty {
//!     fn agents(&self) -> Vec<AgentId> {
//!         vec![AgentId::Index(0), AgentId::Index(1)]
//!     }
//!     fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
//!         (*agent <= AgentId::Index(1)).then(|| EnvSpaces {
//!             observation: Space::Discrete { n: 21 },
//!             observation_type: DType::I64,
//!             action: Space::Discrete { n: 2 },
//!             action_type: DType::I64,
//!         })
//!     }
//!     fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
//!         *self = Self::default();
//!         turn.observe(&AgentId::Index(0), RowsRef::I64(&[0]));
//!         Ok(())
//!     }
//!     fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
//!         let Some([further @ (0 | 1)]) = actions.row_of::<i64>(&AgentId::Index(self.player)) else {
//!             return Err(EnvError::InvalidAction { lane: 0, action: "something else than 0 and 1".into() });
//!         };
//!         if self.count == 20 {
//!             return Err(EnvError::Failed("the episode is over".into()));
//!         }
//!         self.count = (self.count + further + 1).min(20);
//!         if self.count == 20 {
//!             turn.reward(&AgentId::Index(self.player), 1.0);
//!             turn.terminate_all();
//!         }
//!         self.player = 1 - self.player;
//!         // The other one observes it, and acts next.
//!         turn.observe(&AgentId::Index(self.player), RowsRef::I64(&[self.count]));
//!         Ok(())
//!     }
//!     fn as_any(&mut self) -> &mut dyn std::any::Any {
//!         self
//!     }
//! }
//!
//! check_multi_agent_env(&MultiAgentSpec::new("Twenty-v0", |_| Ok(Box::new(Twenty::default()))), 1)?;
//! # Ok::<(), rollmesh_core::env::CheckError>(())
//! ```

mod cart_pole;
mod codec;
mod matrix_games;
mod pictures;
mod roster;
mod rows;
mod traffic_grid;
mod turn;

pub use cart_pole::MultiAgentCartPole;
pub use codec::BadBytes;
pub use matrix_games::{RockPaperScissors, TwoStepGame};
pub use traffic_grid::MultiAgentTrafficGrid;

pub(super) use roster::Roster;
pub use rows::AgentRows;
pub(super) use turn::Debts;
pub use turn::{Outcome, Turn};

use core::ops::RangeInclusive;

use super::{EnvError, EnvRegistry, EnvSpaces, EnvState, Frame, MultiAgentSpec, Rng, check::rows::describe};
use crate::{
    column::Element as _,
    config::{Config, ConfigError},
    ids::AgentId,
    prelude::*,
};

/// A single environment with several agents.
///
/// Deterministic: all random numbers come from the given [`Rng`]. Exactly the agents with an observation act next.
pub trait MultiAgentEnv: Send {
    /// Returns all agents known beforehand, ascending. Others may appear later.
    #[doc(alias("get_agent_ids", "possible_agents"))]
    fn agents(&self) -> Vec<AgentId>;

    /// Returns the spaces of any agent that may ever appear; `None` for others.
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces>;

    /// Begins an episode: adds observations of the agents that act first. `turn` must be empty.
    ///
    /// # Errors
    /// [`EnvError::Failed`].
    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError>;

    /// Takes one step with the actions of the agents that had an observation. `turn` must be empty.
    ///
    /// # Errors
    /// [`EnvError::InvalidAction`]; [`EnvError::Failed`], also for a step after the episode's end.
    fn step(&mut self, actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError>;

    /// Returns how an open episode continues in another instance: by replaying its actions, unless the environment declares
    /// itself [opaque](EnvState::Opaque). Environments with several agents have no snapshots.
    fn state(&self) -> EnvState {
        EnvState::Replay
    }

    /// Renders the current state; returns false if the environment has no picture.
    fn render(&self, _frame: &mut Frame) -> bool {
        false
    }

    /// Returns the environment itself, for functions that know its type.
    fn as_any(&mut self) -> &mut dyn core::any::Any;
}

/// Registers the environments of this module.
pub(super) fn register(registry: &mut EnvRegistry) {
    registry.register_multi_agent(
        MultiAgentSpec::new("MultiAgentTrafficGrid-v0", |context| Ok(Box::new(MultiAgentTrafficGrid::new(context)?)))
            .with_max_episode_steps(200),
    );
    registry.register_multi_agent(
        MultiAgentSpec::new("MultiAgentCartPole-v1", |context| Ok(Box::new(MultiAgentCartPole::new(context)?)))
            .with_max_episode_steps(500),
    );
    fn game<E: MultiAgentEnv + Default + 'static>(name: &str) -> MultiAgentSpec {
        MultiAgentSpec::new(name, |context| {
            context.config.check_known(&[]).map_err(EnvError::Config)?;
            Ok(Box::new(E::default()))
        })
    }
    registry.register_multi_agent(game::<RockPaperScissors>("RockPaperScissors-v0"));
    registry.register_multi_agent(game::<TwoStepGame>("TwoStepGame-v0"));
}

/// Reads a numeric setting in a range.
fn count(config: &Config, name: &str, default: u32, range: RangeInclusive<u32>) -> Result<u32, EnvError> {
    let n = config.get::<u32>(name).map_err(EnvError::Config)?.unwrap_or(default);
    if range.contains(&n) {
        return Ok(n);
    }
    let reason = format!("{n} is not between {} and {}", range.start(), range.end());
    Err(EnvError::Config(ConfigError::BadValue { name: name.into(), reason }))
}

/// Returns an agent's action in `0..n`. If agents are requested in the order of the actions, `hint`, the number of the
/// request, avoids a search.
fn discrete_action(actions: &AgentRows, agent: &AgentId, n: u32, hint: usize) -> Result<i64, EnvError> {
    let row = actions.get_near(agent, hint);
    match row.and_then(i64::rows) {
        Some(&[action]) if (0..i64::from(n)).contains(&action) => Ok(action),
        _ => {
            let given = row.map_or_else(|| "nothing".into(), describe);
            Err(EnvError::InvalidAction { lane: 0, action: format!("{given} of agent {agent}") })
        }
    }
}

/// Returns the error for a step outside of an episode.
fn over() -> EnvError {
    EnvError::Failed("the episode is over, or none has begun: reset first".into())
}

#[cfg(test)]
mod tests;

//! An environment of PettingZoo in a host: several agents, which act simultaneously or sequentially.

use std::{any::Any, collections::BTreeMap};

use rollmesh_core::{
    env::{
        EnvContext, EnvError, EnvSpaces, EnvState, Frame, MultiAgentEnv, Rng,
        multi_agent::{AgentRows, Turn},
    },
    ids::AgentId,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{PythonSettings, lane_group::LaneGroup};
use crate::envs::remote::wire::{ChildRequest, SpacesOf};

/// A game of a host. An episode that moves is replayed if the run's fingerprint shows that the game is deterministic; one whose
/// process ended has failed.
pub(super) struct PythonGame {
    name: String,
    group: LaneGroup,
    is_deterministic: bool,
    spaces: BTreeMap<AgentId, EnvSpaces>,
}

/// The host's description of the game that it made.
#[derive(Deserialize)]
struct MadeGame {
    agents: Vec<SpacesOf>,
}

impl PythonGame {
    /// Makes a game.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`] without an interpreter, package or game of that name, [`EnvError::Failed`].
    pub(super) fn make(name: &str, context: &EnvContext, settings: &PythonSettings) -> Result<Self, EnvError> {
        let (group, made) = LaneGroup::make::<MadeGame>(name, context, 1, settings, 0)?;
        let is_deterministic = group.check_fingerprint(&context.config)?;
        let spaces = made.agents.into_iter().map(|SpacesOf { agent, spaces }| (agent, spaces)).collect();
        Ok(Self { name: name.into(), group, is_deterministic, spaces })
    }
}

impl MultiAgentEnv for PythonGame {
    fn agents(&self) -> Vec<AgentId> {
        self.spaces.keys().cloned().collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.spaces.get(agent).cloned()
    }

    fn state(&self) -> EnvState {
        if self.is_deterministic { EnvState::Replay } else { EnvState::Opaque }
    }

    /// Begins an episode, whose seed is the first number of the reset's random stream.
    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.group.revive::<IgnoredAny>()?;
        let seed = rng.next_u32();
        let body = |request: &mut Vec<u8>| request.extend(seed.to_le_bytes());
        self.group.ask(("for a reset", ChildRequest::Reset), 0, body, |reply| turn.read(reply).ok())
    }

    fn step(&mut self, actions: &AgentRows, _rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.group.revive::<IgnoredAny>()?.is_some() {
            return Err(EnvError::Failed(format!("{}: the process of its episode has ended", self.name)));
        }
        let body = |request: &mut Vec<u8>| {
            request.extend(1u32.to_le_bytes());
            actions.write(request);
        };
        self.group.ask(("for a step", ChildRequest::Step), 0, body, |reply| turn.read(reply).ok())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.group.render(0, frame)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

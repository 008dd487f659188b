//! Serialised state of a lane between two fragments, from which the rest of its episode follows.

use serde::{Deserialize, Serialize};

use super::{
    super::agent::{Agent, AgentIdentity, AgentState},
    EpisodeLane, LanePhase, Round,
};
use crate::{
    encoding,
    env::{BaseEnv, EnvError},
    episode::Episode,
    ids::{AgentId, SlotId},
    prelude::*,
    sampler::{SampleError, SlotState},
    view::TrajectoryStart,
};

/// The first byte of the encoding, which no [`SlotState`] begins with.
const VERSION: u8 = 4;

/// The state of a lane whose environment waits for actions.
#[derive(Serialize, Deserialize)]
struct EpisodicLaneState {
    episode: Episode,
    /// Number of the episode with which the environment began.
    env_episode: u32,
    /// Env steps of the slot.
    steps: u64,
    has_rows: bool,
    /// Agents in order of appearance, as in the episode.
    agents: Vec<AgentState>,
    /// Indices of the agents that act next.
    acting: Vec<usize>,
    /// See [`BaseEnv::snapshot`].
    env: Vec<u8>,
}

/// Returns the number of the open episode in a state of this slot, and its env steps; `None` for invalid bytes, as far as
/// they can be checked without environment and policies.
pub(crate) fn agent_position(bytes: &[u8], slot: SlotId) -> Option<(u32, u32)> {
    read(bytes, slot).map(|state| (state.episode.number(), state.episode.length()))
}

/// Returns the environment's part of a state of this slot: the number of its episode, and [its snapshot](BaseEnv::snapshot).
pub(crate) fn agent_env(bytes: &[u8], slot: SlotId) -> Option<(u32, Vec<u8>)> {
    read(bytes, slot).map(|state| (state.env_episode, state.env))
}

/// Decodes the state of a slot; `None` for invalid bytes.
fn read(bytes: &[u8], slot: SlotId) -> Option<EpisodicLaneState> {
    let state: EpisodicLaneState = encoding::decode(bytes.strip_prefix(&[VERSION])?)?;
    let EpisodicLaneState { episode, steps, agents, acting, .. } = &state;
    let names: BTreeSet<&AgentId> = episode.agents().iter().map(|record| &record.agent).collect_ordered();
    let places: BTreeSet<usize> = acting.iter().copied().collect_ordered();
    let rewards = episode.agents().iter().map(|record| record.reward).chain([episode.total_reward()]);
    let sound = episode.slot() == slot
        && episode.length() < SlotState::MAX_T
        && *steps <= u64::MAX / 2
        && names.len() == agents.len()
        && episode.agents().len() == agents.len()
        && places.len() == acting.len()
        && places.last().is_none_or(|last| *last < agents.len())
        && rewards.into_iter().all(f64::is_finite);
    sound.then_some(state)
}

impl EpisodeLane {
    /// Returns the state between two fragments; `None` in the middle of one, and for environments without snapshots.
    pub(in super::super) fn encode_state(&self, env: &dyn BaseEnv) -> Option<Vec<u8>> {
        if self.saved.is_some() {
            return self.saved.clone();
        }
        let is_between = self.open_env_steps == 0 && self.builder.env_steps == 0;
        let mut snapshot = Vec::new();
        if self.phase != LanePhase::Running || !self.waits || !is_between || !env.snapshot(self.env, &mut snapshot) {
            return None;
        }
        let agent = |(place, agent): (usize, &Agent)| agent.snapshot(self.acting.contains(&place));
        let state = EpisodicLaneState {
            episode: self.episode.clone(),
            env_episode: self.env_episode,
            steps: self.steps,
            has_rows: self.has_rows,
            agents: self.agents.iter().enumerate().map(agent).collect(),
            acting: self.acting.clone(),
            env: snapshot,
        };
        Some(encoding::encode_after(vec![VERSION], &state))
    }

    /// Restores an episode from an untrusted state. The lane must be new.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`] for a state that does not fit this slot; errors of the environment and of the policies.
    pub(in super::super) fn restore(&mut self, bytes: &[u8], round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let bad = || SampleError::Env(EnvError::BadSnapshot(bytes.len()));
        let EpisodicLaneState { episode, env_episode, steps, has_rows, agents, acting, env } =
            read(bytes, self.slot).ok_or_else(bad)?;
        let mut acts = vec![false; agents.len()];
        for place in &acting {
            acts.get_mut(*place).into_iter().for_each(|acts| *acts = true);
        }
        round.env.restore(self.env, env_episode, &env, &mut u32::MAX.clone())?;
        self.agents.clear();
        for (place, (record, state)) in episode.agents().iter().zip(agents).enumerate() {
            let unknown = || EnvError::UnknownAgent { env: self.env, agent: record.agent.clone() };
            let spaces = round.env.spaces(&record.agent).ok_or_else(unknown)?;
            let who = AgentIdentity { id: record.agent.clone(), index: place, policy: record.policy.clone(), spaces };
            let mut agent = Agent::of(who, round)?;
            let start = TrajectoryStart { eps_id: episode.id(), agent_index: place as i64, env_id: 0, t: 0 };
            if !agent.restore(state, start, acts.get(place).copied().unwrap_or(false)) {
                return Err(bad());
            }
            self.agents.push(agent);
        }
        self.next_episode = episode.number().wrapping_add(1);
        (self.episode, self.env_episode) = (episode.moved_to(self.env), env_episode);
        (self.steps, self.first_open_step, self.has_rows, self.acting) = (steps, steps, has_rows, acting);
        (self.phase, self.waits, self.answered) = (LanePhase::Running, true, false);
        Ok(())
    }
}

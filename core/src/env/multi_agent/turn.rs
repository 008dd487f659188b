//! What a reset or a step of a multi-agent environment says.

use super::AgentRows;
use crate::{env::RowsRef, ids::AgentId, prelude::*};

/// News of one environment: observations of the agents that act next, and what the last step brought to whom.
///
/// An environment fills it from empty at every reset and step. Only agents with an observation act next. Agents
/// without may get rewards; those wait for the agent's next observation or the end of the episode.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    obs: AgentRows,
    outcomes: Vec<(AgentId, Outcome)>,
    infos: Vec<(AgentId, Vec<u8>)>,
    common_info: Option<Vec<u8>>,
    all_terminated: bool,
    all_truncated: bool,
}

/// What a step brought to one agent, besides the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Reward.
    pub reward: f64,
    /// The agent reached a terminal state and does not come back in this episode.
    pub terminated: bool,
    /// The agent was taken out for another reason and does not come back in this episode.
    pub truncated: bool,
}

impl Turn {
    /// Nothing new.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.obs.clear();
        self.outcomes.clear();
        self.infos.clear();
        self.common_info = None;
        (self.all_terminated, self.all_truncated) = (false, false);
    }

    /// The agent observes this and acts next, unless its episode is over.
    pub fn observe(&mut self, agent: &AgentId, obs: RowsRef<'_>) {
        self.obs.set(agent, obs);
    }

    /// The agent gets a reward, on top of what this turn gave it before.
    pub fn reward(&mut self, agent: &AgentId, reward: f64) {
        self.outcome_mut(agent).reward += reward;
    }

    /// The agent has reached a terminal state.
    pub fn terminate(&mut self, agent: &AgentId) {
        self.outcome_mut(agent).terminated = true;
    }

    /// The agent is taken out for another reason.
    pub fn truncate(&mut self, agent: &AgentId) {
        self.outcome_mut(agent).truncated = true;
    }

    /// Something that is not for learning, in bytes that only reader and writer know. It reaches the column `infos`
    /// of the agent's next row.
    pub fn info(&mut self, agent: &AgentId, info: impl Into<Vec<u8>>) {
        self.infos.push((agent.clone(), info.into()));
    }

    /// As [`info`](Self::info), about the environment as a whole.
    #[doc(alias = "__common__")]
    pub fn common_info(&mut self, info: impl Into<Vec<u8>>) {
        self.common_info = Some(info.into());
    }

    /// The episode has reached a terminal state, for all agents.
    #[doc(alias = "__all__")]
    pub fn terminate_all(&mut self) {
        self.all_terminated = true;
    }

    /// The episode ends for another reason, for all agents.
    #[doc(alias = "__all__")]
    pub fn truncate_all(&mut self) {
        self.all_truncated = true;
    }

    /// Observations of the agents that have one.
    #[must_use]
    pub fn obs(&self) -> &AgentRows {
        &self.obs
    }

    /// Observations, to be rewritten by an observation function.
    pub fn obs_mut(&mut self) -> &mut AgentRows {
        &mut self.obs
    }

    /// What the step brought to an agent; nothing if it said nothing.
    #[must_use]
    pub fn outcome(&self, agent: &AgentId) -> Outcome {
        self.outcomes.iter().find(|(other, _)| other == agent).map_or_else(Outcome::default, |(_, outcome)| *outcome)
    }

    /// What the step brought to all agents that it said something about, in that order.
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = (&AgentId, Outcome)> {
        self.outcomes.iter().map(|(agent, outcome)| (agent, *outcome))
    }

    /// An agent's info, if it has one.
    #[must_use]
    pub fn info_of(&self, agent: &AgentId) -> Option<&[u8]> {
        self.infos.iter().rev().find(|(other, _)| other == agent).map(|(_, info)| info.as_slice())
    }

    /// The info about the environment as a whole, if there is one.
    #[must_use]
    pub fn info_of_all(&self) -> Option<&[u8]> {
        self.common_info.as_deref()
    }

    /// True once the episode has ended by a terminal state.
    #[must_use]
    pub fn all_terminated(&self) -> bool {
        self.all_terminated
    }

    /// True once the episode has ended for another reason.
    #[must_use]
    pub fn all_truncated(&self) -> bool {
        self.all_truncated
    }

    /// True once the episode has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.all_terminated || self.all_truncated
    }

    fn outcome_mut(&mut self, agent: &AgentId) -> &mut Outcome {
        let at = self.outcomes.iter().position(|(other, _)| other == agent).unwrap_or_else(|| {
            self.outcomes.push((agent.clone(), Outcome::default()));
            self.outcomes.len() - 1
        });
        &mut self.outcomes[at].1
    }
}

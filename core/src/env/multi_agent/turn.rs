//! The result of a reset or a step of a multi-agent environment.

use super::{AgentRows, roster::Roster};
use crate::{env::RowsRef, ids::AgentId, prelude::*};

/// A turn of one environment: observations of the agents that act next, and the last step's results by agent.
///
/// An environment fills an empty one at every reset and step. Only agents with an observation act next. Agents without may
/// get rewards, which are kept until the agent's next observation or the end of the episode.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub(super) obs: AgentRows,
    pub(super) outcomes: Roster<Outcome>,
    pub(super) infos: Roster<Vec<u8>>,
    pub(super) common_info: Option<Vec<u8>>,
    pub(super) all_terminated: bool,
    pub(super) all_truncated: bool,
}

/// The result of a step for one agent, without the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Reward.
    pub reward: f64,
    /// The agent reached a terminal state and does not return in this episode.
    pub terminated: bool,
    /// The agent was removed for another reason and does not return in this episode.
    pub truncated: bool,
}

impl Turn {
    /// Creates an empty turn.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Clears the turn and keeps the memory.
    pub fn clear(&mut self) {
        self.obs.clear();
        self.outcomes.clear();
        self.infos.clear();
        self.common_info = None;
        (self.all_terminated, self.all_truncated) = (false, false);
    }

    /// Sets an agent's observation; the agent acts next, unless its episode is over.
    pub fn observe(&mut self, agent: &AgentId, obs: RowsRef<'_>) {
        self.obs.set(agent, obs);
    }

    /// Adds to an agent's reward of this turn.
    pub fn reward(&mut self, agent: &AgentId, reward: f64) {
        self.outcomes.entry(agent).reward += reward;
    }

    /// Records that the agent has reached a terminal state.
    pub fn terminate(&mut self, agent: &AgentId) {
        self.outcomes.entry(agent).terminated = true;
    }

    /// Records that the agent is removed for another reason.
    pub fn truncate(&mut self, agent: &AgentId) {
        self.outcomes.entry(agent).truncated = true;
    }

    /// Sets an agent's info: opaque bytes that are not used for learning. They become part of the column `infos` of the
    /// agent's next row; an earlier one that was not read is replaced.
    pub fn info(&mut self, agent: &AgentId, info: impl Into<Vec<u8>>) {
        *self.infos.entry(agent) = info.into();
    }

    /// Sets the info of the environment as a whole, see [`info`](Self::info).
    #[doc(alias = "__common__")]
    pub fn common_info(&mut self, info: impl Into<Vec<u8>>) {
        self.common_info = Some(info.into());
    }

    /// Records that the episode has reached a terminal state, for all agents.
    #[doc(alias = "__all__")]
    pub fn terminate_all(&mut self) {
        self.all_terminated = true;
    }

    /// Records that the episode ends for another reason, for all agents.
    #[doc(alias = "__all__")]
    pub fn truncate_all(&mut self) {
        self.all_truncated = true;
    }

    /// Returns the observations.
    #[must_use]
    pub fn obs(&self) -> &AgentRows {
        &self.obs
    }

    /// Returns the observations mutably, for an observation function.
    pub fn obs_mut(&mut self) -> &mut AgentRows {
        &mut self.obs
    }

    /// Returns the step's result for an agent; the default one if the step did not mention it.
    #[must_use]
    pub fn outcome(&self, agent: &AgentId) -> Outcome {
        self.outcome_near(agent, 0)
    }

    /// Does the same as [`outcome`](Self::outcome), without a search if the agent was added as number `hint`.
    pub(crate) fn outcome_near(&self, agent: &AgentId, hint: usize) -> Outcome {
        self.outcomes.get(agent, hint).copied().unwrap_or_default()
    }

    /// Iterates over the step's results for all agents that it mentioned, in that order.
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = (&AgentId, Outcome)> {
        self.outcomes.iter().map(|(agent, outcome)| (agent, *outcome))
    }

    /// Returns an agent's info, if it has one.
    #[must_use]
    pub fn info_of(&self, agent: &AgentId) -> Option<&[u8]> {
        self.infos.get(agent, 0).map(Vec::as_slice)
    }

    /// Returns the info of the environment as a whole, if there is one.
    #[must_use]
    pub fn info_of_all(&self) -> Option<&[u8]> {
        self.common_info.as_deref()
    }

    /// Iterates over the agents with an info, in the order in which they were added.
    pub fn infos(&self) -> impl ExactSizeIterator<Item = (&AgentId, &[u8])> {
        self.infos.iter().map(|(agent, info)| (agent, info.as_slice()))
    }

    /// Returns true once the episode has ended by a terminal state.
    #[must_use]
    pub fn all_terminated(&self) -> bool {
        self.all_terminated
    }

    /// Returns true once the episode has ended for another reason.
    #[must_use]
    pub fn all_truncated(&self) -> bool {
        self.all_truncated
    }

    /// Returns true once the episode has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.all_terminated || self.all_truncated
    }

    /// Moves results of agents without an observation to `debts`, and delivers those of agents that have one; of all agents
    /// at the episode's end. Rewards add up, flags stay set, the latest info replaces earlier ones.
    pub(crate) fn settle(&mut self, debts: &mut Debts) {
        let (over, obs) = (self.is_over(), &self.obs);
        let paid = |hint: usize, agent: &AgentId| over || obs.get_near(agent, hint).is_some();
        debts.outcomes.take_where(paid, |agent, outcome| self.outcomes.entry(agent).add(outcome));
        debts.infos.take_where(paid, |agent, info| {
            if !self.infos.contains(agent, 0) {
                *self.infos.entry(agent) = info;
            }
        });
        let owed = |hint: usize, agent: &AgentId| !paid(hint, agent);
        self.outcomes.take_where(owed, |agent, outcome| debts.outcomes.entry(agent).add(outcome));
        self.infos.take_where(owed, |agent, info| *debts.infos.entry(agent) = info);
    }

    /// Delivers all debts, since the caller ends the episode and the environment has not.
    pub(crate) fn pay_out(&mut self, debts: &mut Debts) {
        debts.outcomes.take_where(|_, _| true, |agent, outcome| self.outcomes.entry(agent).add(outcome));
        debts.infos.take_where(|_, _| true, |agent, info| *self.infos.entry(agent) = info);
    }
}

/// Results of agents that had no observation at the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debts {
    outcomes: Roster<Outcome>,
    infos: Roster<Vec<u8>>,
}

impl Debts {
    pub(crate) fn clear(&mut self) {
        self.outcomes.clear();
        self.infos.clear();
    }

    /// Returns an agent's debts.
    pub(in crate::env) fn outcome(&self, agent: &AgentId) -> Outcome {
        self.outcomes.get(agent, 0).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outcomes.len() == 0 && self.infos.len() == 0
    }

    /// Returns the rewards that are due.
    pub(crate) fn rewards(&self) -> impl Iterator<Item = (&AgentId, f64)> {
        self.outcomes.iter().map(|(agent, debt)| (agent, debt.reward))
    }
}

impl Outcome {
    /// Returns whether the agent's part of the episode is over.
    #[must_use]
    pub const fn is_done(self) -> bool {
        self.terminated || self.truncated
    }

    fn add(&mut self, later: Self) {
        self.reward += later.reward;
        self.terminated |= later.terminated;
        self.truncated |= later.truncated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(observing: &[u32], rewards: &[(u32, f64)]) -> Turn {
        let mut turn = Turn::new();
        observing.iter().for_each(|agent| turn.observe(&AgentId::Index(*agent), RowsRef::I64(&[0])));
        rewards.iter().for_each(|(agent, reward)| turn.reward(&AgentId::Index(*agent), *reward));
        turn
    }

    #[test]
    fn rewards_of_a_turn_add_up() {
        let turn = turn(&[], &[(1, 2.0), (0, 1.0), (1, 0.5)]);
        let outcomes: Vec<_> = turn.outcomes().map(|(agent, outcome)| (agent.to_string(), outcome.reward)).collect();
        assert_eq!(outcomes, [("1".into(), 2.5), ("0".into(), 1.0)]);
        assert_eq!(turn.outcome(&AgentId::Index(7)), Outcome::default());
    }

    #[test]
    fn silent_agents_are_paid_with_their_next_observation() {
        let [zero, one, two] = [0, 1, 2].map(AgentId::Index);
        let mut debts = Debts::default();
        let mut first = turn(&[0], &[(0, 1.0), (1, 2.0), (2, 3.0)]);
        first.truncate(&two);
        first.info(&one, *b"old");
        first.info(&one, *b"new");
        first.settle(&mut debts);
        assert!(first.outcomes().map(|(agent, _)| agent).eq([&zero]) && first.info_of(&one).is_none());
        let mut second = turn(&[1], &[(1, 0.25), (2, 0.5)]);
        second.settle(&mut debts);
        assert!(second.outcomes().map(|(agent, _)| agent).eq([&one]));
        assert_eq!((second.outcome(&one).reward, second.info_of(&one)), (2.25, Some(&b"new"[..])));
        let mut last = turn(&[0], &[(0, 1.0)]);
        last.terminate_all();
        last.settle(&mut debts);
        assert_eq!(last.outcome(&two), Outcome { reward: 3.5, terminated: false, truncated: true });
        assert!(last.is_over() && last.all_terminated() && !last.all_truncated());
        assert_eq!(debts.outcomes.len(), 0);
    }

    #[test]
    fn cleared_turn_is_empty() {
        let mut turn = turn(&[0], &[(0, 1.0)]);
        turn.truncate_all();
        turn.info(&AgentId::Index(0), *b"x");
        turn.common_info(*b"y");
        assert!(turn.all_truncated() && turn.info_of_all() == Some(b"y"));
        turn.clear();
        assert!(turn.obs().is_empty() && turn.outcomes().len() == 0 && !turn.is_over());
        assert!(turn.info_of(&AgentId::Index(0)).is_none() && turn.info_of_all().is_none());
    }
}

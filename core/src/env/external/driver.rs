//! The drivers' side.

use super::{
    ExternalEpisodes, ExternalError,
    lane::{DrivenLane, Request, TurnKind},
};
use crate::{
    env::{
        EnvSpaces,
        base::rules::check_obs,
        check::rows,
        multi_agent::{AgentRows, Outcome},
    },
    ids::AgentId,
    prelude::*,
};

/// Info sent with every observation of an episode that is not training data.
const NO_TRAINING: &[u8] = br#"{"training_enabled": false}"#;

impl ExternalEpisodes {
    /// Begins an episode and returns its lane. `training_enabled: false` keeps its rows out of batches; it still counts
    /// as steps and in metrics.
    ///
    /// # Errors
    /// [`ExternalError::DuplicateEpisode`], [`ExternalError::TooManyEpisodes`], [`ExternalError::Stopped`].
    pub fn start_episode(&mut self, id: u64, training_enabled: bool) -> Result<usize, ExternalError> {
        if self.stopped {
            return Err(ExternalError::Stopped);
        }
        if self.open.contains_key(&id) {
            return Err(ExternalError::DuplicateEpisode(id));
        }
        let full = ExternalError::TooManyEpisodes(self.lanes.len());
        let at = self.free.pop_first().ok_or(full)?;
        self.open.insert(id, at);
        self.begun = self.begun.wrapping_add(1);
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.begin(id, self.begun, training_enabled);
        }
        Ok(at)
    }

    /// Sends observations and requests their actions, to be [taken](Self::take_actions) later.
    ///
    /// # Errors
    /// [`ExternalError`].
    #[doc(alias = "get_action")]
    pub fn request_actions(&mut self, id: u64, obs: &AgentRows) -> Result<(), ExternalError> {
        self.turn(id, obs, Said::Asked)
    }

    /// Moves the requested actions into `actions`, if they are available; else returns false and leaves `actions` unchanged.
    /// Agents with a last observation have none.
    ///
    /// # Errors
    /// [`ExternalError::NothingAsked`], or the error of an episode that is not open.
    pub fn take_actions(&mut self, id: u64, actions: &mut AgentRows) -> Result<bool, ExternalError> {
        let (_, lane) = self.lane_mut(id)?;
        let open = lane.open.as_mut().ok_or(ExternalError::UnknownEpisode(id))?;
        match open.request {
            Request::None => Err(ExternalError::NothingAsked(id)),
            Request::Made => Ok(false),
            Request::Answered => {
                open.request = Request::None;
                core::mem::swap(&mut lane.answer, actions);
                Ok(true)
            }
        }
    }

    /// Sends observations with the actions that the agents take themselves: one action for each that acts. Policies are
    /// evaluated nevertheless; these actions are the ones recorded, unchanged.
    ///
    /// # Errors
    /// [`ExternalError`].
    pub fn log_actions(&mut self, id: u64, obs: &AgentRows, actions: &AgentRows) -> Result<(), ExternalError> {
        self.turn(id, obs, Said::Logged(actions))
    }

    /// Logs an agent's results since the latest observations. Rewards add up and flags stay set until the agent's next
    /// observation; one that is terminated or truncated has its last observation then. The latest info replaces earlier
    /// ones.
    ///
    /// # Errors
    /// [`ExternalError`]; [`ExternalError::EarlyReturns`] before the first observations.
    pub fn log_returns(
        &mut self,
        id: u64,
        agent: &AgentId,
        outcome: Outcome,
        info: Option<&[u8]>,
    ) -> Result<(), ExternalError> {
        self.check_returns(id, agent, outcome)?;
        let (_, lane) = self.lane_mut(id)?;
        lane.next.reward(agent, outcome.reward);
        if outcome.terminated {
            lane.next.terminate(agent);
        }
        if outcome.truncated {
            lane.next.truncate(agent);
        }
        if let Some(info) = info {
            lane.next.info(agent, info);
        }
        Ok(())
    }

    /// Checks whether [`log_returns`](Self::log_returns) would accept this, for callers that log several or none.
    ///
    /// # Errors
    /// As there.
    pub fn check_returns(&self, id: u64, agent: &AgentId, outcome: Outcome) -> Result<(), ExternalError> {
        let lane = self.lanes.get(self.lane_of(id)?).ok_or(ExternalError::UnknownEpisode(id))?;
        if !self.agents.contains_key(agent) {
            return Err(ExternalError::UnknownAgent { id, agent: agent.clone() });
        }
        if !lane.open.as_ref().is_some_and(|open| open.observed) {
            return Err(ExternalError::EarlyReturns(id));
        }
        let sum = (lane.next.outcome(agent).reward + outcome.reward) + lane.debts.outcome(agent).reward;
        if ![outcome.reward, sum].iter().all(|reward| (*reward as f32).is_finite()) {
            let reward = if outcome.reward.is_finite() { sum } else { outcome.reward };
            return Err(ExternalError::BadReward { id, agent: agent.clone(), reward: reward.to_string() });
        }
        Ok(())
    }

    /// Ends an episode, with the agents' last observations: by a terminal state, or for another reason if `truncated`. An
    /// episode without any earlier observation is dropped.
    ///
    /// # Errors
    /// [`ExternalError`].
    pub fn end_episode(&mut self, id: u64, obs: &AgentRows, truncated: bool) -> Result<(), ExternalError> {
        self.turn(id, obs, Said::Ended { truncated })?;
        self.close(id, ExternalError::FinishedEpisode(id));
        Ok(())
    }

    /// Abandons an episode in any state, since its driver has exited. Rows that the sampler has not read are lost.
    ///
    /// # Errors
    /// The error of an episode that is not open.
    pub fn abandon(&mut self, id: u64) -> Result<(), ExternalError> {
        let (_, lane) = self.lane_mut(id)?;
        if lane.open.as_ref().is_some_and(|open| open.observed) {
            lane.next.clear();
            lane.push(TurnKind::Abandoned, None);
        }
        self.close(id, ExternalError::FinishedEpisode(id));
        Ok(())
    }

    /// Checks a turn and queues it.
    fn turn(&mut self, id: u64, obs: &AgentRows, said: Said<'_>) -> Result<(), ExternalError> {
        let at = self.lane_of(id)?;
        let lane = self.lanes.get_mut(at).ok_or(ExternalError::UnknownEpisode(id))?;
        let open = lane.open.as_ref().ok_or(ExternalError::UnknownEpisode(id))?;
        if open.request != Request::None {
            return Err(ExternalError::AwaitsActions(id));
        }
        let ends = matches!(said, Said::Ended { .. });
        if obs.is_empty() && !ends {
            return Err(ExternalError::NoObservation(id));
        }
        let all_terminated = matches!(said, Said::Ended { truncated: false });
        lane.check_obs(id, obs, all_terminated, &self.agents)?;
        if let Said::Logged(actions) = said {
            lane.check_actions(id, obs, actions, &self.agents)?;
        }
        if ends && !open.observed {
            return Ok(());
        }
        let turns = lane.queue.len();
        if turns >= Self::MAX_QUEUED_TURNS {
            return Err(ExternalError::QueueFull { id, turns });
        }
        lane.say(obs, said);
        Ok(())
    }
}

/// The content of a turn, without observations.
#[derive(Clone, Copy)]
enum Said<'a> {
    Asked,
    Logged(&'a AgentRows),
    Ended { truncated: bool },
}

impl DrivenLane {
    fn check_obs(
        &self,
        id: u64,
        obs: &AgentRows,
        all_terminated: bool,
        agents: &BTreeMap<AgentId, EnvSpaces>,
    ) -> Result<(), ExternalError> {
        for (hint, (agent, row)) in obs.iter().enumerate() {
            let spaces = agents.get(agent).ok_or_else(|| ExternalError::UnknownAgent { id, agent: agent.clone() })?;
            if self.done.contains(agent, hint) {
                return Err(ExternalError::AgentDone { id, agent: agent.clone() });
            }
            let terminal = all_terminated || self.outcome(agent).terminated;
            check_obs(spaces, row, terminal).map_err(|reason| ExternalError::BadObservation {
                id,
                agent: agent.clone(),
                reason,
            })?;
        }
        Ok(())
    }

    /// Checks that exactly the agents that have to act do, with valid actions.
    fn check_actions(
        &self,
        id: u64,
        obs: &AgentRows,
        actions: &AgentRows,
        agents: &BTreeMap<AgentId, EnvSpaces>,
    ) -> Result<(), ExternalError> {
        let bad = |agent: &AgentId, reason: String| Err(ExternalError::BadAction { id, agent: agent.clone(), reason });
        for (hint, (agent, row)) in actions.iter().enumerate() {
            if obs.get_near(agent, hint).is_none() || self.outcome(agent).is_done() {
                return bad(agent, "it cannot act, it has no observation to act on".into());
            }
            let Some(EnvSpaces { action: space, action_type, .. }) = agents.get(agent) else { continue };
            if row.dtype() != *action_type {
                return bad(agent, format!("its action is a row of {}, not of {action_type}", row.dtype()));
            }
            if !rows::contains(space, row).unwrap_or(false) {
                return bad(agent, format!("its action {} is not in {space}", rows::describe(row)));
            }
        }
        let acts = |agent: &AgentId| !self.outcome(agent).is_done();
        let missing =
            |(hint, (agent, _)): &(usize, (&AgentId, _))| acts(agent) && actions.get_near(agent, *hint).is_none();
        match obs.iter().enumerate().find(missing) {
            Some((_, (agent, _))) => bad(agent, "its action is missing".into()),
            None => Ok(()),
        }
    }

    /// Returns what an agent gets with its next observation.
    fn outcome(&self, agent: &AgentId) -> Outcome {
        let (next, owed) = (self.next.outcome(agent), self.debts.outcome(agent));
        Outcome {
            reward: next.reward + owed.reward,
            terminated: next.terminated || owed.terminated,
            truncated: next.truncated || owed.truncated,
        }
    }

    /// Completes the next turn with these observations.
    fn say(&mut self, obs: &AgentRows, said: Said<'_>) {
        for (agent, row) in obs.iter() {
            self.next.observe(agent, row);
            self.seen.entry(agent);
        }
        match said {
            Said::Asked | Said::Logged(_) => {}
            Said::Ended { truncated: false } => self.next.terminate_all(),
            Said::Ended { truncated: true } => self.next.truncate_all(),
        }
        self.next.settle(&mut self.debts);
        for (agent, _) in self.next.outcomes().filter(|(_, outcome)| outcome.is_done()) {
            self.done.entry(agent);
        }
        if self.open.as_ref().is_some_and(|open| !open.training_enabled) {
            for (agent, ()) in self.seen.iter() {
                self.next.info(agent, NO_TRAINING);
            }
        }
        match said {
            Said::Asked => self.push(TurnKind::Asked, None),
            Said::Logged(actions) => self.push(TurnKind::Logged, Some(actions)),
            Said::Ended { .. } => self.push(TurnKind::Ended, None),
        }
    }
}

//! Counters of one sub-environment during an evaluation.

use super::{EvaluatedEpisode, EvaluationRequest};
use crate::{env::EnvError, episode::Episode, ids::AgentId, prelude::*};

/// A sub-environment's open episode, and its remaining share of the evaluation.
#[derive(Default)]
pub(super) struct EvaluationLane {
    /// Whether its steps no longer count. It still takes steps if its episode continues, since environments step together.
    pub(super) is_resting: bool,
    /// Counted steps of the open episode.
    t: u32,
    episode_return: f64,
    /// Counted steps of the evaluation.
    steps: u32,
    /// Number of agents of the open episode whose spaces were checked.
    pub(super) known_agents: usize,
    episodes_left: Option<u32>,
}

impl EvaluationLane {
    /// Begins an evaluation, with this many episodes for the lane.
    pub(super) fn of(episodes_left: Option<u32>, max_steps: u32) -> Self {
        let mut lane = Self { episodes_left, ..Self::default() };
        lane.stop_if_done(max_steps);
        lane
    }

    /// Resets the counters of the open episode, which has ended or was lost.
    pub(super) fn close_episode(&mut self) {
        (self.t, self.episode_return, self.known_agents) = (0, 0.0, 0);
    }

    /// Counts a step.
    pub(super) fn add(&mut self, episode: &Episode, reward: f64) -> Result<(), EnvError> {
        self.t = self.t.saturating_add(1);
        self.steps = self.steps.saturating_add(1);
        self.episode_return += reward;
        if self.episode_return.is_finite() {
            return Ok(());
        }
        let agent = episode.agents().first().map_or(AgentId::SINGLE, |agent| agent.agent.clone());
        Err(EnvError::BadReward { env: episode.env(), agent, reward: format!("{reward}, too much for a return") })
    }

    /// Ends the episode.
    pub(super) fn end(&mut self, episode: &Episode, terminated: bool) -> EvaluatedEpisode {
        let (len, episode_return) = (self.t, self.episode_return);
        self.episodes_left = self.episodes_left.map(|left| left.saturating_sub(1));
        self.close_episode();
        let env = u32::try_from(episode.env()).unwrap_or(u32::MAX);
        EvaluatedEpisode { env, episode: episode.number(), episode_return, len, terminated }
    }

    /// Stops counting once the lane's share is complete.
    pub(super) fn stop_if_done(&mut self, max_steps: u32) {
        self.is_resting = self.steps >= max_steps || self.episodes_left == Some(0);
    }

    /// Returns whether no episode after the open one counts, if the open one takes another step.
    pub(super) fn is_at_last(&self, request: &EvaluationRequest) -> bool {
        let is_short = self.steps.saturating_add(1) >= request.max_steps;
        self.is_resting || is_short || self.episodes_left == Some(1) || request.break_when_any_done
    }

    /// Returns the return so far of an episode that has begun and not ended.
    pub(super) fn unfinished_return(&self) -> Option<f64> {
        (self.t > 0).then_some(self.episode_return)
    }
}

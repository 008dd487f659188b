//! One sub-environment in an evaluation.

use super::EvaluatedEpisode;
use crate::{
    env::{EnvError, multi_agent::Turn},
    episode::Episode,
    ids::{AgentId, PolicyId, SlotId},
    prelude::*,
};

/// What a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A reset.
    Over,
    /// The first observations of its episode.
    Beginning,
    /// Actions, for the agents of its turn.
    Acting,
    /// News of its step.
    Stepping,
}

/// A sub-environment's episode and what is counted of it.
pub(super) struct Lane {
    env: usize,
    pub(super) phase: Phase,
    /// The latest news.
    pub(super) turn: Turn,
    /// Agents of the episode, in the order in which they appeared.
    pub(super) agents: Vec<Agent>,
    /// The same, as the mapping of policies sees them.
    pub(super) record: Episode,
    /// Its steps are no longer counted. It still takes them if its episode goes on: environments wait for all.
    pub(super) is_resting: bool,
    /// Not reset since the evaluation began. All lanes are, once, so that none is in the middle of an earlier one.
    is_fresh: bool,
    episode: u32,
    t: u32,
    episode_return: f64,
    /// Of the evaluation.
    steps: u32,
    episodes_left: Option<u32>,
}

/// An agent's memory within an episode.
pub(super) struct Agent {
    pub(super) id: AgentId,
    /// Its policy, until the episode ends.
    pub(super) policy: PolicyId,
    /// Recurrent states after its latest step; empty at the beginning.
    pub(super) state: Vec<f32>,
}

impl Lane {
    pub(super) fn new(env: usize) -> Self {
        Self {
            env,
            phase: Phase::Over,
            turn: Turn::new(),
            agents: Vec::new(),
            record: Episode::default(),
            is_resting: true,
            is_fresh: true,
            episode: 0,
            t: 0,
            episode_return: 0.0,
            steps: 0,
            episodes_left: None,
        }
    }

    /// An evaluation begins, with so many episodes for this lane.
    pub(super) fn begin(&mut self, episodes: Option<u32>, max_steps: u32) {
        self.phase = Phase::Over;
        self.is_fresh = true;
        self.turn.clear();
        (self.episode, self.t, self.episode_return, self.steps) = (0, 0, 0.0, 0);
        self.episodes_left = episodes;
        self.rest_if_done(max_steps);
    }

    pub(super) fn episode(&self) -> u32 {
        self.episode
    }

    pub(super) fn t(&self) -> u32 {
        self.t
    }

    pub(super) fn wants_reset(&self) -> bool {
        self.phase == Phase::Over && (self.is_fresh || !self.is_resting)
    }

    pub(super) fn waits_for_news(&self) -> bool {
        matches!(self.phase, Phase::Beginning | Phase::Stepping)
    }

    /// The episode has its first observations.
    pub(super) fn begun(&mut self) {
        self.phase = Phase::Acting;
        self.is_fresh = false;
        self.agents.clear();
        self.record = Episode::new(self.env, SlotId(u32::try_from(self.env).unwrap_or(u32::MAX)), self.episode);
        (self.t, self.episode_return) = (0, 0.0);
    }

    /// The episode is lost.
    pub(super) fn lost(&mut self) {
        self.phase = Phase::Over;
        (self.t, self.episode_return) = (0, 0.0);
        self.episode = self.episode.wrapping_add(1);
    }

    /// The episode has taken a step; `is_cut` if it ends here by a limit. The episode, if it has ended and counts.
    pub(super) fn stepped(
        &mut self,
        reward: f64,
        is_cut: bool,
        max_steps: u32,
    ) -> Result<Option<EvaluatedEpisode>, EnvError> {
        let is_over = self.turn.is_over();
        let mut ended = None;
        if !self.is_resting {
            self.t = self.t.saturating_add(1);
            self.steps = self.steps.saturating_add(1);
            self.episode_return += reward;
            self.check_return(reward)?;
            if is_over || is_cut {
                ended = Some(self.end());
            }
            self.rest_if_done(max_steps);
        }
        // One that was cut waits for actions, unless its next episode begins.
        self.phase = if is_over || (is_cut && !self.is_resting) { Phase::Over } else { Phase::Acting };
        Ok(ended)
    }

    fn check_return(&self, reward: f64) -> Result<(), EnvError> {
        if self.episode_return.is_finite() {
            return Ok(());
        }
        let agent = self.turn.outcomes().next().map_or(AgentId::SINGLE, |(agent, _)| agent.clone());
        Err(EnvError::BadReward { env: self.env, agent, reward: format!("{reward}, too much for a return") })
    }

    /// The episode ends, and the next one has the next number.
    fn end(&mut self) -> EvaluatedEpisode {
        let ended = EvaluatedEpisode {
            env: u32::try_from(self.env).unwrap_or(u32::MAX),
            episode: self.episode,
            episode_return: self.episode_return,
            len: self.t,
            terminated: self.turn.all_terminated(),
        };
        self.episodes_left = self.episodes_left.map(|left| left.saturating_sub(1));
        self.lost();
        ended
    }

    /// Counts no longer what is beyond its share.
    fn rest_if_done(&mut self, max_steps: u32) {
        self.is_resting = self.steps >= max_steps || self.episodes_left == Some(0);
    }

    /// What an episode that has begun and not ended has brought so far.
    pub(super) fn unfinished_return(&self) -> Option<f64> {
        (self.t > 0).then_some(self.episode_return)
    }
}

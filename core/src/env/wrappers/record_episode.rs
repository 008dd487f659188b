//! Recording of episodes.

use super::same_rows;
use crate::{
    env::{Env, EnvError, EnvState, Rng, Step},
    prelude::*,
};

/// A recorded episode, step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording<O, A> {
    /// Observations, row by row: the one before the first step, and one after every step.
    pub observations: Vec<O>,
    /// Actions, row by row.
    pub actions: Vec<A>,
    /// Reward of every step.
    pub rewards: Vec<f64>,
    /// Whether the last step reached a terminal state.
    pub terminated: bool,
    /// Whether the last step truncated the episode.
    pub truncated: bool,
    /// Whether the recording begins with a reset; otherwise with a snapshot, in the middle of an episode.
    pub from_reset: bool,
    /// Number of steps at the end that exceeded the limit.
    pub missing: u32,
}

impl<O: Copy, A: Copy> Recording<O, A> {
    const fn empty() -> Self {
        Self {
            observations: Vec::new(),
            actions: Vec::new(),
            rewards: Vec::new(),
            terminated: false,
            truncated: false,
            from_reset: false,
            missing: 0,
        }
    }

    /// Returns true after the last step of the episode.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.terminated || self.truncated
    }

    fn begin(&mut self, obs: &[O], from_reset: bool) {
        self.observations.clear();
        self.observations.extend_from_slice(obs);
        self.actions.clear();
        self.rewards.clear();
        (self.terminated, self.truncated, self.from_reset, self.missing) = (false, false, from_reset, 0);
    }
}

/// Records the running episode and keeps the last one before it.
///
/// Memory for both grows with the longest episode so far, up to [`MAX_BYTES`](Self::MAX_BYTES) each. A recording is not part
/// of the environment's state: snapshots do not contain it, and after [`restore`](Env::restore) it starts over.
#[derive(Clone, Debug)]
#[doc(alias = "RecordEpisodeStatistics")]
pub struct RecordEpisode<E: Env> {
    pub(super) env: E,
    running: Recording<E::Obs, E::Act>,
    last: Recording<E::Obs, E::Act>,
    max_steps: usize,
}

impl<E: Env> RecordEpisode<E> {
    /// Most bytes of one recording's steps.
    pub const MAX_BYTES: usize = 1 << 26;

    /// Wraps an environment, recording at most the first `max_steps` steps of each episode, and no more than
    /// [`MAX_BYTES`](Self::MAX_BYTES).
    #[must_use]
    pub fn new(env: E, max_steps: u16) -> Self {
        let obs = env.observation_space().shape().elements() * size_of::<E::Obs>();
        let action = env.action_space().shape().elements() * size_of::<E::Act>();
        let room = Self::MAX_BYTES / (obs + action + size_of::<f64>());
        let (running, last) = (Recording::empty(), Recording::empty());
        Self { env, running, last, max_steps: usize::from(max_steps).min(room) }
    }

    /// Returns the recording of the running episode so far.
    #[must_use]
    pub const fn running(&self) -> &Recording<E::Obs, E::Act> {
        &self.running
    }

    /// Returns the episode before the last reset or, after its last step, the running one. It lacks the flags if it was
    /// ended from outside, for example by the sampler's time limit. `None` before there is one.
    #[must_use]
    pub const fn last(&self) -> Option<&Recording<E::Obs, E::Act>> {
        if self.running.is_complete() {
            Some(&self.running)
        } else if self.last.rewards.is_empty() {
            None
        } else {
            Some(&self.last)
        }
    }
}

impl<E: Env> Env for RecordEpisode<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, obs)?;
        if !self.running.rewards.is_empty() {
            core::mem::swap(&mut self.running, &mut self.last);
        }
        self.running.begin(obs, true);
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, obs)?;
        let running = &mut self.running;
        if running.rewards.len() < self.max_steps {
            running.observations.extend_from_slice(obs);
            running.actions.extend_from_slice(action);
            running.rewards.push(step.reward);
        } else {
            running.missing = running.missing.saturating_add(1);
        }
        (running.terminated, running.truncated) = (step.terminated, step.truncated);
        Ok(step)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.restore(snapshot, obs)?;
        self.running.begin(obs, false);
        Ok(())
    }
}

//! A limit on the length of episodes.

use super::same_rows;
use crate::{
    env::{Env, EnvError, EnvState, Rng, SnapshotReader, Step},
    prelude::*,
};

/// Truncates an episode after a number of steps, also if the last one terminates it.
///
/// For a limit that belongs to the problem, inside of other wrappers. A registered environment's limit is enforced by the
/// sampler: [`EnvSpec::max_episode_steps`](crate::env::EnvSpec::max_episode_steps).
#[derive(Clone, Debug)]
pub struct TimeLimit<E> {
    pub(super) env: E,
    max_episode_steps: u32,
    t: u32,
}

impl<E: Env> TimeLimit<E> {
    /// Wraps an environment, with episodes of at most `max_episode_steps` steps.
    #[must_use]
    pub const fn new(env: E, max_episode_steps: u32) -> Self {
        Self { env, max_episode_steps, t: 0 }
    }
}

impl<E: Env> Env for TimeLimit<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.t = 0;
        self.env.reset(rng, obs)
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, obs)?;
        self.t = self.t.saturating_add(1);
        Ok(Step { truncated: step.truncated || self.t >= self.max_episode_steps, ..step })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend_from_slice(&self.t.to_le_bytes());
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let t = reader.u32()?;
        self.env.restore(reader.rest(), obs)?;
        self.t = t;
        Ok(())
    }
}

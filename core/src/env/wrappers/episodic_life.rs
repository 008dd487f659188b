//! Lives as episodes.

use super::{Lives, WrapError, same_rows};
use crate::{
    env::{Env, EnvError, EnvState, Rng, SnapshotReader, Step},
    prelude::*,
};

/// Ends an episode, as terminated, when a life is lost; the game is reset only when it is over. Until then a reset takes one
/// step without action (action 0) and continues in the same game, also after a time limit of the sampler. A game that ends
/// with that very step is reset.
///
/// So a time limit outside of this wrapper, such as the sampler's, never resets a game that hangs without losing a life. A
/// [`TimeLimit`](super::TimeLimit) inside counts and ends whole games.
#[derive(Clone, Debug)]
#[doc(alias = "EpisodicLifeEnv")]
pub struct EpisodicLife<E: Env> {
    pub(super) env: E,
    noop: Vec<E::Act>,
    lives: u32,
    /// Whether the game is over or has not begun.
    over: bool,
}

impl<E: Env + Lives> EpisodicLife<E> {
    /// Wraps an environment, with one life per episode.
    ///
    /// # Errors
    /// [`WrapError::NoSuchAction`] for an environment without an action 0.
    pub fn new(env: E) -> Result<Self, WrapError> {
        let noop = super::noop(&env)?;
        Ok(Self { env, noop, lives: 0, over: true })
    }
}

impl<E: Env + Lives> Env for EpisodicLife<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        if !self.over {
            let step = self.env.step(&self.noop, rng, obs)?;
            self.over = step.terminated || step.truncated;
        }
        if self.over {
            self.env.reset(rng, obs)?;
        }
        (self.lives, self.over) = (self.env.lives(), false);
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, obs)?;
        self.over = step.terminated || step.truncated;
        let lives = self.env.lives();
        // Some games report no lives for a while before they report their end.
        let lost = lives < self.lives && lives > 0;
        self.lives = lives;
        Ok(Step { terminated: step.terminated || lost, ..step })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend_from_slice(&self.lives.to_le_bytes());
        out.push(u8::from(self.over));
        self.env.snapshot(out).across_episodes()
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let (lives, over) = (reader.u32()?, reader.bool()?);
        self.env.restore(reader.rest(), obs)?;
        (self.lives, self.over) = (lives, over);
        Ok(())
    }
}

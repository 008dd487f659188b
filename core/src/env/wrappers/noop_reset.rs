//! Random starts of games.

use super::{WrapError, same_rows, same_state, step_in_reset};
use crate::{
    env::{Env, EnvError, Rng, Step},
    prelude::*,
};

/// Begins an episode with a random number of steps without action (Mnih et al.: "Human-level control through deep
/// reinforcement learning", 2015). Action 0 is the one that does nothing.
#[derive(Clone, Debug)]
#[doc(alias = "NoopResetEnv")]
pub struct NoopReset<E: Env> {
    pub(super) env: E,
    noop_max: u32,
    noop: Vec<E::Act>,
}

impl<E: Env> NoopReset<E> {
    /// Wraps an environment, with 1 to `noop_max` such steps, or none for 0. DeepMind and RLlib use 30.
    ///
    /// # Errors
    /// [`WrapError::NoSuchAction`] for an environment without an action 0.
    pub fn new(env: E, noop_max: u32) -> Result<Self, WrapError> {
        let noop = super::noop(&env)?;
        Ok(Self { env, noop_max, noop })
    }
}

impl<E: Env> Env for NoopReset<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, obs)?;
        let steps = if self.noop_max == 0 { 0 } else { rng.below(self.noop_max).saturating_add(1) };
        for _ in 0..steps {
            step_in_reset(&mut self.env, &self.noop, rng, obs)?;
        }
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        self.env.step(action, rng, obs)
    }

    same_state!();
}

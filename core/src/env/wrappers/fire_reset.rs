//! Games that wait for the fire button.

use super::{WrapError, check_action, same_rows, same_state, step_in_reset};
use crate::{
    env::{Env, EnvError, Rng, Step},
    prelude::*,
};

/// Takes some actions at the beginning of every episode, for games that wait for them. If that ends the episode, the
/// environment is reset and the next action follows.
#[derive(Clone, Debug)]
#[doc(alias = "FireResetEnv")]
pub struct FireReset<E: Env> {
    pub(super) env: E,
    /// Rows of actions, concatenated.
    actions: Vec<E::Act>,
    action_len: usize,
}

impl<E: Env> FireReset<E> {
    /// Wraps an environment with these initial actions, given row by row. For Atari games with a fire button they are 1,
    /// fire, and 2, which moves the player, as in baselines and RLlib; for others there are none.
    ///
    /// # Errors
    /// [`WrapError::NoSuchAction`] for an unknown action, or an incomplete row.
    pub fn new(env: E, actions: &[E::Act]) -> Result<Self, WrapError> {
        let action_len = env.action_space().shape().elements().max(1);
        actions.chunks(action_len).try_for_each(|action| check_action(&env, action))?;
        Ok(Self { env, actions: actions.to_vec(), action_len })
    }
}

impl<E: Env> Env for FireReset<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, obs)?;
        for action in self.actions.chunks_exact(self.action_len) {
            step_in_reset(&mut self.env, action, rng, obs)?;
        }
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        self.env.step(action, rng, obs)
    }

    same_state!();
}

//! The wrapper of all conversions of observations.

use super::{Lives, WrapError};
use crate::{
    column::Element,
    env::{Env, EnvError, EnvState, Frame, Rng, Step},
    prelude::*,
    space::Space,
};

/// Keeps the observations of the environment inside, and converts them.
#[derive(Clone, Debug)]
pub struct Converted<E: Env, C> {
    env: E,
    /// The environment's own observation.
    raw: Vec<E::Obs>,
    space: Space,
    convert: C,
}

/// A conversion of observations.
pub trait Convert<E: Env>: Send {
    /// Type of the new elements.
    type Obs: Element;

    /// Converts an observation, that of the environment as it is now.
    ///
    /// # Errors
    /// [`EnvError::Failed`], which says why it cannot be converted.
    fn convert(&mut self, env: &E, raw: &[E::Obs], obs: &mut [Self::Obs]) -> Result<(), EnvError>;
}

impl<E: Env, C> Converted<E, C> {
    /// Wraps an environment, for observations of this space.
    pub(super) fn into_space(env: E, space: Space, convert: C) -> Result<Self, WrapError> {
        space.validate()?;
        let raw = vec![E::Obs::default(); env.observation_space().shape().elements()];
        Ok(Self { env, raw, space, convert })
    }

    /// Returns the environment inside.
    #[must_use]
    pub const fn env(&self) -> &E {
        &self.env
    }
}

impl<E: Env + Lives, C> Lives for Converted<E, C> {
    fn lives(&self) -> u32 {
        self.env.lives()
    }
}

impl<E: Env, C: Convert<E>> Env for Converted<E, C> {
    type Obs = C::Obs;
    type Act = E::Act;

    fn observation_space(&self) -> Space {
        self.space.clone()
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn accepts(&self, action: &[E::Act]) -> bool {
        self.env.accepts(action)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [C::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, &mut self.raw)?;
        self.convert.convert(&self.env, &self.raw, obs)
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [C::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, &mut self.raw)?;
        self.convert.convert(&self.env, &self.raw, obs)?;
        Ok(step)
    }

    /// Renders the environment itself: the conversion is for policies.
    fn render(&self, frame: &mut Frame) -> bool {
        self.env.render(frame)
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        self.env.info(out)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [C::Obs]) -> Result<(), EnvError> {
        self.env.restore(snapshot, &mut self.raw)?;
        self.convert.convert(&self.env, &self.raw, obs)
    }
}

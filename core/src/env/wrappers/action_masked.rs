//! Action masks in observations.

use super::WrapError;
use crate::{
    column::Element as _,
    env::{Env, EnvError, EnvState, Frame, Rng, Step},
    prelude::*,
    space::Space,
};

/// Shows which actions are possible: observations are dicts of an `action_mask`, with a 1 for each value of a discrete action
/// (or of each component of one) that is possible and else a 0, and of the environment's `observations`.
///
/// The built-in networks choose only actions that such a mask allows.
///
/// ```
/// use rollmesh_core::env::{
///     Env as _,
///     pixel::{Breakout, Pixel},
///     wrappers::ActionMasked,
/// };
///
/// // Everything but the first action.
/// let masked = ActionMasked::new(Pixel::<Breakout>::default(), |_, mask| mask[1..].fill(1.0))?;
/// let (actions, space) = (masked.action_space(), masked.observation_space().to_string());
/// assert!(space.starts_with("Dict('action_mask': MultiBinary(3), 'observations': Box("), "{actions}: {space}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias("action_mask", "ActionMaskEnv"))]
pub struct ActionMasked<E: Env, F> {
    env: E,
    mask: F,
    mask_len: usize,
    /// The environment's own observation.
    raw: Vec<E::Obs>,
}

impl<E: Env, F: Fn(&E, &mut [f32]) + Send> ActionMasked<E, F> {
    /// Wraps an environment. `mask` gets it as it is after a reset or a step, and zeros, in which it writes a 1 for each
    /// possible value.
    ///
    /// # Errors
    /// [`WrapError::NotDiscrete`] for an environment whose actions are not `Discrete` or `MultiDiscrete`,
    /// [`WrapError::BadSpace`] if an observation would be too large.
    pub fn new(env: E, mask: F) -> Result<Self, WrapError> {
        let mask_len = match env.action_space() {
            Space::Discrete { n } => n as usize,
            Space::MultiDiscrete { nvec } => nvec.iter().map(|n| *n as usize).sum(),
            space => return Err(WrapError::NotDiscrete(space.to_string())),
        };
        let raw = vec![E::Obs::default(); env.observation_space().shape().elements()];
        let masked = Self { env, mask, mask_len, raw };
        masked.observation_space().validate()?;
        Ok(masked)
    }

    /// Returns the environment inside.
    #[must_use]
    pub const fn env(&self) -> &E {
        &self.env
    }

    fn observe(&self, obs: &mut [f32]) {
        let (mask, rest) = obs.split_at_mut(self.mask_len);
        mask.fill(0.0);
        (self.mask)(&self.env, mask);
        rest.iter_mut().zip(&self.raw).for_each(|(out, x)| *out = x.to_f64() as f32);
    }
}

impl<E: Env, F: Fn(&E, &mut [f32]) + Send> Env for ActionMasked<E, F> {
    type Obs = f32;
    type Act = E::Act;

    fn observation_space(&self) -> Space {
        let parts = [
            ("action_mask", Space::MultiBinary { n: self.mask_len as u32 }),
            ("observations", self.env.observation_space()),
        ];
        Space::Dict(parts.map(|(name, part)| (name.into(), part)).into())
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn accepts(&self, action: &[E::Act]) -> bool {
        self.env.accepts(action)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.env.reset(rng, &mut self.raw)?;
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, &mut self.raw)?;
        self.observe(obs);
        Ok(step)
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.env.render(frame)
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        self.env.info(out)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        self.env.restore(snapshot, &mut self.raw)?;
        self.observe(obs);
        Ok(())
    }
}

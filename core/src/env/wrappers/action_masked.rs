//! Action masks in observations.

use super::{Convert, Converted, WrapError};
use crate::{
    column::Element as _,
    env::{Env, EnvError},
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
#[doc(alias("action_mask", "ActionMaskEnv"))]
pub type ActionMasked<E, F> = Converted<E, Mask<F>>;

/// Puts a mask of the possible actions in front of observations.
#[derive(Clone, Debug)]
pub struct Mask<F> {
    mask: F,
    len: usize,
}

impl<E: Env, F: Fn(&E, &mut [f32]) + Send> ActionMasked<E, F> {
    /// Wraps an environment. `mask` gets it as it is after a reset or a step, and zeros, in which it writes a 1 for each
    /// possible value.
    ///
    /// # Errors
    /// [`WrapError::NotDiscrete`] for an environment whose actions are not `Discrete` or `MultiDiscrete`,
    /// [`WrapError::BadSpace`] if an observation would be too large.
    pub fn new(env: E, mask: F) -> Result<Self, WrapError> {
        let len = match env.action_space() {
            Space::Discrete { n } => n as usize,
            Space::MultiDiscrete { nvec } => nvec.iter().map(|n| *n as usize).sum(),
            space => return Err(WrapError::NotDiscrete(space.to_string())),
        };
        let parts = [("action_mask", Space::MultiBinary { n: len as u32 }), ("observations", env.observation_space())];
        let space = Space::Dict(parts.map(|(name, part)| (name.into(), part)).into());
        Self::into_space(env, space, Mask { mask, len })
    }
}

impl<E: Env, F: Fn(&E, &mut [f32]) + Send> Convert<E> for Mask<F> {
    type Obs = f32;

    fn convert(&mut self, env: &E, raw: &[E::Obs], obs: &mut [f32]) -> Result<(), EnvError> {
        let (mask, rest) = obs.split_at_mut(self.len);
        mask.fill(0.0);
        (self.mask)(env, mask);
        rest.iter_mut().zip(raw).for_each(|(out, x)| *out = x.to_f64() as f32);
        Ok(())
    }
}

//! Implements distributions of actions: sampling, log-probability, entropy, divergence.
//!
//! A [`Distribution`] has a kind and its sizes; a model produces its parameters row by row, as the column
//! `action_dist_inputs`. One value therefore serves all rows, without an allocation per row. The caller provides the random
//! numbers, one generator for each row. [`ActionDistribution`] chooses by space, as RLlib's catalog does, and combines the
//! parts of tuples and dicts.
//!
//! ```
//! use rollmesh_core::{
//!     distribution::{Categorical, Distribution},
//!     ids::SlotId,
//!     rng::{Purpose, Streams},
//! };
//!
//! let distribution = Categorical::new(3)?;
//! let logits = [0.0, 2.0, 1.0];
//! let mut action = [0];
//! distribution.deterministic(&logits, &mut action)?;
//! assert_eq!(action, [1]);
//!
//! let mut rng = Streams::new(1, Purpose::Action).at(SlotId(0), 0, 0, 0);
//! let logp = distribution.sample(&logits, &mut rng, &mut action)?;
//! assert_eq!(logp, distribution.logp(&logits, &action)?);
//! # Ok::<(), rollmesh_core::distribution::DistributionError>(())
//! ```

mod bernoulli;
mod by_space;
mod categorical;
mod gaussian;

pub use bernoulli::Bernoulli;
pub use by_space::ActionDistribution;
pub use categorical::{Categorical, MultiCategorical};
pub use gaussian::DiagGaussian;

use crate::{column::Element, math, prelude::*, rng::Rng};

/// The reason why a distribution could not be created or evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DistributionError {
    /// The distribution would have no actions or too many.
    #[error("a distribution needs at least one component with at least one value, and fewer than 2^24 in all")]
    BadSize,
    /// The number of parameters is wrong.
    #[error("the distribution takes {wanted} inputs, not {found}")]
    WrongInputs {
        /// Required numbers, for all rows.
        wanted: usize,
        /// Numbers given.
        found: usize,
    },
    /// The length of the actions or results is wrong.
    #[error("the distribution has {wanted} {what}, not {found}")]
    WrongLength {
        /// The buffer of wrong length: `components of actions`, `results`.
        what: &'static str,
        /// Required entries, for all rows.
        wanted: usize,
        /// Entries given.
        found: usize,
    },
    /// The distribution cannot draw the action.
    #[error("component {component}: {action} is not one of {values} values")]
    NoSuchAction {
        /// Component of the action.
        component: usize,
        /// Its value.
        action: i64,
        /// The number of its possible values, which count from 0.
        values: u32,
    },
    /// The space has no distribution.
    #[error("there is no distribution of actions for {0}")]
    Unsupported(String),
    /// The action does not have the structure that the distribution draws.
    #[error("{0} is no action of the distribution")]
    WrongAction(String),
}

/// A kind of distribution over rows of actions, with parameters from rows of inputs.
///
/// A row of inputs has [`input_len`](Self::input_len) numbers, a row of actions [`action_len`](Self::action_len).
///
/// The methods never panic: invalid inputs, like NaN, give NaN.
///
/// # Errors
/// All methods return [`DistributionError::WrongInputs`] or [`DistributionError::WrongLength`] for lengths that do not fit.
pub trait Distribution {
    /// Type of the actions' elements.
    type Action: Element;

    /// Returns how many numbers a model must produce for each row.
    #[doc(alias = "required_model_output_shape")]
    fn input_len(&self) -> usize;

    /// Returns the number of components of an action.
    fn action_len(&self) -> usize;

    /// Draws an action with random numbers, or takes the most probable one (the mean, where actions are continuous) without
    /// them. Writes it as elements of any type, and returns its log-probability. All lengths fit.
    #[allow(clippy::missing_errors_doc)]
    fn draw_row<T: Element>(
        &self,
        inputs: &[f32],
        rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError>;

    /// Does the work of [`logp`](Self::logp), once all lengths fit.
    #[allow(clippy::missing_errors_doc)]
    fn logp_of_row(&self, inputs: &[f32], action: &[Self::Action]) -> Result<f32, DistributionError>;

    /// Does the work of [`entropy`](Self::entropy), once all lengths fit.
    fn entropy_of_row(&self, inputs: &[f32]) -> f32;

    /// Does the work of [`kl`](Self::kl), once all lengths fit.
    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32;

    /// Draws an action and returns the logarithm of its probability (density, where actions are continuous).
    #[allow(clippy::missing_errors_doc)]
    fn sample(&self, inputs: &[f32], rng: &mut Rng, action: &mut [Self::Action]) -> Result<f32, DistributionError> {
        self.draw(inputs, Some(rng), action)
    }

    /// Chooses the most probable action, or the mean. Returns its log-probability.
    #[doc(alias = "deterministic_sample")]
    #[allow(clippy::missing_errors_doc)]
    fn deterministic(&self, inputs: &[f32], action: &mut [Self::Action]) -> Result<f32, DistributionError> {
        self.draw(inputs, None, action)
    }

    /// Draws an action with random numbers as [`sample`](Self::sample) does, or chooses it as
    /// [`deterministic`](Self::deterministic) does without them, as elements of any type.
    #[allow(clippy::missing_errors_doc)]
    fn draw<T: Element>(
        &self,
        inputs: &[f32],
        rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        check_actions(self.action_len(), action.len())?;
        self.draw_row(inputs, rng, action)
    }

    /// Returns the logarithm of the probability (density) of an action, in nats.
    ///
    /// # Errors
    /// Also [`DistributionError::NoSuchAction`].
    fn logp(&self, inputs: &[f32], action: &[Self::Action]) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        check_actions(self.action_len(), action.len())?;
        self.logp_of_row(inputs, action)
    }

    /// Returns the entropy in nats.
    #[allow(clippy::missing_errors_doc)]
    fn entropy(&self, inputs: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        Ok(self.entropy_of_row(inputs))
    }

    /// Returns the Kullback-Leibler divergence in nats of the distribution with the `other` inputs from this one: the mean
    /// under `inputs` of the difference of log-probabilities. It is never negative, not even by rounding.
    #[allow(clippy::missing_errors_doc)]
    fn kl(&self, inputs: &[f32], other: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        check_inputs(self.input_len(), other)?;
        Ok(self.kl_of_row(inputs, other))
    }
}

const fn check_inputs(wanted: usize, inputs: &[f32]) -> Result<(), DistributionError> {
    let found = inputs.len();
    if wanted == found { Ok(()) } else { Err(DistributionError::WrongInputs { wanted, found }) }
}

const fn check_actions(wanted: usize, found: usize) -> Result<(), DistributionError> {
    let what = "components of actions";
    if wanted == found { Ok(()) } else { Err(DistributionError::WrongLength { what, wanted, found }) }
}

/// Returns the number of components, if a distribution supports it.
fn components(n: usize) -> Result<usize, DistributionError> {
    if (1..1 << 24).contains(&n) { Ok(n) } else { Err(DistributionError::BadSize) }
}

/// The probability of a value, and its logarithm.
#[derive(Clone, Copy)]
struct Share {
    p: f32,
    logp: f32,
}

impl Share {
    /// Returns one value's term of the divergence: `p log(p / q) - p + q`. Both distributions sum to 1, so the sum over all
    /// values is the usual divergence, but no term is negative and small terms do not cancel each other.
    fn divergence(self, other: Self) -> f64 {
        let (p, q) = (f64::from(self.p), f64::from(other.p));
        // A value with probability 0 does not count, whatever its logarithms are.
        if p == 0.0 {
            return q;
        }
        let log_ratio = f64::from(self.logp) - f64::from(other.logp);
        if log_ratio > -1.0 { p * math::exp_beyond_tangent(-log_ratio) } else { p * log_ratio - p + q }
    }
}

#[cfg(test)]
mod tests;

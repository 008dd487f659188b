//! Distributions of actions: sampling, log-probability, entropy, divergence.
//!
//! A [`Distribution`] is a kind and its sizes; its parameters come row by row from a model, as the column
//! `action_dist_inputs`. So one value serves all rows, and nothing is allocated for a row. Random numbers are the
//! caller's, a generator for each row. [`ActionDistribution`] chooses by space, as RLlib's catalog does, and joins the
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
mod squashed;

pub use bernoulli::Bernoulli;
pub use by_space::ActionDistribution;
pub use categorical::{Categorical, MultiCategorical};
pub use gaussian::DiagGaussian;
pub use squashed::SquashedGaussian;

use crate::{math, prelude::*, rng::Rng, space::Scalar};

/// Why a distribution could not be made or asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistributionError {
    /// The distribution would have no actions or too many.
    #[error("a distribution needs at least one component with at least one value, and fewer than 2^24 in all")]
    BadSize,
    /// Bounds between which there is nothing.
    #[error("component {component}: {low} and {high} must be finite, and the first below the second")]
    BadBounds {
        /// The component.
        component: usize,
        /// Its lower bound.
        low: f32,
        /// Its upper bound.
        high: f32,
    },
    /// The parameters have another length than the distribution needs.
    #[error("the distribution takes {wanted} inputs, not {found}")]
    WrongInputs {
        /// Numbers needed, for all rows.
        wanted: usize,
        /// Numbers there.
        found: usize,
    },
    /// The actions or results have another length than the distribution needs.
    #[error("the distribution has {wanted} {what}, not {found}")]
    WrongLength {
        /// What has the wrong length: `components of actions`, `results`.
        what: &'static str,
        /// Entries needed, for all rows.
        wanted: usize,
        /// Entries there.
        found: usize,
    },
    /// An action that cannot be drawn.
    #[error("component {component}: {action} is not one of {values} values")]
    NoSuchAction {
        /// Component of the action.
        component: usize,
        /// What it is.
        action: i64,
        /// How many values it could have, from 0.
        values: u32,
    },
    /// There is no formula for it.
    #[error("{0} has no closed form: average -logp over samples instead")]
    NoClosedForm(&'static str),
    /// No distribution belongs to the space.
    #[error("there is no distribution of actions for {0}")]
    Unsupported(String),
    /// The action has not the form that the distribution draws.
    #[error("{0} is no action of the distribution")]
    WrongAction(String),
}

/// A kind of distribution over rows of actions, with parameters from rows of inputs.
///
/// A row of inputs has [`input_len`](Self::input_len) numbers, of actions [`action_len`](Self::action_len). The
/// methods with `_rows` do the same for many rows at once, one after the other: their buffers hold a row, or a
/// result, for each.
///
/// Whatever the inputs are, nothing panics: inputs that make no sense, like NaN, give NaN.
///
/// # Errors
/// All methods: [`DistributionError::WrongInputs`] and [`DistributionError::WrongLength`] for lengths that do not fit.
pub trait Distribution {
    /// Elements of actions.
    type Action: Scalar;

    /// Numbers that a model must give for each row.
    #[doc(alias = "required_model_output_shape")]
    fn input_len(&self) -> usize;

    /// Components of an action.
    fn action_len(&self) -> usize;

    /// Draws an action and gives the logarithm of its probability (density, where actions are continuous).
    #[allow(clippy::missing_errors_doc)]
    fn sample(&self, inputs: &[f32], rng: &mut Rng, action: &mut [Self::Action]) -> Result<f32, DistributionError>;

    /// The action in the middle: the most probable one, or the mean. Gives its log-probability too.
    #[doc(alias = "deterministic_sample")]
    #[allow(clippy::missing_errors_doc)]
    fn deterministic(&self, inputs: &[f32], action: &mut [Self::Action]) -> Result<f32, DistributionError>;

    /// Logarithm of the probability (density) of an action, in nats.
    ///
    /// # Errors
    /// Also [`DistributionError::NoSuchAction`].
    fn logp(&self, inputs: &[f32], action: &[Self::Action]) -> Result<f32, DistributionError>;

    /// Entropy in nats.
    ///
    /// # Errors
    /// Also [`DistributionError::NoClosedForm`].
    fn entropy(&self, inputs: &[f32]) -> Result<f32, DistributionError>;

    /// Kullback-Leibler divergence in nats of the distribution with the `other` inputs from this one: the mean under
    /// `inputs` of the difference of log-probabilities. Never negative, also by rounding.
    #[allow(clippy::missing_errors_doc)]
    fn kl(&self, inputs: &[f32], other: &[f32]) -> Result<f32, DistributionError>;

    /// [`sample`](Self::sample) for many rows; `rng` gives the generator of each.
    #[allow(clippy::missing_errors_doc)]
    fn sample_rows(
        &self,
        inputs: &[f32],
        mut rng: impl FnMut(usize) -> Rng,
        actions: &mut [Self::Action],
        logp: &mut [f32],
    ) -> Result<(), DistributionError>
    where
        Self: Sized,
    {
        check_rows(self, logp.len(), inputs, Some(actions.len()))?;
        let rows = inputs.chunks_exact(self.input_len()).zip(actions.chunks_exact_mut(self.action_len()));
        for (row, ((inputs, action), logp)) in rows.zip(logp).enumerate() {
            *logp = self.sample(inputs, &mut rng(row), action)?;
        }
        Ok(())
    }

    /// [`deterministic`](Self::deterministic) for many rows.
    #[allow(clippy::missing_errors_doc)]
    fn deterministic_rows(
        &self,
        inputs: &[f32],
        actions: &mut [Self::Action],
        logp: &mut [f32],
    ) -> Result<(), DistributionError>
    where
        Self: Sized,
    {
        check_rows(self, logp.len(), inputs, Some(actions.len()))?;
        let rows = inputs.chunks_exact(self.input_len()).zip(actions.chunks_exact_mut(self.action_len()));
        for ((inputs, action), logp) in rows.zip(logp) {
            *logp = self.deterministic(inputs, action)?;
        }
        Ok(())
    }

    /// [`logp`](Self::logp) for many rows.
    ///
    /// # Errors
    /// Also [`DistributionError::NoSuchAction`].
    fn logp_rows(&self, inputs: &[f32], actions: &[Self::Action], logp: &mut [f32]) -> Result<(), DistributionError>
    where
        Self: Sized,
    {
        check_rows(self, logp.len(), inputs, Some(actions.len()))?;
        let rows = inputs.chunks_exact(self.input_len()).zip(actions.chunks_exact(self.action_len()));
        for ((inputs, action), logp) in rows.zip(logp) {
            *logp = self.logp(inputs, action)?;
        }
        Ok(())
    }

    /// [`entropy`](Self::entropy) for many rows.
    ///
    /// # Errors
    /// Also [`DistributionError::NoClosedForm`].
    fn entropy_rows(&self, inputs: &[f32], entropy: &mut [f32]) -> Result<(), DistributionError>
    where
        Self: Sized,
    {
        check_rows(self, entropy.len(), inputs, None)?;
        for (inputs, entropy) in inputs.chunks_exact(self.input_len()).zip(entropy) {
            *entropy = self.entropy(inputs)?;
        }
        Ok(())
    }

    /// [`kl`](Self::kl) for many rows.
    #[allow(clippy::missing_errors_doc)]
    fn kl_rows(&self, inputs: &[f32], other: &[f32], kl: &mut [f32]) -> Result<(), DistributionError>
    where
        Self: Sized,
    {
        check_rows(self, kl.len(), inputs, None)?;
        check_rows(self, kl.len(), other, None)?;
        let rows = inputs.chunks_exact(self.input_len()).zip(other.chunks_exact(self.input_len()));
        for ((inputs, other), kl) in rows.zip(kl) {
            *kl = self.kl(inputs, other)?;
        }
        Ok(())
    }
}

fn check_rows<D: Distribution>(
    distribution: &D,
    rows: usize,
    inputs: &[f32],
    actions: Option<usize>,
) -> Result<(), DistributionError> {
    check_inputs(rows.saturating_mul(distribution.input_len()), inputs)?;
    actions.map_or(Ok(()), |actions| check_actions(rows.saturating_mul(distribution.action_len()), actions))
}

const fn check_inputs(wanted: usize, inputs: &[f32]) -> Result<(), DistributionError> {
    let found = inputs.len();
    if wanted == found { Ok(()) } else { Err(DistributionError::WrongInputs { wanted, found }) }
}

const fn check_actions(wanted: usize, found: usize) -> Result<(), DistributionError> {
    let what = "components of actions";
    if wanted == found { Ok(()) } else { Err(DistributionError::WrongLength { what, wanted, found }) }
}

/// Number of components, if a distribution can have as many.
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
    /// The part of one value in the divergence: `p log(p / q) - p + q`. Both probabilities have the sum 1, so the sum
    /// over all values is the usual one, but no part is negative and small ones do not cancel each other.
    fn divergence(self, other: Self) -> f64 {
        let (p, q) = (f64::from(self.p), f64::from(other.p));
        // What never occurs does not count, whatever the logarithms are.
        if p == 0.0 {
            return q;
        }
        let log_ratio = f64::from(self.logp) - f64::from(other.logp);
        if log_ratio > -1.0 { p * math::exp_beyond_tangent(-log_ratio) } else { p * log_ratio - p + q }
    }
}

#[cfg(test)]
mod tests;

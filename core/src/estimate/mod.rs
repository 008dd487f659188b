//! Off-policy estimators: what another policy would have earned, from logged episodes.
//!
//! Only the arithmetic: probabilities of the logged actions under the new policy, and a model's values where an
//! [`Estimator`] needs them, come as columns. Every step counts, the last one of an episode too. All numbers are double
//! precision; products of ratios leave its range in long episodes, and are kept with an exponent of their own.
//!
//! ```
//! use rollmesh_core::{
//!     batch::{EPS_ID, REWARDS, SampleBatch},
//!     column::{ColumnData, ColumnKey},
//!     estimate::Estimator,
//! };
//!
//! let batch = SampleBatch::new()
//!     .with(EPS_ID, ColumnData::scalars(vec![1, 1, 2]))?
//!     .with(REWARDS, ColumnData::scalars(vec![1.0, 1.0, 1.0]))?
//!     .with(ColumnKey::new("action_prob"), ColumnData::scalars(vec![0.5, 0.5, 0.5]))?
//!     .with(ColumnKey::new("new_action_prob"), ColumnData::scalars(vec![1.0, 0.5, 0.25]))?;
//! let estimate = Estimator::ImportanceSampling.estimate(&batch, 1.0, true)?;
//! assert_eq!((estimate.v_behavior, estimate.v_target), (1.5, 2.25));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`EpisodeLog`] puts the rows of episodes together that lie apart; a [`QModel`] learns the values that some estimators need;
//! [`bootstrap_interval`], [`refit_interval`] and [`effective_sample_size`] say how far to trust them.
//!
//! Not here: the probabilities, which `policy::Judge` asks a policy for, and any model.

mod confidence;
mod episodes;
mod estimator;
#[cfg(test)]
mod estimator_tests;
mod legacy;
mod log;
mod model;
mod reweighted;
mod scaled;

pub use confidence::{Interval, MIN_REFITS, bootstrap_interval, effective_sample_size, refit_interval};
pub(crate) use episodes::rewards;
pub use episodes::{NEW_ACTION_PROB, check_rows, draw_episodes};
pub use estimator::{Estimator, importance_weights};
pub(crate) use estimator::{Q_VALUES, V_VALUES};
pub use legacy::LegacyStepEstimator;
pub use log::{EpisodeLog, LoggedEpisodes};
pub use model::{QModel, Transitions};

use crate::{batch::BatchError, column::RowShape, math, prelude::*};

/// What one episode, or one row of a bandit's log, says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What the policy that acted has earned: the discounted return.
    pub v_behavior: f64,
    /// What the new policy would have.
    pub v_target: f64,
}

impl Sample {
    /// `v_target` as a multiple of `v_behavior`, or of 1e-8 if that is larger.
    #[must_use]
    pub fn v_gain(&self) -> f64 {
        self.v_target / self.v_behavior.max(1e-8)
    }
}

/// What a log says of two policies: means over its samples, and the spread of the samples as population standard
/// deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// What the policy that acted has earned.
    pub v_behavior: f64,
    /// Spread of it.
    pub v_behavior_std: f64,
    /// What the new policy would have earned.
    pub v_target: f64,
    /// Spread of it.
    pub v_target_std: f64,
    /// `v_target` as a multiple of `v_behavior`, or of 1e-8 if that is larger.
    pub v_gain: f64,
    /// `v_target` less `v_behavior`.
    pub v_delta: f64,
}

impl Estimate {
    /// Puts samples together.
    ///
    /// # Errors
    /// [`EstimateError::NoSamples`] if there are none.
    pub fn of(samples: &[Sample]) -> Result<Self, EstimateError> {
        if samples.is_empty() {
            return Err(EstimateError::NoSamples);
        }
        let spread = |value: fn(&Sample) -> f64| {
            let center = mean(samples.iter().map(value));
            let square = |sample| (value(sample) - center) * (value(sample) - center);
            (center, math::sqrt_f64(mean(samples.iter().map(square))))
        };
        let (v_behavior, v_behavior_std) = spread(|sample| sample.v_behavior);
        let (v_target, v_target_std) = spread(|sample| sample.v_target);
        let (v_gain, v_delta) = (v_target / v_behavior.max(1e-8), v_target - v_behavior);
        Ok(Self { v_behavior, v_behavior_std, v_target, v_target_std, v_gain, v_delta })
    }
}

/// Mean in order, NaN of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / count
}

/// Why a log says nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EstimateError {
    /// A column is missing or not what it should be.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A column should hold one number per row.
    #[error("column '{name}' has rows of shape {shape}, one value per row is needed")]
    NotScalar {
        /// The column.
        name: String,
        /// What its rows look like.
        shape: RowShape,
    },
    /// A probability that cannot be: a logged action was possible, and neither is negative or infinite.
    #[error("'{column}' is {value} at row {row}; an action that was taken has a positive probability")]
    Probability {
        /// The column.
        column: &'static str,
        /// The row.
        row: usize,
        /// What stands there.
        value: f64,
    },
    /// A logged number or a model's value that is no number or infinite.
    #[error("'{column}' is {value} at row {row}; it must be finite")]
    Value {
        /// The column.
        column: &'static str,
        /// The row.
        row: usize,
        /// What stands there.
        value: f64,
    },
    /// A discount that is no number or infinite.
    #[error("gamma {0} is not finite")]
    Gamma(f64),
    /// What the new policy would have earned is more than a double can hold.
    #[error("the estimate overflows at row {row}: the policies are too far apart; use weighted importance sampling")]
    Overflow {
        /// The row at which it does.
        row: usize,
    },
    /// An episode goes on after another one has begun.
    #[error("episode {eps_id} comes back at row {row}; put the rows of each episode together")]
    EpisodeReturns {
        /// Id of the episode.
        eps_id: i64,
        /// Row at which it goes on.
        row: usize,
    },
    /// A model of values cannot learn or tell.
    #[error("the model of values fails: {0}")]
    Model(String),
    /// No episodes, no rows or no resamples.
    #[error("there are no samples to estimate from")]
    NoSamples,
    /// A standard deviation of one or two numbers says next to nothing.
    #[error("an interval needs at least {MIN_REFITS} refits, not {0}")]
    TooFewRefits(usize),
    /// A confidence is a probability, and neither impossible nor certain.
    #[error("confidence {0} is not between 0 and 1")]
    Confidence(f64),
    /// A sample without a value.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Which of the values.
        index: usize,
    },
}

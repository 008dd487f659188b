//! Off-policy estimators: they estimate from logged episodes the return that another policy would have.
//!
//! This module only does the arithmetic: probabilities of the logged actions under the new policy, and a model's values
//! where an [`Estimator`] needs them, are columns of the input. Every step counts, the last one of an episode too. All
//! numbers have double precision; products of ratios exceed its range in long episodes, so they have a separate exponent.
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
//! [`EpisodeLog`] joins rows of an episode that are not contiguous; a [`QModel`] learns the values that some estimators
//! need; [`bootstrap_interval`], [`refit_interval`] and [`effective_sample_size`] measure the accuracy of the estimates.
//!
//! The probabilities, which `policy::Judge` computes with a policy, and the models are elsewhere.

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

use serde::{Deserialize, Serialize};

use crate::{batch::BatchError, column::RowShape, math, prelude::*};

/// The estimate from one episode, or from one row of a bandit's log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The discounted return of the policy that acted.
    pub v_behavior: f64,
    /// The estimated return of the new policy.
    pub v_target: f64,
}

impl Sample {
    /// Returns `v_target` divided by `v_behavior`, or by 1e-8 if that is larger.
    #[must_use]
    pub fn v_gain(&self) -> f64 {
        self.v_target / self.v_behavior.max(1e-8)
    }
}

/// The estimates of two policies from a log: means over its samples, and the samples' population standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean return of the policy that acted.
    pub v_behavior: f64,
    /// Its standard deviation.
    pub v_behavior_std: f64,
    /// The estimated mean return of the new policy.
    pub v_target: f64,
    /// Its standard deviation.
    pub v_target_std: f64,
    /// `v_target` divided by `v_behavior`, or by 1e-8 if that is larger.
    pub v_gain: f64,
    /// `v_target` minus `v_behavior`.
    pub v_delta: f64,
}

impl Estimate {
    /// Combines samples.
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

/// Returns the mean, summed in order; NaN without values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / count
}

/// The reason why an estimate is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// A column is missing or invalid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A column does not hold one number per row.
    #[error("column '{name}' has rows of shape {shape}, one value per row is needed")]
    NotScalar {
        /// The column.
        name: String,
        /// The shape of its rows.
        shape: RowShape,
    },
    /// A probability is invalid: that of a logged action must be positive, and none may be negative or infinite.
    #[error("'{column}' is {value} at row {row}; an action that was taken has a positive probability")]
    Probability {
        /// The column.
        column: &'static str,
        /// The row.
        row: usize,
        /// The value found.
        value: f64,
    },
    /// A logged number or a model's value is NaN or infinite.
    #[error("'{column}' is {value} at row {row}; it must be finite")]
    Value {
        /// The column.
        column: &'static str,
        /// The row.
        row: usize,
        /// The value found.
        value: f64,
    },
    /// The discount is NaN or infinite.
    #[error("gamma {0} is not finite")]
    Gamma(f64),
    /// The estimated return of the new policy exceeds the range of doubles.
    #[error("the estimate overflows at row {row}: the policies are too far apart; use weighted importance sampling")]
    Overflow {
        /// The row that exceeds it.
        row: usize,
    },
    /// An episode continues after another one has begun.
    #[error("episode {eps_id} comes back at row {row}; put the rows of each episode together")]
    EpisodeReturns {
        /// Id of the episode.
        eps_id: i64,
        /// The row at which it continues.
        row: usize,
    },
    /// A value model failed to learn or to predict.
    #[error("the model of values fails: {0}")]
    Model(String),
    /// There are no episodes, no rows or no resamples.
    #[error("there are no samples to estimate from")]
    NoSamples,
    /// Too few refits for a meaningful standard deviation.
    #[error("an interval needs at least {MIN_REFITS} refits, not {0}")]
    TooFewRefits(usize),
    /// The confidence is not between 0 and 1, exclusive.
    #[error("confidence {0} is not between 0 and 1")]
    Confidence(f64),
    /// A sample is NaN or infinite.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Index of the value.
        index: usize,
    },
}

//! Derives the columns for training from trajectories: advantages, returns and other targets.
//!
//! Kernels ([`gae()`], [`vtrace()`], [`discount_cumsum`]) work on slices of one piece of a trajectory, without batches.
//! Other functions apply them to batches: of one trajectory ([`compute_advantages`], [`compute_gae_for_sample_batch`],
//! [`adjust_nstep`]) and of slots' fragments ([`Finisher`], [`train_batch()`]). All sums are in double precision and in one
//! order, from the last row to the first. The state after a trajectory's last row has value 0 only if the trajectory
//! terminated there ([`last_r`]).
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ADVANTAGES, REWARDS, SampleBatch, VF_PREDS},
//!     column::ColumnData,
//!     postprocess::{AdvantageConfig, compute_advantages},
//! };
//!
//! // The trajectory is cut, and its next state has value 2.
//! let batch = SampleBatch::new()
//!     .with(REWARDS, ColumnData::scalars(vec![1.0, 1.0]))?
//!     .with(VF_PREDS, ColumnData::scalars(vec![0.5, 1.0]))?;
//! let config = AdvantageConfig { gamma: 0.5, ..AdvantageConfig::default() };
//! let batch = compute_advantages(&batch, 2.0, &config)?;
//! assert_eq!(batch.get(ADVANTAGES)?, [1.5, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The policy computes the value estimates; this module does not.

mod advantages;
mod discount;
mod gae;
mod n_step;
mod pieces;
mod read;
mod train_batch;
mod vtrace;

pub use advantages::{AdvantageConfig, compute_advantages, compute_gae_for_sample_batch};
pub use discount::{discount_cumsum, discounted_returns, last_r, values_bootstrapped};
pub use gae::{Carry, gae, gae_before};
pub use n_step::adjust_nstep;
pub use pieces::piece_ends;
pub use train_batch::{Finisher, train_batch, train_batch_by_policy};
pub use vtrace::{VTraceConfig, VTraceInput, vtrace};

use crate::{
    batch::BatchError,
    column::{ColumnType, RowShape},
    prelude::*,
};

/// The reason why targets could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PostprocessError {
    /// A column is missing or invalid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A column does not hold one value per row.
    #[error("column '{name}' has rows of shape {shape}, one value per row is needed")]
    NotScalar {
        /// The column.
        name: String,
        /// The shape of its rows.
        shape: RowShape,
    },
    /// A column has no numbers to shift.
    #[error("column '{name}' holds {found}, which cannot be moved by steps; drop it or decompress it first")]
    NoNumbers {
        /// The column.
        name: String,
        /// The type of the column.
        found: ColumnType,
    },
    /// Generalised advantage estimation requires value estimates.
    #[error("use_gae needs value estimates: set use_critic, or use_gae to false")]
    GaeNeedsCritic,
    /// Another trajectory begins within the batch.
    #[error("the trajectory ends within the batch, by '{column}' at row {row}; split the batch by episode first")]
    NotOneTrajectory {
        /// The column that shows it.
        column: &'static str,
        /// The last row of the trajectory.
        row: usize,
    },
    /// A number is NaN, or infinite where it must be finite.
    #[error(
        "'{name}' is {value} at row {row}, from which nothing follows; see where it comes from, or clip the weights"
    )]
    NotFinite {
        /// The slice, `weight` for the likelihood ratio of an action, or `bootstrap_value` after the last row.
        name: &'static str,
        /// The row.
        row: usize,
        /// The value found.
        value: f64,
    },
    /// A discount, a decay or a clip is out of range.
    #[error("'{name}' is {value}; discounts are finite, and clips positive or infinite")]
    Config {
        /// Field of the configuration.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// The number of steps is zero.
    #[error("n_step must be at least 1")]
    ZeroSteps,
    /// Slices have different lengths.
    #[error("'{name}' has {found} rows, the rewards have {expected}")]
    LengthMismatch {
        /// The slice.
        name: &'static str,
        /// Number of rewards.
        expected: usize,
        /// Rows of the slice.
        found: usize,
    },
}

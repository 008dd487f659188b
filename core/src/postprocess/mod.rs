//! What is derived from trajectories before learning: advantages, returns and other targets.
//!
//! Kernels ([`gae()`], [`vtrace()`], [`discount_cumsum`]) work on slices of one piece of a trajectory and know nothing of
//! batches. Around them are functions over batches: of one trajectory ([`compute_advantages`],
//! [`compute_gae_for_sample_batch`], [`adjust_nstep`]), of many ([`gae_of_pieces`]), and of slots' fragments
//! ([`Finisher`], [`train_batch()`]). All sums are in double precision and in one order, from the last row to the first. What follows a
//! trajectory's last row is worth nothing only if it terminated there ([`last_r`]).
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ADVANTAGES, REWARDS, SampleBatch, TERMINATEDS, VF_PREDS},
//!     column::ColumnData,
//!     postprocess::gae_of_pieces,
//! };
//!
//! // Two episodes; the second one is cut, and what follows is worth 2.
//! let batch = SampleBatch::new()
//!     .with(REWARDS, ColumnData::scalars(vec![1.0, 1.0, 1.0]))?
//!     .with(VF_PREDS, ColumnData::scalars(vec![0.5, 0.5, 1.0]))?
//!     .with(TERMINATEDS, ColumnData::scalars(vec![false, true, false]))?;
//! let batch = gae_of_pieces(&batch, &[0.0, 2.0], 0.5, 1.0)?;
//! assert_eq!(batch.get(ADVANTAGES)?, [1.0, 0.5, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: the value estimates themselves, which are the policy's.

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
pub use pieces::{gae_of_pieces, piece_ends};
pub use train_batch::{Finisher, train_batch, train_batch_by_policy};
pub use vtrace::{VTraceConfig, VTraceInput, vtrace};

use crate::{
    batch::BatchError,
    column::{ColumnType, RowShape},
    prelude::*,
};

/// Why targets could not be derived.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PostprocessError {
    /// A column is missing or not what it should be.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A column should hold one value per row.
    #[error("column '{name}' has rows of shape {shape}, one value per row is needed")]
    NotScalar {
        /// The column.
        name: String,
        /// What its rows look like.
        shape: RowShape,
    },
    /// Only rows of numbers can be moved.
    #[error("column '{name}' holds {found}, which cannot be moved by steps; drop it or decompress it first")]
    NoNumbers {
        /// The column.
        name: String,
        /// What it holds.
        found: ColumnType,
    },
    /// Generalised advantage estimation without value estimates.
    #[error("use_gae needs value estimates: set use_critic, or use_gae to false")]
    GaeNeedsCritic,
    /// Another trajectory begins within the batch.
    #[error("the trajectory ends within the batch, by '{column}' at row {row}; split the batch by episode first")]
    NotOneTrajectory {
        /// The column that says so.
        column: &'static str,
        /// The last row of the trajectory.
        row: usize,
    },
    /// As many bootstrap values are needed as there are pieces.
    #[error("{found} bootstrap values for {expected} pieces; see piece_ends for where the batch is cut")]
    Bootstraps {
        /// Pieces of the batch.
        expected: usize,
        /// Bootstrap values.
        found: usize,
    },
    /// A number that is none, or infinite where it must not be.
    #[error(
        "'{name}' is {value} at row {row}, from which nothing follows; see where it comes from, or clip the weights"
    )]
    NotFinite {
        /// The slice, `weight` for the likelihood ratio of an action, or `bootstrap_value` after the last row.
        name: &'static str,
        /// The row.
        row: usize,
        /// What stands there.
        value: f64,
    },
    /// A discount, a decay or a clip that can be none.
    #[error("'{name}' is {value}; discounts are finite, and clips positive or infinite")]
    Config {
        /// Field of the configuration.
        name: &'static str,
        /// What it is.
        value: f64,
    },
    /// No step is too few.
    #[error("n_step must be at least 1")]
    ZeroSteps,
    /// Slices of unequal length.
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

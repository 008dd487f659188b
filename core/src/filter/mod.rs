//! Filters that normalise observations with running statistics.
//!
//! A [`MeanStdFilter`] subtracts the mean and divides by the standard deviation of all rows it has seen. There are two
//! ways to see rows:
//!
//! - **immediate**, as in RLlib and for a worker that stands for itself: [`MeanStdFilter`] pushes a row into its
//!   statistics and normalises it with the result. What is new since the last exchange also goes to a *buffer*, which
//!   [`synchronize`] merges into a driver's filter.
//! - **versioned**, for groups: a [`VersionedFilter`] normalises with [`FrozenStat`], which does not change within a
//!   fragment, and collects its slot's rows in a *delta*. Whoever joins the fragments merges the deltas in order of the
//!   slots ([`FrozenStat::merged`]) and hands the result out with the weights, as tensors. So a row depends on the slot and
//!   on the version alone, never on who shares a worker with whom.
//!
//! Statistics are 64-bit floats, updated element by element in the order of the rows; they are the same bits on every
//! machine, also after a journey as bytes or as tensors. Every number that goes through a filter must be finite and at
//! most [`RunningStat::MAX_VALUE`] in magnitude: anything else is an error that names the row, and leaves statistics and
//! rows as they were. So no NaN gets into statistics, and none leaves a filter; nor does an infinite number, also where a
//! 32-bit float cannot hold the result.
//!
//! A whole filter travels among the weights, see [`Weights::with_filter`](crate::weights::Weights::with_filter).
//!
//! Filters are frozen in evaluation: after [`Filter::in_eval`] a call normalises and learns nothing.
//!
//! ```
//! use rollmesh_core::{column::RowShape, filter::{Filter, FilterKind, synchronize}};
//!
//! let kind: FilterKind = "MeanStdFilter".parse()?;
//! let mut driver = Filter::new(kind, RowShape::vector(2))?;
//! let mut worker = Filter::new(kind, RowShape::vector(2))?;
//! // Two rows of two elements, normalised in place.
//! let mut rows = [1.0_f32, 10.0, 3.0, 20.0];
//! worker.filter_rows(&mut rows, true)?;
//! assert_eq!(rows, [-0.70710628, -0.70710668, 0.70710628, 0.70710668]);
//!
//! synchronize(&mut driver, &mut [&mut worker])?;
//! assert_eq!(driver.mean_std().map(|filter| filter.running().mean()), Some(&[2.0, 15.0][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
mod kind;
mod mean_std;
mod normalize;
mod run;
mod running_stat;
mod tensors;
mod versioned;

#[cfg(test)]
mod laws;

pub use bytes::FilterStateError;
pub use kind::{Filter, FilterKind, UnknownFilter, synchronize};
pub use mean_std::MeanStdFilter;
pub use normalize::{FilterFloat, MeanStdConfig};
pub use run::{FILTER_PREFIX, RunFilter};
pub use running_stat::RunningStat;
pub use tensors::FilterTensorError;
pub use versioned::{FilterDelta, FrozenStat, VersionedFilter};

use crate::{
    column::RowShape,
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// Why a filter could not be made, called or merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A shape without elements, or with too many.
    #[error("a filter takes rows of 1 to {max} elements, not of shape {0}", max = RunningStat::MAX_ELEMENTS)]
    BadShape(RowShape),
    /// The clip is negative or not a number.
    #[error("clip is {0}; it is a magnitude, or nothing for no clipping")]
    BadClip(String),
    /// The values do not make rows of the filter's shape.
    #[error("rows of shape {expected} are wanted, not {found}")]
    ShapeMismatch {
        /// Shape of a row of the filter.
        expected: RowShape,
        /// What came.
        found: String,
    },
    /// A value is NaN, infinite or absurdly large. Nothing was changed.
    #[error("row {row} holds {value} at element {element}; observations must be finite and at most 1e100 in magnitude")]
    NotFinite {
        /// Row within the call.
        row: usize,
        /// Element within the row.
        element: usize,
        /// The value.
        value: String,
    },
    /// More rows than can be counted exactly.
    #[error("statistics count at most {} rows", RunningStat::MAX_ROWS)]
    TooManyRows,
    /// One filter has statistics, the other has not.
    #[error("a {left} and a {right} cannot be merged; use one kind of filter on all workers")]
    KindMismatch {
        /// Kind of the filter that was to change.
        left: FilterKind,
        /// Kind of the other.
        right: FilterKind,
    },
    /// Two deltas claim to be of the same fragment.
    #[error("there are two deltas of slot {slot}, fragment {fragment}")]
    DuplicateDelta {
        /// The slot.
        slot: SlotId,
        /// Its fragment.
        fragment: FragmentNo,
    },
    /// The weights of this version were not published by this filter, or long ago.
    #[error("there are no statistics of weights version {0}")]
    NoStatistics(WeightsVersion),
    /// A fragment cannot be filtered.
    #[error("a fragment of slot {slot} has no float32 observations, which the filter takes")]
    NotObserved {
        /// The slot.
        slot: SlotId,
    },
}

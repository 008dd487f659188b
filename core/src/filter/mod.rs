//! Filters that normalise observations with running statistics.
//!
//! A [`MeanStdFilter`] subtracts the mean and divides by the standard deviation of all rows so far. There are two modes:
//!
//! - **immediate**, as in RLlib and for a worker outside a group: [`MeanStdFilter`] pushes a row into its
//!   statistics and normalises it with the result. Rows since the last synchronisation also go to a *buffer*, which
//!   [`synchronize`] merges into a driver's filter.
//! - **versioned**, for runs over leases: a [`FrozenStat`], which does not change within a fragment, normalises its rows, and
//!   the fragment's own statistics are a *delta*. The hub merges the deltas in order of the slots
//!   ([`FrozenStat::merged`]) and publishes the result with the weights, as tensors. A row therefore depends on the slot
//!   and on the version alone, never on which slots share a worker.
//!
//! Statistics are 64-bit floats, updated element by element in the order of the rows; every machine computes the same bits,
//! and encoding them as bytes or tensors keeps the bits. Every input number must be finite and at most
//! [`RunningStat::MAX_VALUE`] in magnitude; any other number gives an error that names the row, and leaves statistics and
//! rows unchanged. NaN and infinity therefore never get into statistics or results, not even where a 32-bit float cannot
//! hold the result.
//!
//! A filter can be sent with the weights, see [`Weights::with_filter`](crate::weights::Weights::with_filter).
//!
//! In evaluation mode, filters are frozen: after [`Filter::in_eval`], calls normalise but do not learn.
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
pub use run::RunFilter;

pub use crate::weights::FILTER_PREFIX;
pub use running_stat::RunningStat;
pub use tensors::FilterTensorError;
pub use versioned::{FilterDelta, FrozenStat};

use crate::{
    column::RowShape,
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// The reason why a filter could not be created, called or merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The shape has no elements, or too many.
    #[error("a filter takes rows of 1 to {max} elements, not of shape {0}", max = RunningStat::MAX_ELEMENTS)]
    BadShape(RowShape),
    /// The clip is negative or NaN.
    #[error("clip is {0}; it is a magnitude, or nothing for no clipping")]
    BadClip(String),
    /// The values do not form rows of the filter's shape.
    #[error("rows of shape {expected} are wanted, not {found}")]
    ShapeMismatch {
        /// Shape of a row of the filter.
        expected: RowShape,
        /// The shape found.
        found: String,
    },
    /// A value is NaN, infinite or too large. The filter stays as it is.
    #[error("row {row} holds {value} at element {element}; observations must be finite and at most 1e100 in magnitude")]
    NotFinite {
        /// Row within the call.
        row: usize,
        /// Element within the row.
        element: usize,
        /// The value.
        value: String,
    },
    /// The number of rows exceeds the exact range.
    #[error("statistics count at most {} rows", RunningStat::MAX_ROWS)]
    TooManyRows,
    /// Only one of the filters has statistics.
    #[error("a {left} and a {right} cannot be merged; use one kind of filter on all workers")]
    KindMismatch {
        /// Kind of the filter to be changed.
        left: FilterKind,
        /// Kind of the other.
        right: FilterKind,
    },
    /// Two deltas belong to the same fragment.
    #[error("there are two deltas of slot {slot}, fragment {fragment}")]
    DuplicateDelta {
        /// The slot.
        slot: SlotId,
        /// Its fragment.
        fragment: FragmentNo,
    },
    /// This filter did not publish weights of this version, or has forgotten them.
    #[error("there are no statistics of weights version {0}")]
    NoStatistics(WeightsVersion),
    /// A fragment cannot be filtered.
    #[error("a fragment of slot {slot} has no float32 observations, which the filter takes")]
    NotObserved {
        /// The slot.
        slot: SlotId,
    },
}

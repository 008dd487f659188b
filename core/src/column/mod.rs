//! Columns: named, typed arrays of equally shaped rows, cheap to slice and to share.
//!
//! A [`ColumnData`] is an `Arc<Vec<T>>` and a row range. Freezing a buffer into a column copies
//! nothing, a slice copies nothing, and a write copies the column's own rows first unless nobody
//! else holds them. The row shape is part of the column, and the number of elements is always
//! rows x elements of a row.
//!
//! Not here: rectangularity between columns, which is [`SampleBatch`](crate::batch::SampleBatch)'s.

mod data;
mod key;
mod shape;

pub use data::{Column, ColumnData, DType, Element};
pub use key::ColumnKey;
pub use shape::RowShape;

use crate::prelude::*;

/// Why a column could not be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// The number of values is not a multiple of the row length.
    #[error("{values} values do not make whole rows of shape {shape}")]
    RaggedRows {
        /// How many values there were.
        values: usize,
        /// The row shape that was asked for.
        shape: RowShape,
    },
    /// The column has another element type.
    #[error("the column holds {found}, not {wanted}")]
    WrongType {
        /// The type that was asked for.
        wanted: DType,
        /// The type that is there.
        found: DType,
    },
    /// The columns to be joined differ in type or row shape.
    #[error("cannot join rows {left} with rows {right}")]
    Mismatch {
        /// Type and row shape on the left.
        left: String,
        /// Type and row shape on the right.
        right: String,
    },
    /// A shape with more than [`RowShape::MAX_DIMS`] dimensions, or too many elements.
    #[error("a row shape has at most {} dimensions and 2^31 elements", RowShape::MAX_DIMS)]
    BadShape,
}

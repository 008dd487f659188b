//! Columns: named, typed arrays of equally shaped rows, cheap to slice and to share.
//!
//! A [`ColumnData`] is an `Arc<Vec<T>>` and a row range. Creating a column from a buffer copies nothing, a slice copies
//! nothing, and a write copies the column's own rows first unless it holds the only reference. The row shape is part of the
//! column, and the number of elements is always rows x elements of a row. A [`BytesColumn`] holds rows of any length, such
//! as `infos`; a [`CompressedColumn`] holds rows of either kind in LZ4 blocks. [`Column`] is any of them.
//!
//! [`SampleBatch`](crate::batch::SampleBatch) checks that all columns have the same number of rows; this module does not.
//!
//! ```
//! use rollmesh_core::column::{BytesColumn, Column, ColumnData, Granularity, RowShape};
//!
//! let obs = ColumnData::new(vec![0.0f32, 0.1, 1.0, 1.1, 2.0, 2.1], RowShape::vector(2))?;
//! let mut tail = obs.slice(1..3); // shares the buffer
//! tail.values_mut()[0] = -1.0; // copies its two rows first
//! assert_eq!(obs.row(1), Some(&[1.0, 1.1][..]));
//!
//! let column = Column::from(obs);
//! let compressed = column.compress(Granularity::Bulk)?;
//! assert_eq!((compressed.rows(), compressed.dtype()), (3, column.dtype()));
//! assert_eq!(compressed.slice(1..2).decompress()?, column.slice(1..2));
//!
//! let infos = Column::from(BytesColumn::json(["{}", r#"{"lives":3}"#])?);
//! assert_eq!(infos.bytes()?.text(1), Some(r#"{"lives":3}"#));
//! # Ok::<(), rollmesh_core::column::ColumnError>(())
//! ```

mod compressed;
mod data;
mod dtype;
mod erased;
mod join;
mod key;
mod little_endian;
mod name;
mod ragged;
mod recycle;
mod rows;
mod shape;

pub(crate) use compressed::BlockEntry;
pub use compressed::{CompressedColumn, Granularity};
pub use data::ColumnData;
pub use dtype::{ColumnType, DType, Element};
pub use erased::Column;
pub(crate) use join::Segment;
pub use key::ColumnKey;
pub use little_endian::{LittleEndian, append_le};
pub use name::ColumnName;
pub use ragged::{BytesColumn, BytesKind};
pub(crate) use recycle::Recycler;
pub use rows::{RowBuffer, RowsMut, RowsRef, by_type};
pub use shape::RowShape;
pub(crate) use shape::clamp;

use crate::prelude::*;

/// The reason why a column could not be created, joined or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The operation requires one value per row.
    #[error("its rows have shape {0}; one value per row is needed")]
    NotScalar(RowShape),
    /// The number of values is not a multiple of the row length.
    #[error("{values} values do not make whole rows of shape {shape}")]
    RaggedRows {
        /// The number of values.
        values: usize,
        /// The requested row shape.
        shape: RowShape,
    },
    /// The column has another type.
    #[error("the column holds {found}, not {wanted}")]
    WrongType {
        /// The requested type.
        wanted: ColumnType,
        /// The column's type.
        found: ColumnType,
    },
    /// The rows must be decompressed before they are read.
    #[error("the column is compressed: decompress it first")]
    Compressed,
    /// Some of the columns to be joined are compressed and some are not.
    #[error("cannot join compressed rows with others: decompress them first")]
    MixedCompression,
    /// The columns to be joined differ in type or row shape.
    #[error("cannot join rows {left} with rows {right}")]
    Mismatch {
        /// Type and row shape on the left.
        left: String,
        /// Type and row shape on the right.
        right: String,
    },
    /// The rows have no elements, but the operation requires arrays.
    #[error("the column holds {0}, not an array")]
    NoArray(ColumnType),
    /// The shape has more than [`RowShape::MAX_DIMS`] dimensions, or too many elements.
    #[error("a row shape has at most {} dimensions and 2^31 elements", RowShape::MAX_DIMS)]
    BadShape,
    /// The row does not exist.
    #[error("there is no row {0}")]
    NoRow(usize),
    /// A ragged row is too long to be stored or compressed.
    #[error("row {row} has {bytes} bytes, which is too many")]
    LongRow {
        /// The row.
        row: usize,
        /// Its length in bytes.
        bytes: usize,
    },
    /// The lengths of ragged rows do not match the number of bytes.
    #[error("the rows have {sum} bytes by their lengths, but there are {bytes}")]
    Lengths {
        /// Sum of the lengths.
        sum: usize,
        /// The number of bytes.
        bytes: usize,
    },
    /// A JSON document is not UTF-8.
    #[error("row {row} is no text")]
    NotText {
        /// The row.
        row: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("a truth value {0}")]
    NotBool(u8),
    /// Padding would exceed the maximum size of a column.
    #[error("the padded column would have more than 2 GiB; check the lengths")]
    TooLarge,
    /// A compressed block does not hold what it declares.
    #[error("a compressed block is damaged")]
    Corrupt,
}

//! Batches in and out of files, without the files: formats as functions of bytes, readers that mix, shuffle and prepare what
//! other readers give, and [`survey`], what is in some batches. What is read from elsewhere is never trusted: sizes are checked before memory is
//! taken, and nothing in it is run.
//!
//! Decoding takes at most four times the memory of what is read: of the line, and of what its compressed columns hold.
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ACTIONS, AnyBatch, OBS, SampleBatch},
//!     column::{ColumnData, RowShape},
//!     offline::{COMPRESS_COLUMNS, JsonLimits, decode_record, encode_record},
//! };
//!
//! let batch: AnyBatch = SampleBatch::new()
//!     .with(OBS, ColumnData::new(vec![0.5, 1.0, 1.5, 2.0], RowShape::vector(2))?)?
//!     .with(ACTIONS, ColumnData::scalars(vec![0, 1]))?
//!     .into();
//! let mut line = Vec::new();
//! encode_record(&batch, &COMPRESS_COLUMNS, &mut line)?;
//! assert!(line.ends_with(br#""actions": [0, 1]}"#));
//! assert_eq!(decode_record(&line, &JsonLimits::default())?, batch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draws;
mod json;
mod lz4;
mod mixed;
mod pickle;
mod prepared;
mod shuffled;
pub mod survey;
#[cfg(test)]
mod tests;
mod usual;

pub use draws::{Choice, Draws};
pub use json::{
    COMPRESS_COLUMNS, EncodeError, JsonBooks, JsonError, JsonLimits, JsonLines, JsonPieces, RecordError, decode_record,
    encode_record,
};
pub use lz4::{Lz4Error, lz4_block_len, lz4_frame_len};
pub use mixed::MixedInput;
pub(crate) use mixed::check_probabilities;
pub use pickle::PickleError;
pub use prepared::{Preparation, PreparedInput};
pub use shuffled::ShuffledInput;
pub use usual::with_usual_types;

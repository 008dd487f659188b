//! Encodes batches as bytes, for files and snapshots: self-contained and versioned.
//!
//! All numbers are little-endian. A batch starts with the magic `RMBT`, the version and the kind of the content: 1 for a
//! [`SampleBatch`](super::SampleBatch), 2 for a [`MultiAgentBatch`](super::MultiAgentBatch).
//!
//! | part | bytes |
//! |---|---|
//! | magic, version, kind | 4, 2, 2 |
//! | in a multi-agent batch: env steps, number of policies; then for each policy its id as text, and a batch | 8, 4 |
//! | flags: 1 time-major, 2 zero-padded, 4 for training, 8 has max_seq_len, 16 has num_grad_updates | 4 |
//! | number of columns, number of sequences | 4, 8 |
//! | max_seq_len and num_grad_updates (a 64-bit float), 0 where there is none | 8, 8 |
//! | seq_lens | 4 each |
//! | for each column: its name as text, type, rank, 1 if compressed, 0 | 4 |
//! | its dimensions | 4 each |
//! | number of rows, size of the row data | 8, 8 |
//! | the row data | |
//!
//! Text is its length (4 bytes) and UTF-8. Types are 1 to 6 for 32-bit floats, 64-bit floats, 32-bit integers, 64-bit
//! integers, bytes and booleans; 16 for byte strings, 17 for JSON. The row data of an array are its elements, row-major;
//! those of ragged rows are all lengths (4 bytes each) and then all bytes. The row data of compressed rows are the number of
//! blocks (8), a table that gives for each block its size, its decompressed size, its rows, the first used row and one past
//! the last used row (8 each), and then the blocks: raw LZ4 blocks of the uncompressed row data.
//!
//! Decoding checks all bytes, and allocates no more memory than the input can fill; invalid bytes give an error.
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ACTIONS, SampleBatch, codec},
//!     column::ColumnData,
//! };
//!
//! let batch = SampleBatch::new().with(ACTIONS, ColumnData::scalars(vec![0, 1, 1]))?;
//! let bytes = codec::encode(&batch);
//! assert_eq!(codec::decode(&bytes)?, batch);
//! assert_eq!(codec::decode(&bytes[..20]).unwrap_err().to_string(), "the bytes end before number of sequences");
//! # Ok::<(), codec::CodecError>(())
//! ```

mod read;
mod write;

pub use read::{CodecError, decode, decode_any, decode_multi_agent};
pub use write::{encode, encode_any, encode_multi_agent};

use crate::column::{BytesKind, ColumnType, DType};

const MAGIC: [u8; 4] = *b"RMBT";
const VERSION: u16 = 1;
const SINGLE: u16 = 1;
const MULTI: u16 = 2;

const TIME_MAJOR: u32 = 1;
const ZERO_PADDED: u32 = 2;
const IS_TRAINING: u32 = 4;
const HAS_MAX_SEQ_LEN: u32 = 8;
const HAS_GRAD_UPDATES: u32 = 16;
const ALL_FLAGS: u32 = 31;

/// Each type and its number in the format.
const TYPES: [(ColumnType, u8); 8] = [
    (ColumnType::Array(DType::F32), 1),
    (ColumnType::Array(DType::F64), 2),
    (ColumnType::Array(DType::I32), 3),
    (ColumnType::Array(DType::I64), 4),
    (ColumnType::Array(DType::U8), 5),
    (ColumnType::Array(DType::Bool), 6),
    (ColumnType::Ragged(BytesKind::Bytes), 16),
    (ColumnType::Ragged(BytesKind::Json), 17),
];

#[cfg(test)]
mod tests;

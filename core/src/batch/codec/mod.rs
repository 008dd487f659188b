//! Batches as bytes, for files and snapshots: self-contained and versioned.
//!
//! Everything is little-endian. A batch starts with the magic `RMBT`, the version and the number of what follows: 1 a
//! [`SampleBatch`], 2 a [`MultiAgentBatch`].
//!
//! | part | bytes |
//! |---|---|
//! | magic, version, kind | 4, 2, 2 |
//! | of a multi-agent batch: env steps, number of policies; then for each its id as text, and a batch | 8, 4 |
//! | flags: 1 time-major, 2 zero-padded, 4 for training, 8 has max_seq_len, 16 has num_grad_updates | 4 |
//! | number of columns, number of sequences | 4, 8 |
//! | max_seq_len and num_grad_updates (a 64-bit float), 0 where there is none | 8, 8 |
//! | seq_lens | 4 each |
//! | for each column: its name as text, type, rank, 1 if compressed, 0 | 4 |
//! | its dimensions | 4 each |
//! | its rows, and the bytes that hold them | 8, 8 |
//! | the bytes that hold them | |
//!
//! Text is its length (4 bytes) and UTF-8. Types are 1 to 6 for 32-bit floats, 64-bit floats, 32-bit integers, 64-bit
//! integers, bytes and truth values; 16 for byte strings, 17 for JSON. Arrays are held by their elements, row-major;
//! ragged rows by all lengths (4 bytes each) and then all bytes. Compressed rows are held by the number of blocks (8),
//! a table with, for each block, its bytes, its bytes when decompressed, its rows, the first row that is used and one
//! past the last (8 each), and then the blocks: raw LZ4 blocks, of what the plain rows would be held by.
//!
//! Decoding allocates nothing that the bytes do not pay for, and trusts nothing: bytes that make no batch give an error.

mod read;
mod write;

pub use read::{CodecError, decode, decode_multi_agent};
pub use write::{encode, encode_multi_agent};

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

/// Each type and its number.
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

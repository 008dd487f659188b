//! Reads and writes RLlib's sample files: one JSON object per line and batch, with large columns compressed.

mod decode;
mod encode;
mod error;
mod lines;
mod lists;
mod numbers;
mod pieces;
mod print;
mod rows;
mod scan;
#[cfg(test)]
mod tests;
mod unpack;

pub use decode::decode_record;
pub use encode::{COMPRESS_COLUMNS, encode_record};
pub use error::{EncodeError, JsonError, RecordError};
pub use lines::{BYTE_ORDER_MARK, JsonCounts, JsonLines};
pub use pieces::JsonPieces;

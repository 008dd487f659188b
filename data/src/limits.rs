//! How much memory readers take, in one place.
//!
//! Each reader has a buffer that its caller declares and that it does not exceed, whatever the file says of itself. A damaged
//! file takes at most four times its own bytes and a fixed part, which is less than one MiB.

/// The buffer that readers of data sets declare where the caller gives none: 64 MiB.
pub const DEFAULT_BUFFER: usize = 64 << 20;

/// The longest line of JSON, in bytes, where the caller gives no other limit and lines come piece by piece: 64 MiB.
pub const LONGEST_LINE: usize = 64 << 20;

/// The most lines in a row that may be no batches.
pub const MAX_CORRUPT_LINES: u32 = 100;

/// How deep observations may be nested.
pub(crate) const MAX_NESTING: usize = 8;

/// How much of a line may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Bytes that all compressed columns of a line together may have when they are decompressed.
    pub decompressed: usize,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self { decompressed: 256 << 20 }
    }
}

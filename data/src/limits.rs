//! Defines the memory limits of all readers.
//!
//! The caller of a reader declares a buffer, and the reader does not exceed it, whatever sizes the file declares,
//! except for a few MiB in its decoders.

/// The default buffer of data set readers: 64 MiB.
pub const DEFAULT_BUFFER: usize = 64 << 20;

/// The default limit for a line of JSON that arrives in pieces, in bytes: 64 MiB.
pub const LONGEST_LINE: usize = 64 << 20;

/// Maximum number of consecutive lines that are not batches.
pub const MAX_CORRUPT_LINES: u32 = 100;

/// Maximum nesting depth of observations.
pub(crate) const MAX_NESTING: usize = 8;

/// Memory limits of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Maximum decompressed size of all compressed columns of a line together, in bytes.
    pub decompressed: usize,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self { decompressed: 256 << 20 }
    }
}

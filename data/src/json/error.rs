//! The errors of reading and writing lines and files of lines.

use rollmesh_core::batch::BatchError;

use crate::{lz4::Lz4Error, pickle::PickleError};

/// An error of decoding a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The line is not a JSON object.
    #[error("no JSON: {expected} was expected at byte {at}")]
    NotJson {
        /// Position in the line.
        at: usize,
        /// The expected text.
        expected: &'static str,
    },
    /// The record does not declare its kind of batch, or names an unknown one.
    #[error("the record's type is {}, but only 'SampleBatch' and 'MultiAgentBatch' are known", found_type(.0))]
    UnknownType(Option<String>),
    /// A column has neither rows nor compressed content.
    #[error("column '{column}' is {found}; rows or a compressed string were expected")]
    NoColumn {
        /// The column.
        column: String,
        /// The content found.
        found: &'static str,
    },
    /// The rows of a column differ in shape or kind.
    #[error("column '{column}' has rows of unequal shape: {what}")]
    Ragged {
        /// The column.
        column: String,
        /// The difference.
        what: &'static str,
    },
    /// A compressed column is not base64.
    #[error("column '{0}' is a string, but no base64")]
    Base64(String),
    /// A compressed column is not an LZ4 frame.
    #[error("column '{column}': {source}")]
    Lz4 {
        /// The column.
        column: String,
        /// The cause.
        source: Lz4Error,
    },
    /// A compressed column is not a pickled array.
    #[error("column '{column}': {source}")]
    Pickle {
        /// The column.
        column: String,
        /// The cause.
        source: PickleError,
    },
    /// The columns do not form a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl RecordError {
    /// Returns whether the line may be a valid batch under a higher limit for decompressed data.
    #[must_use]
    pub fn exceeds_limit(&self) -> bool {
        matches!(self, Self::Lz4 { source: Lz4Error::TooLarge { .. }, .. })
    }
}

fn found_type(found: &Option<String>) -> String {
    found.as_ref().map_or_else(|| "missing".into(), |found| format!("'{found}'"))
}

/// An error of reading lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// A line is not a batch.
    #[error("line {line}: {source}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// The cause.
        source: RecordError,
    },
    /// A line is longer than its limit.
    #[error("line {line} has {bytes} bytes or more; raise the buffer's size if it is meant to be that long")]
    LongLine {
        /// The line, from 1.
        line: u64,
        /// The size of the part that fit into the limit.
        bytes: usize,
    },
    /// Too many consecutive lines are not batches, so the file is probably not a file of batches.
    #[error("{lines} lines in a row are no batches, the last of them: {last}")]
    TooMany {
        /// Number of lines.
        lines: u32,
        /// The error of the last one.
        last: Box<Self>,
    },
    /// The file has no batches.
    #[error("there is no batch in it{}", corrupt(.0))]
    NoData(Option<Box<Self>>),
}

impl JsonError {
    /// Returns whether the line may be a valid batch with a larger buffer.
    #[must_use]
    pub fn exceeds_limit(&self) -> bool {
        match self {
            Self::LongLine { .. } => true,
            Self::Line { source, .. } => source.exceeds_limit(),
            Self::TooMany { last, .. } => last.exceeds_limit(),
            Self::NoData(last) => last.as_ref().is_some_and(|last| last.exceeds_limit()),
        }
    }
}

fn corrupt(last: &Option<Box<JsonError>>) -> String {
    last.as_ref().map_or_else(String::new, |last| format!(", only corrupt lines: {last}"))
}

/// An error of encoding a batch as a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// RLlib's format cannot represent byte strings.
    #[error("column '{0}' holds byte strings, which have no form in JSON: leave it out")]
    Bytes(String),
    /// RLlib's format cannot represent padded or time-major rows.
    #[error("a {0} batch cannot be written as RLlib's JSON, which would not say so")]
    Layout(&'static str),
    /// A compressed column is damaged.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

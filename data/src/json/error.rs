//! Why a line, or a whole file of them, cannot be read or written.

use rollmesh_core::batch::BatchError;

use crate::{lz4::Lz4Error, pickle::PickleError};

/// Why a line is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The line is no JSON object.
    #[error("no JSON: {expected} was expected at byte {at}")]
    NotJson {
        /// Where in the line.
        at: usize,
        /// What should stand there.
        expected: &'static str,
    },
    /// The record does not say what kind of batch it is, or names an unknown kind.
    #[error("the record's type is {}, but only 'SampleBatch' and 'MultiAgentBatch' are known", found_type(.0))]
    UnknownType(Option<String>),
    /// A column is neither rows nor compressed.
    #[error("column '{column}' is {found}; rows or a compressed string were expected")]
    NoColumn {
        /// The column.
        column: String,
        /// What it is.
        found: &'static str,
    },
    /// The rows of a column differ in shape or kind.
    #[error("column '{column}' has rows of unequal shape: {what}")]
    Ragged {
        /// The column.
        column: String,
        /// What differs.
        what: &'static str,
    },
    /// A compressed column is not base64.
    #[error("column '{0}' is a string, but no base64")]
    Base64(String),
    /// A compressed column is no LZ4 frame.
    #[error("column '{column}': {source}")]
    Lz4 {
        /// The column.
        column: String,
        /// What is wrong.
        source: Lz4Error,
    },
    /// A compressed column is no pickled array.
    #[error("column '{column}': {source}")]
    Pickle {
        /// The column.
        column: String,
        /// What is wrong.
        source: PickleError,
    },
    /// The columns make no batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl RecordError {
    /// Whether the line may be a batch if there were more room for what is decompressed.
    #[must_use]
    pub fn is_lack_of_room(&self) -> bool {
        matches!(self, Self::Lz4 { source: Lz4Error::TooLarge { .. }, .. })
    }
}

fn found_type(found: &Option<String>) -> String {
    found.as_ref().map_or_else(|| "missing".into(), |found| format!("'{found}'"))
}

/// Why lines cannot be read any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// A line is no batch.
    #[error("line {line}: {source}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        source: RecordError,
    },
    /// A line is longer than its limit.
    #[error("line {line} has {bytes} bytes or more; raise the buffer's size if it is meant to be that long")]
    LongLine {
        /// The line, from 1.
        line: u64,
        /// As much of it as there was room for.
        bytes: usize,
    },
    /// So many lines in a row were no batches that this is probably no file of batches.
    #[error("{lines} lines in a row are no batches, the last of them: {last}")]
    TooMany {
        /// How many.
        lines: u32,
        /// What is wrong with the last of them.
        last: Box<Self>,
    },
    /// There is not a single batch.
    #[error("there is no batch in it{}", corrupt(.0))]
    NoData(Option<Box<Self>>),
}

fn corrupt(last: &Option<Box<JsonError>>) -> String {
    last.as_ref().map_or_else(String::new, |last| format!(", only corrupt lines: {last}"))
}

/// Why a batch cannot be written as a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// RLlib's format has no form for byte strings.
    #[error("column '{0}' holds byte strings, which have no form in JSON: leave it out")]
    Bytes(String),
    /// RLlib's format does not say that rows are padded or time-major.
    #[error("a {0} batch cannot be written as RLlib's JSON, which would not say so")]
    Layout(&'static str),
    /// A compressed column is damaged.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

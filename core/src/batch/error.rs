//! Errors of building, reading and changing batches.

use crate::{column::ColumnError, ids::PolicyId, prelude::*};

/// The reason why a batch could not be built, read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A column has the wrong number of rows.
    #[error("column '{name}' has {found} rows, the batch has {expected}")]
    LengthMismatch {
        /// The column.
        name: String,
        /// Rows of the batch; for initial states, the number of sequences.
        expected: usize,
        /// Rows of the column.
        found: usize,
    },
    /// The column does not exist.
    #[error("the batch has no column '{0}'")]
    MissingColumn(String),
    /// A column occurs twice.
    #[error("column '{0}' is there twice")]
    DuplicateColumn(String),
    /// A column is invalid.
    #[error("column '{name}': {source}")]
    Column {
        /// The column.
        name: String,
        /// The cause.
        source: ColumnError,
    },
    /// `dones` is derived from `terminateds` and `truncateds` and cannot be stored.
    #[error("'dones' is computed from 'terminateds' and 'truncateds'; store those")]
    DonesIsDerived,
    /// `seq_lens` is a separate part of the batch, not a column.
    #[error("'seq_lens' is no column but a part of the batch: see `BatchParts`")]
    SeqLensIsAPart,
    /// A sequence without rows.
    #[error("sequence {sequence} has length {len}; each has at least one row")]
    SeqLen {
        /// The sequence.
        sequence: usize,
        /// Its length.
        len: i64,
    },
    /// A sequence is longer than the maximum.
    #[error("a sequence has {longest} rows, which is more than max_seq_len {max_seq_len}")]
    MaxSeqLen {
        /// The maximum length.
        max_seq_len: usize,
        /// The length of the longest sequence.
        longest: usize,
    },
    /// A column of a time-major batch has the wrong number of trajectories.
    #[error("column '{name}' has {found} trajectories side by side, the time-major batch has {expected}")]
    Lanes {
        /// The column.
        name: String,
        /// Second dimension of the batch.
        expected: usize,
        /// Second dimension of the column.
        found: usize,
    },
    /// A time-major batch can hold plain arrays only.
    #[error("column '{name}' holds {found}, but a time-major batch holds plain arrays of at least two dimensions")]
    NotTimeMajor {
        /// The column.
        name: String,
        /// The column's content.
        found: String,
    },
    /// The operation requires sequences.
    #[error("{0} needs a batch with seq_lens")]
    NoSequences(&'static str),
    /// The operation requires a batch without sequences.
    #[error("{0} works on single rows, but the batch has seq_lens")]
    HasSequences(&'static str),
    /// The operation requires a batch that is not time-major.
    #[error("{0} does not work on a time-major batch")]
    TimeMajor(&'static str),
    /// The batches to be joined differ in a flag.
    #[error("the batches differ in {0}")]
    Differ(&'static str),
    /// The requested sequences do not match the requested rows.
    #[error("sequences {start}..{end} do not match {rows} rows")]
    States {
        /// First sequence.
        start: usize,
        /// One past the last sequence.
        end: usize,
        /// Rows.
        rows: usize,
    },
    /// Slices of no rows were requested, or no slices for some rows.
    #[error("a batch is cut into slices of at least 1 row, and into at least 1 slice")]
    ZeroSlices,
    /// Most slices would be empty.
    #[error("{slices} slices of {steps} steps: ask for at most as many slices as steps")]
    TooManySlices {
        /// Number of slices requested.
        slices: usize,
        /// Steps of the batch.
        steps: usize,
    },
    /// The row does not exist.
    #[error("there is no row {row} among {rows}")]
    NoRow {
        /// The row.
        row: u32,
        /// Number of rows.
        rows: usize,
    },
    /// Reordering numbers the rows with 32 bits, and there are more.
    #[error("{0} rows are too many to be put into another order: cut the batch first")]
    TooManyRows(usize),
    /// The key for splitting episodes is unknown.
    #[error("episodes are split by 'eps_id' or 'dones', not by '{0}'")]
    EpisodeKey(String),
    /// A multi-agent batch has no rows.
    #[error("a multi-agent batch without rows cannot be cut into slices")]
    NoRows,
    /// A multi-agent batch has policies other than the default one.
    #[error("the batch of policy '{0}' does not fit into a single-agent batch")]
    NotSingle(PolicyId),
    /// A multi-agent batch has no default policy.
    #[error("the multi-agent batch has no batch of policy '{}'", PolicyId::DEFAULT)]
    NoDefaultPolicy,
}

impl BatchError {
    /// Adds the column's name to an error.
    pub(super) fn of_column(name: &str) -> impl Fn(ColumnError) -> Self {
        move |source| Self::Column { name: name.to_string(), source }
    }
}

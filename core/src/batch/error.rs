//! Why a batch could not be built, read or changed.

use crate::{column::ColumnError, ids::PolicyId, prelude::*};

/// Why a batch could not be built, read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A column has another number of rows than it should.
    #[error("column '{name}' has {found} rows, the batch has {expected}")]
    LengthMismatch {
        /// The column.
        name: String,
        /// Rows of the batch; sequences for the states at their starts.
        expected: usize,
        /// Rows of the column.
        found: usize,
    },
    /// There is no such column.
    #[error("the batch has no column '{0}'")]
    MissingColumn(String),
    /// There is a column twice.
    #[error("column '{0}' is there twice")]
    DuplicateColumn(String),
    /// A column is not what it should be.
    #[error("column '{name}': {source}")]
    Column {
        /// The column.
        name: String,
        /// What is wrong with it.
        source: ColumnError,
    },
    /// `dones` is derived from `terminateds` and `truncateds` and cannot be stored.
    #[error("'dones' is computed from 'terminateds' and 'truncateds'; store those")]
    DonesIsDerived,
    /// `seq_lens` is a part of the batch beside the columns.
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
    /// A sequence is longer than the longest may be.
    #[error("a sequence has {longest} rows, which is more than max_seq_len {max_seq_len}")]
    MaxSeqLen {
        /// The longest that is allowed.
        max_seq_len: usize,
        /// The longest that there is.
        longest: usize,
    },
    /// A column of a time-major batch has another number of trajectories side by side.
    #[error("column '{name}' has {found} trajectories side by side, the time-major batch has {expected}")]
    Lanes {
        /// The column.
        name: String,
        /// Second dimension of the batch.
        expected: usize,
        /// Second dimension of the column.
        found: usize,
    },
    /// A time-major batch holds plain arrays only.
    #[error("column '{name}' holds {found}, but a time-major batch holds plain arrays of at least two dimensions")]
    NotTimeMajor {
        /// The column.
        name: String,
        /// What it holds.
        found: String,
    },
    /// The operation works on sequences.
    #[error("{0} needs a batch with seq_lens")]
    NoSequences(&'static str),
    /// The operation works on single rows.
    #[error("{0} works on single rows, but the batch has seq_lens")]
    HasSequences(&'static str),
    /// The operation works on rows one after the other.
    #[error("{0} does not work on a time-major batch")]
    TimeMajor(&'static str),
    /// The batches to be joined differ in a flag.
    #[error("the batches differ in {0}")]
    Differ(&'static str),
    /// The sequences that were asked for do not match the rows that were asked for.
    #[error("sequences {start}..{end} do not match {rows} rows")]
    States {
        /// First sequence.
        start: usize,
        /// One past the last sequence.
        end: usize,
        /// Rows.
        rows: usize,
    },
    /// Slices of no rows, or no slices for some rows.
    #[error("a batch is cut into slices of at least 1 row, and into at least 1 slice")]
    ZeroSlices,
    /// Most slices would be empty.
    #[error("{slices} slices of {steps} steps: ask for at most as many slices as steps")]
    TooManySlices {
        /// Slices asked for.
        slices: usize,
        /// Steps of the batch.
        steps: usize,
    },
    /// There is no such row.
    #[error("there is no row {row} among {rows}")]
    NoRow {
        /// The row.
        row: u32,
        /// How many there are.
        rows: usize,
    },
    /// Rows are numbered with 32 bits where they are put into another order.
    #[error("{0} rows are too many to be put into another order: cut the batch first")]
    TooManyRows(usize),
    /// There is no such way to tell episodes apart.
    #[error("episodes are told apart by 'eps_id' or 'dones', not by '{0}'")]
    EpisodeKey(String),
    /// A multi-agent batch without rows.
    #[error("a multi-agent batch without rows cannot be cut into slices")]
    NoRows,
    /// A multi-agent batch has other policies than the default one.
    #[error("the batch of policy '{0}' does not fit into a single-agent batch")]
    NotSingle(PolicyId),
    /// A multi-agent batch has no default policy.
    #[error("the multi-agent batch has no batch of policy '{}'", PolicyId::DEFAULT)]
    NoDefaultPolicy,
}

impl BatchError {
    /// Names the column that an error is about.
    pub(super) fn of_column(name: &str) -> impl Fn(ColumnError) -> Self {
        move |source| Self::Column { name: name.to_string(), source }
    }
}

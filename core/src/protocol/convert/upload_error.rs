//! Reasons for the rejection of uploads.

use super::elements::ValueFault;
use crate::{
    batch::{BatchError, EpisodeMetrics, codec::CodecError},
    column::{ColumnError, DType, RowShape},
    ids::SlotId,
    prelude::*,
    protocol::UnknownValue,
    sampler::StateError,
};

/// The reason why an upload does not match its lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// It is for another run, lease, fragment or version.
    #[error("the upload is for {what} {found}, not {expected}")]
    WrongLease {
        /// Name of the field that differs.
        what: &'static str,
        /// Its value in the upload.
        found: u64,
        /// Its value in the lease.
        expected: u64,
    },
    /// A table has the wrong length.
    #[error("the table '{table}' has {found} entries, not {expected}")]
    Table {
        /// The table.
        table: &'static str,
        /// Number of its entries.
        found: u64,
        /// Expected number.
        expected: u64,
    },
    /// It has no slots.
    #[error("an upload without slots")]
    NoSlots,
    /// A slot is not part of the lease, or not in its order.
    #[error("slot {0} is none of the lease, or not in its order")]
    WrongSlot(u32),
    /// A slot has too few or too many rows.
    #[error("slot {slot} has {found} rows, not {expected}")]
    Rows {
        /// The slot.
        slot: SlotId,
        /// Number of its rows.
        found: u32,
        /// Expected number.
        expected: u32,
    },
    /// A slot has too few or too many steps, or their number differs from that of its finished episodes.
    #[error("the {found} env steps of slot {slot} are not the fragment that batch_mode and count_steps_by ask for")]
    Length {
        /// The slot.
        slot: SlotId,
        /// Number of its env steps.
        found: u32,
    },
    /// Episode number or `t` would overflow.
    #[error("slot {slot} starts at episode {episode} and t {t}, which leaves no room for its rows")]
    Start {
        /// The slot.
        slot: SlotId,
        /// Number of its first episode.
        episode: u32,
        /// Its first `t`.
        t: u32,
    },
    /// A required column is missing.
    #[error("column '{0}' is missing")]
    MissingColumn(&'static str),
    /// A column is not part of the run's rows, or occurs twice.
    #[error("a column that is not asked for, or is there twice, at place {0}")]
    ExtraColumn(usize),
    /// A column's wire type is unknown.
    #[error("column '{column}': {source}")]
    WireType {
        /// Name of the column.
        column: &'static str,
        /// Its type.
        source: UnknownValue,
    },
    /// A column has the wrong type or row shape.
    #[error("column '{column}' does not hold {expected} in rows of shape {shape}")]
    ColumnType {
        /// The column.
        column: &'static str,
        /// The expected type.
        expected: DType,
        /// The expected shape of a row.
        shape: RowShape,
    },
    /// A value is not allowed.
    #[error("column '{column}' of slot {slot} holds {fault}")]
    Value {
        /// The column.
        column: &'static str,
        /// The slot.
        slot: SlotId,
        /// The fault.
        fault: ValueFault,
    },
    /// The cuts of a slot are not ascending, do not end with its rows, or contradict its flags.
    #[error("the cuts of slot {slot} {fault}")]
    Cuts {
        /// The slot.
        slot: SlotId,
        /// The fault.
        fault: CutFault,
    },
    /// There are fewer returns than finished episodes.
    #[error("the returns of slot {0} are missing")]
    Returns(SlotId),
    /// A slot has more episodes than env steps, or custom metrics that an upload may not hold.
    #[error("the episodes of slot {slot} {fault}")]
    Episodes {
        /// The slot.
        slot: SlotId,
        /// The fault.
        fault: EpisodeFault,
    },
    /// A slot's state is not where the table says, or belongs to another step than the one after its last row.
    #[error("the state of slot {0} is missing, or not that of the step after its last row")]
    State(SlotId),
    /// A slot's state does not decode.
    #[error("slot {slot}: {source}")]
    BadState {
        /// The slot.
        slot: SlotId,
        /// The cause.
        source: StateError,
    },
    /// The values of a column do not form rows.
    #[error("column '{column}': {source}")]
    Column {
        /// The column.
        column: &'static str,
        /// The cause.
        source: ColumnError,
    },
    /// It has rows of one agent per slot though the run's rows are by policy, or the other way round, or rows in another
    /// layout.
    #[error("the upload's rows are not of the layout that the run's rows have")]
    OtherKind,
    /// The rows of a slot are not where the table says.
    #[error("the rows of slot {0} are missing")]
    NoRows(SlotId),
    /// The rows of a slot do not decode.
    #[error("slot {slot}: {source}")]
    BadRows {
        /// The slot.
        slot: SlotId,
        /// The cause.
        source: Box<CodecError>,
    },
    /// It has rows of a policy that the run does not have.
    #[error("slot {slot} has rows of policy {policy:?}, which the run does not have")]
    UnknownPolicy {
        /// The slot.
        slot: SlotId,
        /// The policy.
        policy: String,
    },
    /// The columns do not form a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// A fault of the episodes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EpisodeFault {
    /// There are more episodes than env steps.
    #[error("are more than its env steps")]
    TooMany,
    /// An episode has more custom metrics than [`EpisodeMetrics::MAX_CUSTOM_METRICS`].
    #[error("have {0} custom metrics each, at most {most} are allowed", most = EpisodeMetrics::MAX_CUSTOM_METRICS)]
    Metrics(u32),
    /// A name is missing, empty, too long or not in order.
    #[error("have a custom metric whose name is missing, not in order, or not of 1 to {longest} bytes", longest = EpisodeMetrics::MAX_NAME_BYTES)]
    Name,
}

/// A fault of the cuts of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutFault {
    /// A reason's number is unknown.
    #[error("have an unknown reason")]
    Reason,
    /// The ends do not ascend.
    #[error("do not ascend at row {0}")]
    Order(u32),
    /// The last cut is not at the last row.
    #[error("do not end with its last row")]
    End,
    /// A cut other than the last has the reason "fragment end".
    #[error("note a full fragment at row {0}, before its end")]
    EarlyEnd(u32),
    /// It contradicts `terminateds` or `truncateds`.
    #[error("do not agree with its flags before row {0}")]
    Flags(u32),
    /// A terminated episode has a bootstrap value other than 0.
    #[error("give a value to what follows a terminated episode at row {0}")]
    Bootstrap(u32),
}

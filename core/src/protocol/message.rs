//! Bodies of the messages as they are on the wire. Their contents are untrusted; see `convert`.
//!
//! No `usize`, no recursion, no nested vectors: a list of names is one string, a list of tensors is one
//! byte string with a flat table. Fields are only ever added behind a new kind or a new protocol version.

use serde::{Deserialize, Serialize};

pub use super::asks::{Ask, AskCancel, Asked};
pub use super::control::{LedgerReport, Scale};
pub use super::dashboard::{
    EvaluationPoint, HubCertificate, Iteration, NamedMetrics, Notice, RunList, RunRow, RunSchema, RunStatus,
    WorkerGone, WorkerRow,
};
pub use super::external::{
    AbandonEpisode, Actions, EndEpisode, EpisodeReply, GetAction, LogAction, LogReturns, Spaces, StartEpisode,
};
pub use super::inference::{Infer, Inferred};
pub use super::launcher::{
    EndWorker, LaunchWorker, LauncherList, LauncherReady, LauncherRow, WorkerEnded, WorkerLocation,
};
pub use super::monitoring::{
    EnvClip, FragmentReport, GpuReport, HostReport, LogLine, OtherPeers, RecentFragmentRequest, WorkerLog,
};
pub use super::requests::{
    ManageTokens, NewToken, RemoveRun, Reply, Request, RunHistory, RunHistoryRequest, StartRun, TokenRows, Watch,
    WorkerRequest, WorkerToken,
};
pub use super::saved_runs::{SavedRunRequest, SavedRunRow, SavedRuns};

use super::Token;
use crate::prelude::*;

/// The first message of every peer. Frozen: it never changes, so that any two versions can refuse each other with a clear
/// reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest protocol version that the peer speaks.
    pub protocol_min: u16,
    /// See `protocol_min`.
    pub protocol_max: u16,
    /// Wire form of [`Role`](super::Role).
    pub role: u8,
    /// The token of that role.
    pub token: Token,
    /// Capability bits; unknown ones are ignored.
    pub capabilities: u64,
    /// The session to resume, or zeros.
    pub resume_id: [u8; 16],
    /// Hash of a fixed rollout that the peer has just computed; equal for equal cores.
    pub core_fingerprint: [u8; 16],
    /// `native`, `browser`, …: at most 64 bytes.
    pub kind: String,
    /// Name for display: at most 64 bytes.
    pub name: String,
    /// The device, for example `cpu` or `cuda:0`: at most 64 bytes.
    pub device: String,
}

/// The hub accepts the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol version negotiated for the session.
    pub protocol: u16,
    /// The peer's number, the worker id for workers.
    pub peer: u32,
    /// Id with which the session can be resumed.
    pub resume_id: [u8; 16],
    /// Bytes of chunks that the peer may send before it is granted more.
    pub credit: u32,
    /// The hub's name and version, for display.
    pub server: String,
}

/// The hub refuses the peer, and closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Wire form of [`RefusalCode`](super::RefusalCode).
    pub code: u8,
    /// The reason, and the recommended action.
    pub reason: String,
}

/// The sender is about to close the connection on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// The reason.
    pub reason: String,
}

/// A part of a message above [`CHUNK_BYTES`](super::CHUNK_BYTES).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Stream number: counts the split messages on this connection.
    pub stream: u32,
    /// Length of the whole message.
    pub total: u32,
    /// Offset of this part. Parts are sent in order.
    pub offset: u32,
    /// The bytes.
    #[serde(with = "crate::lists::bytes")]
    pub data: Vec<u8>,
}

/// A [`Chunk`] that borrows its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ChunkRef<'a> {
    pub(super) stream: u32,
    pub(super) total: u32,
    pub(super) offset: u32,
    pub(super) data: &'a [u8],
}

/// Grants credit for chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// Bytes of chunks that the sender may send in addition.
    pub bytes: u32,
}

/// Presents the token that replaces the one which keeps the connection open, after a rotation. A token of another role is an
/// offence; the principal of an untrusted worker stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The new token.
    pub token: Token,
}

/// A run begins; leases of it may follow. Answered with [`RunAnswer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStart {
    /// Number of the run on this hub.
    pub run: u32,
    /// The run's description, as [`RunConfig::to_wire`](crate::run::RunConfig::to_wire) writes it.
    pub config: String,
}

/// A worker's answer to [`RunStart`]: whether it can run leases of this run, and why not. The hub grants it none before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAnswer {
    /// Number of the run.
    pub run: u32,
    /// 0 if it is able, else the wire form of [`InabilityKind`](super::InabilityKind).
    pub code: u8,
    /// The reason if it is unable, as text; empty if it is able.
    pub reason: String,
}

/// A run is over; its leases are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Number of the run on this hub.
    pub run: u32,
}

/// New weights. Only the latest version matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsUpdate {
    /// Number of the run.
    pub run: u32,
    /// Version of the weights.
    pub version: u64,
    /// Names of the tensors, sorted, joined by newlines.
    pub names: String,
    /// Number of dimensions of each tensor.
    pub ranks: Vec<u8>,
    /// Dimensions of all tensors, one after the other.
    pub dims: Vec<u32>,
    /// Values of all tensors, little-endian 32-bit floats, one after the other.
    #[serde(with = "crate::lists::bytes")]
    pub values: Vec<u8>,
}

/// New weights of a run whose workers act with values of 16 bits. Only the latest version matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfWeightsUpdate {
    /// Number of the run.
    pub run: u32,
    /// Version of the weights.
    pub version: u64,
    /// Names of the tensors, sorted, joined by newlines.
    pub names: String,
    /// Number of dimensions of each tensor.
    pub ranks: Vec<u8>,
    /// Dimensions of all tensors, one after the other.
    pub dims: Vec<u32>,
    /// For each tensor 1 if its values are little-endian 16-bit floats, 0 if they are little-endian 32-bit floats.
    pub halves: Vec<u8>,
    /// Values of all tensors, one after the other.
    #[serde(with = "crate::lists::bytes")]
    pub values: Vec<u8>,
}

/// The message with the run's newest weights, which the receiver gets from a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsNotice {
    /// Number of the run.
    pub run: u32,
    /// Version of the weights.
    pub version: u64,
    /// Length of the message, its header included.
    pub bytes: u32,
    /// SHA-256 of the message.
    pub hash: [u8; 32],
}

/// Requests the newest weights from the hub, since no relay has provided them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsRequest {
    /// Number of the run.
    pub run: u32,
}

/// A [`FragmentUpload`] or [`AgentUpload`] as a compressed message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressedUpload {
    /// Length of the message, its header included.
    pub bytes: u32,
    /// The message as a block of LZ4.
    #[serde(with = "crate::lists::bytes")]
    pub block: Vec<u8>,
}

/// The fields before the values of a [`WeightsUpdate`], and the number of bytes that follow.
#[derive(Debug, Deserialize)]
pub(super) struct WeightsHead<'a> {
    pub(super) run: u32,
    pub(super) version: u64,
    pub(super) names: &'a str,
    pub(super) ranks: Vec<u8>,
    pub(super) dims: Vec<u32>,
    pub(super) value_bytes: u32,
}

/// Grants a lease: slots of which the worker makes one fragment each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// Number of the run.
    pub run: u32,
    /// Id of the lease.
    pub lease: u64,
    /// Number of the fragment.
    pub fragment: u64,
    /// Version of the weights to act with.
    pub weights_version: u64,
    /// The slots, ascending.
    pub slots: Vec<u32>,
    /// For each slot: 0, the worker holds the state from the previous fragment; 1, the slot is new; 2, its state is in
    /// `states`.
    pub sources: Vec<u8>,
    /// End of each slot's state within `states`, ascending.
    pub state_ends: Vec<u32>,
    /// States of the slots, one after the other.
    #[serde(with = "crate::lists::bytes")]
    pub states: Vec<u8>,
}

/// Revokes a lease: its fragments will be rejected. Always answered with [`LeaseRefused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// Id of the lease.
    pub lease: u64,
}

/// Refuses a lease, reports a failed fragment of it, or confirms that a revoked one was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRefused {
    /// Id of the lease.
    pub lease: u64,
    /// The reason.
    pub reason: String,
    /// The fragment that failed; the lease's other slots continue. `None` if the lease is refused as a whole.
    pub failed: Option<FailedFragment>,
}

/// The place of a fragment's failure, see [`FragmentFailure`](super::FragmentFailure).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedFragment {
    /// Wire form of [`FailureKind`](super::FailureKind), with [`TOGETHER`](Self::TOGETHER) for slots that were stepped
    /// together.
    pub kind: u8,
    /// The slot, if it is known.
    pub slot: Option<u32>,
    /// Number of the episode within the slot.
    pub episode: u32,
    /// The step of the episode, counted from 0.
    pub t: u32,
}

impl FailedFragment {
    /// The bit of [`kind`](Self::kind) for slots that failed together, and none of them alone.
    pub const TOGETHER: u8 = 0x80;
}

/// Reports progress of a lease: only this extends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Id of the lease.
    pub lease: u64,
    /// Env steps done for it so far.
    pub env_steps: u64,
}

/// The fragments of a lease, all of them or a part, column by column over all slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentUpload {
    /// Number of the run.
    pub run: u32,
    /// Id of the lease.
    pub lease: u64,
    /// Number of the fragment.
    pub fragment: u64,
    /// Version of the weights that the worker acted with.
    pub weights_version: u64,
    /// The slots, ascending.
    pub slots: Vec<u32>,
    /// Rows of each slot.
    pub rows: Vec<u32>,
    /// Episode number at the first row of each slot.
    pub first_episodes: Vec<u32>,
    /// `t` of the first row of each slot.
    pub first_ts: Vec<u32>,
    /// Names of the columns, joined by newlines.
    pub column_names: String,
    /// Wire type of each column.
    pub column_types: Vec<u8>,
    /// Number of dimensions of each column's row.
    pub column_ranks: Vec<u8>,
    /// Dimensions of all columns' rows, one after the other.
    pub column_dims: Vec<u32>,
    /// Number of cuts of each slot.
    pub cuts: Vec<u32>,
    /// End of each cut within its slot.
    pub cut_ends: Vec<u32>,
    /// Wire form of each cut's reason.
    pub cut_reasons: Vec<u8>,
    /// Returns of the finished episodes, little-endian 64-bit floats. Their numbers and lengths follow from the cuts.
    #[serde(with = "crate::lists::bytes")]
    pub episode_returns: Vec<u8>,
    /// Columns over all rows of all slots, little-endian, one after the other; then the cuts' bootstrap values
    /// (32-bit floats), then their final observations, in the wire type of the column `obs`; then, of a recurrent policy,
    /// each state at the starts of all sequences (32-bit floats). Where sequences start follows from the cuts.
    #[serde(with = "crate::lists::bytes")]
    pub data: Vec<u8>,
    /// End of each slot's state within `states`, ascending.
    pub state_ends: Vec<u32>,
    /// States of the slots after their last row, one after the other.
    #[serde(with = "crate::lists::bytes")]
    pub states: Vec<u8>,
}

/// The fragments of a lease, all of them or a part, in a run whose rows are by policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentUpload {
    /// Number of the run.
    pub run: u32,
    /// Id of the lease.
    pub lease: u64,
    /// Number of the fragment.
    pub fragment: u64,
    /// Version of the weights that the worker acted with.
    pub weights_version: u64,
    /// The slots, ascending.
    pub slots: Vec<u32>,
    /// End of each slot's rows within `batches`, ascending.
    pub batch_ends: Vec<u32>,
    /// Rows of the slots, one after the other, each as [`codec::encode_multi_agent`](crate::batch::codec::encode_multi_agent)
    /// writes it.
    #[serde(with = "crate::lists::bytes")]
    pub batches: Vec<u8>,
    /// Number of finished episodes of each slot.
    pub episodes: Vec<u32>,
    /// Numbers of the finished episodes in their slots.
    pub episode_numbers: Vec<u32>,
    /// Lengths of the finished episodes in env steps.
    pub episode_lens: Vec<u32>,
    /// Returns of the finished episodes, little-endian 64-bit floats: sums over all agents.
    #[serde(with = "crate::lists::bytes")]
    pub episode_returns: Vec<u8>,
    /// Number of custom metrics of each finished episode.
    pub metrics: Vec<u32>,
    /// End of each custom metric's name within `metric_names`, ascending.
    pub metric_ends: Vec<u32>,
    /// Names of the custom metrics, one after the other; those of an episode ascend.
    pub metric_names: String,
    /// Values of the custom metrics, little-endian 64-bit floats.
    #[serde(with = "crate::lists::bytes")]
    pub metric_values: Vec<u8>,
    /// End of each slot's state within `states`, ascending.
    pub state_ends: Vec<u32>,
    /// States of the slots after their last row, one after the other.
    #[serde(with = "crate::lists::bytes")]
    pub states: Vec<u8>,
}

/// Reports that the worker acts with these weights from now on, in every lease that it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsApplied {
    /// Number of the run.
    pub run: u32,
    /// Version of the weights.
    pub version: u64,
}

/// Sets up a whole rollout worker, with environments and policies: from then on it can be called with [`Call`]s. Stops an
/// existing one first. Answered with [`CallResult`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// Id of the call, like those of [`Call`].
    pub call: u64,
    /// Settings as a JSON object.
    pub config: String,
    /// Its worker index, from 1.
    pub worker_index: u32,
    /// Number of workers.
    pub num_workers: u32,
    /// Whether it replaces one that was lost.
    pub recreated_worker: bool,
    /// Whether it is an evaluation worker.
    pub in_evaluation: bool,
}

/// Starts a call. Calls are executed sequentially, in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Id of the call, chosen by the hub.
    pub call: u64,
    /// The command.
    #[serde(with = "crate::lists::bytes")]
    pub body: Vec<u8>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// Id of the call.
    pub call: u64,
    /// Whether it succeeded. If not, `body` is the error.
    pub ok: bool,
    /// The answer, or the error.
    #[serde(with = "crate::lists::bytes")]
    pub body: Vec<u8>,
}

/// Reports progress of a call: of a sample, in which each step of an environment is progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProgress {
    /// Id of the call.
    pub call: u64,
}

/// Cancels a call. It is answered all the same: with an error, unless its result is already on its way. May arrive before
/// the call, if that is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCancel {
    /// Id of the call.
    pub call: u64,
}

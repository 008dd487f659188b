//! Bodies of the messages as they are on the wire. Their contents are untrusted; see `convert`.
//!
//! No `usize`, no recursion, no nested vectors: a list of names is one string, a list of tensors is one
//! byte string with a flat table. Fields are only ever added behind a new kind or a new protocol version.

use serde::{Deserialize, Serialize};

pub use super::asks::{Ask, AskCancel, Asked};
pub use super::control::{LedgerReport, Scale};
pub use super::external::{
    AbandonEpisode, Actions, EndEpisode, EpisodeReply, GetAction, LogAction, LogReturns, Spaces, StartEpisode,
};
pub use super::inference::{Infer, Inferred};
pub use super::launcher::{EndWorker, LaunchWorker, LauncherReady, WorkerEnded, WorkerLocation};
pub use super::monitoring::{
    EnvClip, FragmentReport, GpuReport, HostReport, LogLine, OtherPeers, RecentFragmentRequest, WorkerLog,
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
    /// What is wrong and what to do about it.
    pub reason: String,
}

/// The sender is about to close the connection on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// Why.
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
    /// Why not, as text; empty if it is able.
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
    /// Why.
    pub reason: String,
    /// The fragment that failed; the lease's other slots continue. `None` if the lease is refused as a whole.
    pub failed: Option<FailedFragment>,
}

/// Where a fragment failed, see [`FragmentFailure`](super::FragmentFailure).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedFragment {
    /// Wire form of [`FailureKind`](super::FailureKind).
    pub kind: u8,
    /// The slot, if one failed on its own.
    pub slot: Option<u32>,
    /// Number of the episode within the slot.
    pub episode: u32,
    /// The step of the episode, counted from 0.
    pub t: u32,
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

/// The state of the hub's run, for dashboards. Sent when anything in it changed, at most ten times a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Number of the run on this hub, 0 before the first.
    pub run: u32,
    /// Wire form of [`Phase`](super::Phase).
    pub phase: u8,
    /// Environment of the run.
    pub env: String,
    /// Algorithm of the run.
    pub algo: String,
    /// Seed of the run.
    pub seed: u64,
    /// Slots of the run.
    pub num_slots: u32,
    /// Slots that each worker could have, see [`RunConfig::slots_per_worker`](crate::run::RunConfig::slots_per_worker).
    pub slots_per_worker: u32,
    /// Learner updates so far, and the version of the weights.
    pub iteration: u64,
    /// Env steps that the learner has used.
    pub env_steps: u64,
    /// Finished episodes.
    pub episodes: u64,
    /// Mean return of the last 100 finished episodes; NaN before the first.
    pub episode_return_mean: f32,
    /// Mean return at which the run is solved.
    pub stop_return: f32,
    /// Env steps at which the run ends.
    pub max_env_steps: u64,
    /// Wall time of the run in milliseconds, without pauses.
    pub wall_ms: u64,
    /// Env steps per second of the last iteration.
    pub steps_per_s: f32,
    /// The slot whose environment is shown.
    pub watched_slot: u32,
    /// Env steps granted; equals the sum of the next five.
    pub granted: u64,
    /// Env steps committed.
    pub committed: u64,
    /// Env steps that arrived after another worker's equal ones.
    pub superseded: u64,
    /// Env steps rejected, for any reason.
    pub rejected: u64,
    /// Env steps whose lease expired.
    pub expired: u64,
    /// Env steps of live leases.
    pub outstanding: u64,
    /// Why the run failed, else empty.
    pub error: String,
    /// The run directory, for display; empty without one.
    pub run_dir: String,
    /// Fragments that failed so far.
    pub failures: u64,
    /// The latest failure, where it happened, and on which worker; empty before the first.
    pub last_failure: String,
    /// What the run waits for while no worker can sample for it; else empty.
    pub waiting: String,
}

/// The hub's past, current and queued runs. Sent when one is queued, begins, ends or is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// Whether the hub queues further runs while one is active.
    pub may_wait: bool,
    /// By number.
    pub runs: Vec<RunRow>,
}

/// A run of a hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Its number on this hub.
    pub run: u32,
    /// Wire form of its [`Phase`](super::Phase); `Idle` while it waits.
    pub phase: u8,
    /// Its place in the queue, from 1; 0 once it has begun.
    pub place: u32,
    /// Its environment.
    pub env: String,
    /// Its algorithm.
    pub algo: String,
    /// Its seed.
    pub seed: u64,
    /// Env steps that the learner has used by its end; 0 before, see [`RunStatus`].
    pub env_steps: u64,
    /// Mean return of the last 100 episodes at its end; NaN before.
    pub episode_return_mean: f32,
    /// Why it failed, else empty.
    pub error: String,
    /// Its run directory; empty without one, and while it waits.
    pub run_dir: String,
}

/// The metrics of one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of the run.
    pub run: u32,
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Env steps that the learner has used so far.
    pub env_steps: u64,
    /// Wall time in milliseconds.
    pub wall_ms: u64,
    /// Mean return of the last 100 finished episodes.
    pub episode_return_mean: f32,
    /// Their mean length.
    pub episode_len_mean: f32,
    /// Env steps per second of this iteration.
    pub steps_per_s: f32,
    /// Clipped surrogate loss.
    pub policy_loss: f32,
    /// Value loss.
    pub vf_loss: f32,
    /// Entropy of the policy.
    pub entropy: f32,
    /// Estimated KL divergence from the policy that acted.
    pub kl: f32,
}

/// Further metrics of one iteration, by name: those of the learner, of policies and of callbacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedMetrics {
    /// Number of the run.
    pub run: u32,
    /// Number of the iteration.
    pub iteration: u64,
    /// The names, joined by newlines.
    pub names: String,
    /// A value for each name.
    pub values: Vec<f32>,
}

impl NamedMetrics {
    /// Maximum number of metrics.
    pub const MAX: usize = 48;
    /// Maximum length of a name in bytes.
    pub const MAX_NAME: usize = 64;

    /// Takes the first [`MAX`](Self::MAX) metrics that have a value and a valid name.
    #[must_use]
    pub fn new(run: u32, iteration: u64, metrics: impl IntoIterator<Item = (String, f64)>) -> Self {
        let mut all = Self { run, iteration, ..Self::default() };
        let is_valid = |(name, value): &(String, f64)| {
            value.is_finite() && !name.is_empty() && name.len() <= Self::MAX_NAME && !name.contains('\n')
        };
        for (name, value) in metrics.into_iter().filter(is_valid).take(Self::MAX) {
            if !all.values.is_empty() {
                all.names.push('\n');
            }
            all.names.push_str(&name);
            all.values.push(value as f32);
        }
        all
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f32)> {
        self.names.split('\n').zip(self.values.iter().copied())
    }
}

/// The metrics of one evaluation. Missing values are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPoint {
    /// Number of the run.
    pub run: u32,
    /// Iterations that the weights were trained for.
    pub iteration: u64,
    /// Env steps that the weights were trained with.
    pub env_steps: u64,
    /// Episodes that ended.
    pub episodes: u32,
    /// Episodes that had begun and not ended.
    pub unfinished: u32,
    /// Mean return of the ended episodes; if there are none, of the unfinished ones so far.
    pub episode_return_mean: f32,
    /// The lowest return.
    pub episode_return_min: f32,
    /// The highest return.
    pub episode_return_max: f32,
    /// Mean length.
    pub episode_len_mean: f32,
}

/// A worker's status for dashboards. Sent when it changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// The worker's id.
    pub worker: u32,
    /// `native`, `browser`, …
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The device that it runs on.
    pub device: String,
    /// Wire form of [`WorkerState`](super::WorkerState).
    pub state: u8,
    /// True if this hub started it, so that it can be removed with its process.
    pub local: bool,
    /// Slots of its current lease.
    pub slots: u32,
    /// Env steps committed from it.
    pub env_steps: u64,
    /// Env steps per second over the last seconds.
    pub steps_per_s: f32,
    /// Learner updates between the weights it acts with and the newest.
    pub weights_lag: u64,
    /// Why it makes no rows, as text; empty while it does.
    pub reason: String,
}

/// A worker has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerGone {
    /// The worker's id.
    pub worker: u32,
}

/// The settings that a run on this hub accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSchema {
    /// Their [JSON Schema](crate::run::schema::json_schema).
    pub schema: String,
}

/// A notice for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// 0 information, 1 warning, 2 error.
    pub level: u8,
    /// The text.
    pub text: String,
}

/// A command without arguments, which its kind names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
}

/// A request about one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRequest {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// The worker's id.
    pub worker: u32,
}

/// Watches the environment of another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// The slot.
    pub slot: u32,
}

/// Removes a run from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveRun {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// The run's number.
    pub run: u32,
}

/// Requests the curves and settings of a run that has begun. Answered with [`RunHistory`], or with [`Reply`] and a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunHistoryRequest {
    /// Chosen by the sender; the answer carries it.
    pub request: u32,
    /// The run's number.
    pub run: u32,
}

/// The curves and settings of a run, for comparison with others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHistory {
    /// The request's number.
    pub request: u32,
    /// The run's number.
    pub run: u32,
    /// Its description, as in [`RunStart`].
    pub config: String,
    /// Its iterations, at most [`MAX_ITERATIONS`](Self::MAX_ITERATIONS) of them.
    #[serde(with = "crate::lists::AtMost::<{ RunHistory::MAX_ITERATIONS }>")]
    pub iterations: Vec<Iteration>,
    /// Its evaluations, at most [`MAX_EVALUATIONS`](Self::MAX_EVALUATIONS) of them.
    #[serde(with = "crate::lists::AtMost::<{ RunHistory::MAX_EVALUATIONS }>")]
    pub evaluations: Vec<EvaluationPoint>,
}

impl RunHistory {
    /// Maximum number of iterations, so that a message is not too large.
    pub const MAX_ITERATIONS: usize = 2048;
    /// Maximum number of evaluations.
    pub const MAX_EVALUATIONS: usize = 512;
}

/// Begins a run, or queues it behind the active one, if the hub has a queue. The [`RunList`] before the reply includes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRun {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// Settings of a [`RunConfig`](crate::run::RunConfig) as a JSON object; missing ones have their defaults.
    pub settings: String,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's number.
    pub request: u32,
    /// Empty if it was executed, else the reason.
    pub error: String,
    /// Number of the run that [`StartRun`] has begun or queued; 0 in answers to other requests.
    pub run: u32,
}

/// Answer to a request for a worker token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerToken {
    /// The request's number.
    pub request: u32,
    /// A token of the worker role.
    pub token: Token,
}

/// Lists, creates, revokes or rotates tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManageTokens {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// Wire form of [`TokenAction`](super::TokenAction).
    pub action: u8,
    /// Wire form of the [`Role`](super::Role) of a token to create; else 0.
    pub role: u8,
    /// Id of the token to revoke or rotate; else 0.
    pub token: u32,
    /// Lifetime of a token to create, in seconds, 0 for one that never expires; for a rotation, how long the old one stays
    /// valid.
    pub seconds: u64,
}

/// The tokens of a hub, except those of its local workers: tables with an entry per token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRows {
    /// The request's number.
    pub request: u32,
    /// Ids.
    pub ids: Vec<u32>,
    /// Wire forms of the roles.
    pub roles: Vec<u8>,
    /// Seconds since 1970 at which they expire; 0 for never.
    pub expires: Vec<u64>,
    /// Number of connections opened with them.
    pub connections: Vec<u32>,
}

/// A token that was just created. It is sent only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// The request's number.
    pub request: u32,
    /// Wire form of its role.
    pub role: u8,
    /// Second since 1970 at which it expires; 0 for never.
    pub expires: u64,
    /// The token.
    pub token: Token,
}

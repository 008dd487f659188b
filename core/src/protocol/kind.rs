//! Kinds of messages: their numbers and size limits.

use super::wire_enum::wire_enum;
use crate::run::RunConfig;

wire_enum! {
    /// Kind of a message. Its number is in the header and is never reused.
    "kind of message" pub Kind {
        /// Any peer's first message.
        Hello = 0x01,
        /// The hub accepts the peer.
        Welcome = 0x02,
        /// The hub refuses the peer.
        Refused = 0x03,
        /// Either side closes the connection on purpose.
        Goodbye = 0x04,
        /// A part of a message that is too large for one frame.
        Chunk = 0x05,
        /// Grants credit for more chunks.
        Credit = 0x06,
        /// Hub to worker: a run begins.
        RunStart = 0x10,
        /// Hub to worker: a run is over.
        RunEnd = 0x11,
        /// Hub to worker: new weights.
        WeightsUpdate = 0x12,
        /// Hub to worker: grants a lease.
        LeaseGrant = 0x13,
        /// Hub to worker: revokes a lease.
        Revoke = 0x14,
        /// Worker to hub: refuses a lease, or reports a failed fragment of it.
        LeaseRefused = 0x15,
        /// Worker to hub: progress of a lease.
        Progress = 0x16,
        /// Worker to hub: fragments of a lease.
        FragmentUpload = 0x17,
        /// Worker to hub: new weights are applied.
        WeightsApplied = 0x18,
        /// Hub to worker: settings of a whole rollout worker.
        WorkerSetup = 0x19,
        /// Hub to worker: a call.
        Call = 0x1A,
        /// Worker to hub: the result of a call.
        CallResult = 0x1B,
        /// Worker to hub: progress of a call.
        CallProgress = 0x1C,
        /// Worker to hub: whether it can run a run, and why not.
        RunAnswer = 0x1D,
        /// Worker to hub: fragments of a lease, with rows by policy.
        AgentUpload = 0x1E,
        /// Hub to worker: cancels a call.
        CallCancel = 0x1F,
        /// Hub to dashboard: state of the run.
        RunStatus = 0x20,
        /// Hub to dashboard: the metrics of an iteration.
        Iteration = 0x21,
        /// Hub to dashboard: a worker changed.
        WorkerRow = 0x22,
        /// Hub to dashboard: a worker disconnected.
        WorkerGone = 0x23,
        /// Hub to dashboard: observations of the watched environment.
        EnvTrace = 0x24,
        /// Hub to dashboard: a notice for the user.
        Notice = 0x25,
        /// Hub to dashboard: the ledger of all granted env steps.
        LedgerReport = 0x26,
        /// Hub to dashboard: the settings that a run may have.
        RunSchema = 0x27,
        /// Hub to dashboard: the hub's runs.
        RunList = 0x28,
        /// Hub to dashboard: further metrics of an iteration, by name.
        NamedMetrics = 0x29,
        /// Operator to hub: pause the run.
        Pause = 0x30,
        /// Operator to hub: resume the run.
        Resume = 0x31,
        /// Operator to hub: end the run.
        Stop = 0x32,
        /// Operator to hub: start one more local worker.
        AddWorker = 0x33,
        /// Operator to hub: remove a worker.
        RemoveWorker = 0x34,
        /// Operator to hub: begin a run.
        StartRun = 0x35,
        /// Operator to hub: watch another slot.
        Watch = 0x36,
        /// Operator to hub: request a token with which a tab can join as worker.
        WorkerTokenRequest = 0x37,
        /// Hub to operator: whether a request was executed, or why not.
        Reply = 0x38,
        /// Hub to operator: the requested worker token.
        WorkerToken = 0x39,
        /// Operator to hub: set the number of local workers.
        Scale = 0x3a,
        /// Operator to hub: let the leases of the run end, keep their fragments, and end it.
        Drain = 0x3b,
        /// Operator to hub: write a checkpoint of the run now.
        Checkpoint = 0x3c,
        /// Operator to hub: list, create, revoke or rotate tokens.
        ManageTokens = 0x3d,
        /// Hub to operator: the list of tokens.
        TokenRows = 0x3e,
        /// Hub to operator: a token that was just created.
        NewToken = 0x3f,
        /// Hub to client: agents and spaces of the episodes.
        Spaces = 0x40,
        /// Client to hub: an episode begins.
        StartEpisode = 0x41,
        /// Client to hub: requests actions.
        GetAction = 0x42,
        /// Client to hub: logs actions that it has chosen.
        LogAction = 0x43,
        /// Client to hub: logs the results of actions.
        LogReturns = 0x44,
        /// Client to hub: ends an episode.
        EndEpisode = 0x45,
        /// Client to hub: abandons an episode.
        AbandonEpisode = 0x46,
        /// Hub to client: the requested actions.
        Actions = 0x47,
        /// Hub to client: whether a message was handled, or why not.
        EpisodeReply = 0x48,
        /// Hub to dashboard: the metrics of an evaluation.
        Evaluation = 0x50,
        /// Hub to dashboard: the latest episode of an evaluation.
        EvaluationTrace = 0x51,
        // 0x52 to 0x56 belonged to evaluators.
        /// Worker to hub: a request to an evaluation worker.
        Ask = 0x57,
        /// Worker to hub: cancels a request.
        AskCancel = 0x58,
        /// Hub to worker: the answer to a request.
        Asked = 0x59,
        /// Operator to hub: remove a run from the queue.
        RemoveRun = 0x60,
        /// Dashboard to hub: requests the curves and settings of a run.
        RunHistoryRequest = 0x61,
        /// Hub to dashboard: the curves and settings of a run.
        RunHistory = 0x62,
    }
}

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// Messages larger than this many bytes, header included, are sent in chunks, and no chunk is larger.
pub const CHUNK_BYTES: u32 = 256 * KIB;

/// Longest frame: a whole chunk with its header and its numbers. Sockets reject longer ones before they buffer them.
pub const MAX_FRAME_BYTES: u32 = CHUNK_BYTES + 64;

/// Longest frame of an unauthenticated peer, which bounds its memory.
pub const PRE_AUTH_FRAME_BYTES: u32 = 4 * KIB;

/// Longest frame of a dashboard.
pub const DASHBOARD_FRAME_BYTES: u32 = 64 * KIB;

impl Kind {
    /// Returns the most bytes of a body of this kind, checked before anything is allocated for it.
    #[must_use]
    pub const fn body_cap(self) -> u32 {
        match self {
            Self::Credit | Self::RunEnd | Self::Revoke | Self::Progress | Self::WeightsApplied => 256,
            Self::CallProgress | Self::CallCancel | Self::WorkerGone | Self::Iteration | Self::Evaluation => 256,
            Self::Pause | Self::Resume | Self::Stop | Self::AddWorker | Self::WorkerTokenRequest => 256,
            Self::RemoveWorker | Self::Watch | Self::WorkerToken | Self::StartEpisode | Self::AbandonEpisode => 256,
            Self::Scale | Self::Drain | Self::Checkpoint | Self::RemoveRun | Self::RunHistoryRequest => 256,
            Self::ManageTokens | Self::NewToken | Self::AskCancel => 256,
            Self::TokenRows => 32 * KIB,
            Self::Hello => PRE_AUTH_FRAME_BYTES - super::HEADER_BYTES as u32,
            Self::Welcome | Self::Refused | Self::Goodbye | Self::LeaseRefused | Self::Reply | Self::Notice => 4 * KIB,
            Self::WorkerRow | Self::EpisodeReply | Self::RunAnswer | Self::NamedMetrics => 4 * KIB,
            Self::RunStatus => 8 * KIB,
            Self::LedgerReport => 16 * KIB,
            Self::RunStart | Self::StartRun => RunConfig::MAX_WIRE_BYTES as u32 + 16,
            Self::EnvTrace | Self::EvaluationTrace | Self::RunSchema | Self::RunList | Self::Spaces | Self::Actions => {
                CHUNK_BYTES - super::HEADER_BYTES as u32
            }
            Self::GetAction | Self::LogAction | Self::LogReturns | Self::EndEpisode | Self::RunHistory => {
                CHUNK_BYTES - super::HEADER_BYTES as u32
            }
            Self::Chunk => MAX_FRAME_BYTES - super::HEADER_BYTES as u32,
            Self::LeaseGrant => 16 * MIB,
            Self::WorkerSetup => 4 * MIB,
            Self::FragmentUpload | Self::AgentUpload => 32 * MIB,
            Self::WeightsUpdate | Self::Call | Self::CallResult => 64 * MIB,
            // A name, and the limit of a call or its result.
            Self::Ask | Self::Asked => 64 * MIB + 128,
        }
    }

    /// Returns whether a message of this kind may be sent in chunks. All others fit into one frame.
    #[must_use]
    pub const fn may_be_split(self) -> bool {
        matches!(self, Self::WeightsUpdate | Self::LeaseGrant | Self::FragmentUpload | Self::AgentUpload)
            || matches!(self, Self::Ask | Self::Asked)
            || self.is_of_calls()
    }

    /// Returns whether this message must not overtake one of kind `before`, whatever their sizes: calls are done in the
    /// order in which they started; a lease may continue the one before it, and so may its fragments.
    pub(super) const fn keeps_its_place_behind(self, before: Self) -> bool {
        match self {
            Self::LeaseGrant => matches!(before, Self::LeaseGrant),
            Self::FragmentUpload => matches!(before, Self::FragmentUpload),
            Self::AgentUpload => matches!(before, Self::AgentUpload),
            Self::Ask => matches!(before, Self::Ask),
            _ => self.is_of_calls() && before.is_of_calls(),
        }
    }

    const fn is_of_calls(self) -> bool {
        matches!(self, Self::WorkerSetup | Self::Call | Self::CallResult)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Role, allow},
        *,
    };
    use crate::prelude::*;

    #[test]
    fn numbers_lead_back_to_their_kinds_and_no_others_do() {
        for byte in 0..=u8::MAX {
            match Kind::try_from(byte) {
                Ok(kind) => assert_eq!(kind.to_wire(), byte),
                Err(error) => assert!(Kind::ALL.iter().all(|kind| kind.to_wire() != byte), "{error}"),
            }
        }
        assert_eq!(Kind::try_from(0x7f).unwrap_err().to_string(), "0x7f is no kind of message that this version knows");
    }

    #[test]
    fn whatever_a_dashboard_may_say_fits_in_its_frames() {
        for &role in Role::ALL {
            let largest =
                Kind::ALL.iter().filter(|kind| allow(role, **kind)).map(|kind| kind.body_cap()).max().unwrap();
            let fits = largest + super::super::HEADER_BYTES as u32 <= role.frame_cap();
            assert_eq!(fits, role != Role::Worker, "{role:?}: what is larger comes in chunks");
        }
    }

    #[test]
    fn whatever_may_not_be_split_fits_in_a_frame() {
        for kind in Kind::ALL {
            let frame = kind.body_cap() + super::super::HEADER_BYTES as u32;
            let largest = if *kind == Kind::Chunk { MAX_FRAME_BYTES } else { CHUNK_BYTES };
            assert_eq!(frame > largest, kind.may_be_split(), "{kind:?}");
        }
    }
}

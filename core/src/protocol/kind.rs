//! Kinds of messages: their numbers, and how large each may be.

use super::wire_enum::wire_enum;
use crate::run::RunConfig;

wire_enum! {
    /// What a message is. The number stands in the header; it is never reused.
    "kind of message" pub Kind {
        /// Any peer's first message.
        Hello = 0x01,
        /// The hub's answer if it accepts the peer.
        Welcome = 0x02,
        /// The hub's answer if it does not.
        Refused = 0x03,
        /// Either side closes on purpose.
        Goodbye = 0x04,
        /// A part of a message that is too large for one frame.
        Chunk = 0x05,
        /// Room for more chunks.
        Credit = 0x06,
        /// Hub to worker: a run begins.
        RunStart = 0x10,
        /// Hub to worker: a run is over.
        RunEnd = 0x11,
        /// Hub to worker: new weights.
        WeightsUpdate = 0x12,
        /// Hub to worker: slots to run.
        LeaseGrant = 0x13,
        /// Hub to worker: a lease is void.
        Revoke = 0x14,
        /// Worker to hub: a lease cannot be done.
        LeaseRefused = 0x15,
        /// Worker to hub: a lease is being worked on.
        Progress = 0x16,
        /// Worker to hub: what a lease brought.
        FragmentUpload = 0x17,
        /// Worker to hub: new weights act from now on.
        WeightsApplied = 0x18,
        /// Hub to worker: what a whole worker is made of.
        WorkerSetup = 0x19,
        /// Hub to worker: something is to be done.
        Call = 0x1A,
        /// Worker to hub: it was done, or why not.
        CallResult = 0x1B,
        /// Worker to hub: a call is being worked on.
        CallProgress = 0x1C,
        /// Worker to hub: it can run a run, or why not.
        RunAnswer = 0x1D,
        /// Worker to hub: what a lease brought, of several agents.
        AgentUpload = 0x1E,
        /// Hub to worker: a call is not wanted any more.
        CallCancel = 0x1F,
        /// Hub to dashboard: state of the run.
        RunStatus = 0x20,
        /// Hub to dashboard: one more point of every curve.
        Iteration = 0x21,
        /// Hub to dashboard: a worker changed.
        WorkerRow = 0x22,
        /// Hub to dashboard: a worker is gone.
        WorkerGone = 0x23,
        /// Hub to dashboard: what the watched environment did.
        EnvTrace = 0x24,
        /// Hub to dashboard: something to tell a person.
        Notice = 0x25,
        /// Hub to dashboard: where every granted env step is.
        LedgerReport = 0x26,
        /// Hub to dashboard: the settings that a run may have.
        RunSchema = 0x27,
        /// Hub to dashboard: the hub's runs.
        RunList = 0x28,
        /// Operator to hub: pause the run.
        Pause = 0x30,
        /// Operator to hub: go on with it.
        Resume = 0x31,
        /// Operator to hub: end it.
        Stop = 0x32,
        /// Operator to hub: start one more local worker.
        AddWorker = 0x33,
        /// Operator to hub: take a worker out.
        RemoveWorker = 0x34,
        /// Operator to hub: begin a run.
        StartRun = 0x35,
        /// Operator to hub: show another slot.
        Watch = 0x36,
        /// Operator to hub: ask for a token with which a tab can join as worker.
        WorkerTokenRequest = 0x37,
        /// Hub to operator: a request was done, or why not.
        Reply = 0x38,
        /// Hub to operator: the token.
        WorkerToken = 0x39,
        /// Operator to hub: have so many local workers.
        Scale = 0x3a,
        /// Operator to hub: let the leases of the run end, keep what they bring, and end it.
        Drain = 0x3b,
        /// Operator to hub: write a checkpoint of the run now.
        Checkpoint = 0x3c,
        /// Operator to hub: list, make, revoke or rotate tokens.
        ManageTokens = 0x3d,
        /// Hub to operator: the tokens there are.
        TokenRows = 0x3e,
        /// Hub to operator: a token that was just made.
        NewToken = 0x3f,
        /// Hub to client: what episodes are made of.
        Spaces = 0x40,
        /// Client to hub: an episode begins.
        StartEpisode = 0x41,
        /// Client to hub: which actions are to be taken?
        GetAction = 0x42,
        /// Client to hub: these were taken.
        LogAction = 0x43,
        /// Client to hub: this is what they brought.
        LogReturns = 0x44,
        /// Client to hub: the episode is over.
        EndEpisode = 0x45,
        /// Client to hub: the episode is given up.
        AbandonEpisode = 0x46,
        /// Hub to client: actions to be taken.
        Actions = 0x47,
        /// Hub to client: something was done, or why not.
        EpisodeReply = 0x48,
        /// Hub to dashboard: what an evaluation has found, one more point of its curve.
        Evaluation = 0x50,
        /// Hub to dashboard: the latest episode of an evaluation.
        EvaluationTrace = 0x51,
        // 0x52 to 0x56 were those of evaluators.
        /// Worker to hub: something is asked of a worker that evaluates.
        Ask = 0x57,
        /// Worker to hub: its answer is not wanted any more.
        AskCancel = 0x58,
        /// Hub to worker: the answer.
        Asked = 0x59,
        /// Operator to hub: a run that waits is not wanted any more.
        RemoveRun = 0x60,
    }
}

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// Messages above this many bytes, header included, travel in chunks, and no chunk carries more.
pub const CHUNK_BYTES: u32 = 256 * KIB;

/// No frame is longer: a whole chunk with its header and its numbers. Sockets refuse more than this before they buffer it.
pub const MAX_FRAME_BYTES: u32 = CHUNK_BYTES + 64;

/// The longest first frame: a peer that has shown no token yet gets no more memory than this.
pub const PRE_AUTH_FRAME_BYTES: u32 = 4 * KIB;

/// The longest frame of a dashboard.
pub const DASHBOARD_FRAME_BYTES: u32 = 64 * KIB;

impl Kind {
    /// The most bytes that a body of this kind may have, checked before anything is allocated for it.
    #[must_use]
    pub const fn body_cap(self) -> u32 {
        match self {
            Self::Credit | Self::RunEnd | Self::Revoke | Self::Progress | Self::WeightsApplied => 256,
            Self::CallProgress | Self::CallCancel | Self::WorkerGone | Self::Iteration | Self::Evaluation => 256,
            Self::Pause | Self::Resume | Self::Stop | Self::AddWorker | Self::WorkerTokenRequest => 256,
            Self::RemoveWorker | Self::Watch | Self::WorkerToken | Self::StartEpisode | Self::AbandonEpisode => 256,
            Self::Scale | Self::Drain | Self::Checkpoint | Self::RemoveRun => 256,
            Self::ManageTokens | Self::NewToken | Self::AskCancel => 256,
            Self::TokenRows => 32 * KIB,
            Self::Hello => PRE_AUTH_FRAME_BYTES - super::HEADER_BYTES as u32,
            Self::Welcome | Self::Refused | Self::Goodbye | Self::LeaseRefused | Self::Reply | Self::Notice => 4 * KIB,
            Self::WorkerRow | Self::EpisodeReply | Self::RunAnswer => 4 * KIB,
            Self::RunStatus => 8 * KIB,
            Self::LedgerReport => 16 * KIB,
            Self::RunStart | Self::StartRun => RunConfig::MAX_WIRE_BYTES as u32 + 16,
            Self::EnvTrace | Self::EvaluationTrace | Self::RunSchema | Self::RunList | Self::Spaces | Self::Actions => {
                CHUNK_BYTES - super::HEADER_BYTES as u32
            }
            Self::GetAction | Self::LogAction | Self::LogReturns | Self::EndEpisode => {
                CHUNK_BYTES - super::HEADER_BYTES as u32
            }
            Self::Chunk => MAX_FRAME_BYTES - super::HEADER_BYTES as u32,
            Self::LeaseGrant => 16 * MIB,
            Self::WorkerSetup => 4 * MIB,
            Self::FragmentUpload | Self::AgentUpload => 32 * MIB,
            Self::WeightsUpdate | Self::Call | Self::CallResult => 64 * MIB,
            // A name, and what a call or its result may have.
            Self::Ask | Self::Asked => 64 * MIB + 128,
        }
    }

    /// Whether a message of this kind may come in chunks. All others fit in one frame.
    #[must_use]
    pub const fn may_be_split(self) -> bool {
        matches!(self, Self::WeightsUpdate | Self::LeaseGrant | Self::FragmentUpload | Self::AgentUpload)
            || matches!(self, Self::Ask | Self::Asked)
            || self.is_of_calls()
    }

    /// Messages of these two kinds never overtake each other, whatever their sizes: calls are done in the order in which they
    /// began; a lease may go on from the one before it, and so may its fragments.
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

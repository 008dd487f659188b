//! The table of messages: the number, body, roles and size limit of every kind.

use super::{
    CHUNK_BYTES, HEADER_BYTES, MAX_FRAME_BYTES, PRE_AUTH_FRAME_BYTES,
    message::*,
    role::{ACTORS, ALL, CLIENT, DASHBOARDS, LAUNCHER, NONE, OPERATOR, Roles, WORKER},
    wire_enum::wire_enum,
};
use crate::{prelude::*, run::RunConfig};

/// Defines [`Kind`] and [`Message`] from a row per kind: its body and number, the roles that may send it to the hub and
/// those that may receive it from the hub, both in an open session, and the most bytes of its body.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $kind:ident($body:ty) = $number:literal, from $from:ident to $to:ident, at most $cap:expr;
    )+) => {
        wire_enum! {
            /// Kind of a message. Its number is in the header and is never reused.
            "kind of message" pub Kind { $($(#[$doc])* $kind = $number,)+ }
        }

        impl Kind {
            /// Returns the most bytes of a body of this kind, checked before anything is allocated for it.
            #[must_use]
            pub const fn body_cap(self) -> u32 {
                match self { $(Self::$kind => $cap,)+ }
            }

            /// Returns which roles may send a message of this kind to the hub, and which may receive it.
            pub(super) const fn route(self) -> (Roles, Roles) {
                match self { $(Self::$kind => ($from, $to),)+ }
            }
        }

        /// A message with its untrusted body; see [`convert`](super::convert).
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant)] // Messages are handled one by one.
        pub enum Message { $($(#[$doc])* $kind($body),)+ }

        impl Message {
            /// Returns the message's kind.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)+ }
            }

            pub(super) fn write_body(&self, frame: Vec<u8>) -> postcard::Result<Vec<u8>> {
                match self { $(Self::$kind(body) => postcard::to_extend(body, frame),)+ }
            }

            pub(super) fn read_body(kind: Kind, body: &[u8]) -> postcard::Result<(Self, &[u8])> {
                match kind {
                    $(Kind::$kind => postcard::take_from_bytes(body).map(|(body, rest)| (Self::$kind(body), rest)),)+
                }
            }
        }
    };
}

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// A body of a few numbers.
const SMALL: u32 = 256;
/// The largest body of a message that may not be split.
const IN_FRAME: u32 = CHUNK_BYTES - HEADER_BYTES as u32;
/// A call, …
const CALL: u32 = 64 * MIB;
/// … and its result: a sample, or the state of a worker, which may be many times as long as its description.
const RESULT: u32 = 1024 * MIB;
/// The additional size of a call that is passed on: a name and an id.
const PASSED_ON: u32 = 128;

messages! {
    /// Any peer's first message.
    Hello(Hello) = 0x01, from NONE to NONE, at most PRE_AUTH_FRAME_BYTES - HEADER_BYTES as u32;
    /// The hub accepts the peer.
    Welcome(Welcome) = 0x02, from NONE to ALL, at most 4 * KIB;
    /// The hub refuses the peer.
    Refused(Refused) = 0x03, from NONE to ALL, at most 4 * KIB;
    /// Either side closes the connection on purpose.
    Goodbye(Goodbye) = 0x04, from ALL to ALL, at most 4 * KIB;
    /// A part of a message that is too large for one frame.
    Chunk(Chunk) = 0x05, from WORKER to ACTORS, at most MAX_FRAME_BYTES - HEADER_BYTES as u32;
    /// Grants credit for more chunks.
    Credit(Credit) = 0x06, from ACTORS to WORKER, at most SMALL;
    /// A peer presents the token that replaces the one of its connection.
    Renew(Renew) = 0x07, from ALL to NONE, at most SMALL;
    /// Hub to worker: a run begins.
    RunStart(RunStart) = 0x10, from NONE to WORKER, at most RunConfig::MAX_WIRE_BYTES as u32 + 16;
    /// Hub to worker: a run is over.
    RunEnd(RunEnd) = 0x11, from NONE to WORKER, at most SMALL;
    /// Hub to worker: new weights.
    WeightsUpdate(WeightsUpdate) = 0x12, from NONE to ACTORS, at most 64 * MIB;
    /// Hub to worker: grants a lease.
    LeaseGrant(LeaseGrant) = 0x13, from NONE to WORKER, at most 16 * MIB;
    /// Hub to worker: revokes a lease.
    Revoke(Revoke) = 0x14, from NONE to WORKER, at most SMALL;
    /// Worker to hub: refuses a lease, or reports a failed fragment of it.
    LeaseRefused(LeaseRefused) = 0x15, from WORKER to NONE, at most 4 * KIB;
    /// Worker to hub: progress of a lease.
    Progress(Progress) = 0x16, from WORKER to NONE, at most SMALL;
    /// Worker to hub: fragments of a lease.
    FragmentUpload(FragmentUpload) = 0x17, from WORKER to NONE, at most 32 * MIB;
    /// Worker to hub: new weights are applied.
    WeightsApplied(WeightsApplied) = 0x18, from WORKER to NONE, at most SMALL;
    /// Hub to worker: settings of a whole rollout worker.
    WorkerSetup(WorkerSetup) = 0x19, from NONE to WORKER, at most 4 * MIB;
    /// Hub to worker: a call.
    Call(Call) = 0x1a, from NONE to WORKER, at most CALL;
    /// Worker to hub: the result of a call.
    CallResult(CallResult) = 0x1b, from WORKER to NONE, at most RESULT;
    /// Worker to hub: progress of a call.
    CallProgress(CallProgress) = 0x1c, from WORKER to NONE, at most SMALL;
    /// Worker to hub: whether it can run a run, and why not.
    RunAnswer(RunAnswer) = 0x1d, from WORKER to NONE, at most 4 * KIB;
    /// Worker to hub: fragments of a lease, with rows by policy.
    AgentUpload(AgentUpload) = 0x1e, from WORKER to NONE, at most 32 * MIB;
    /// Hub to worker: cancels a call.
    CallCancel(CallCancel) = 0x1f, from NONE to WORKER, at most SMALL;
    /// Hub to dashboard: state of the run.
    RunStatus(RunStatus) = 0x20, from NONE to DASHBOARDS, at most 8 * KIB;
    /// Hub to dashboard: the metrics of an iteration.
    Iteration(Iteration) = 0x21, from NONE to DASHBOARDS, at most SMALL;
    /// Hub to dashboard: a worker changed.
    WorkerRow(WorkerRow) = 0x22, from NONE to DASHBOARDS, at most 4 * KIB;
    /// Hub to dashboard: a worker disconnected.
    WorkerGone(WorkerGone) = 0x23, from NONE to DASHBOARDS, at most SMALL;
    // 0x24 belonged to observations of the watched environment.
    /// Hub to dashboard: a notice for the user.
    Notice(Notice) = 0x25, from NONE to DASHBOARDS, at most 4 * KIB;
    /// Hub to dashboard: the ledger of all granted env steps.
    LedgerReport(LedgerReport) = 0x26, from NONE to DASHBOARDS, at most 16 * KIB;
    /// Hub to dashboard: the settings that a run may have.
    RunSchema(RunSchema) = 0x27, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Hub to dashboard: the hub's runs.
    RunList(RunList) = 0x28, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Hub to dashboard: further metrics of an iteration, by name.
    NamedMetrics(NamedMetrics) = 0x29, from NONE to DASHBOARDS, at most 4 * KIB;
    /// Hub to dashboard: where a worker runs.
    WorkerLocation(WorkerLocation) = 0x2a, from NONE to DASHBOARDS, at most SMALL;
    /// Hub to dashboard: its peers except the workers of runs.
    OtherPeers(OtherPeers) = 0x2b, from NONE to DASHBOARDS, at most 16 * KIB;
    /// Hub to dashboard: its launchers.
    LauncherList(LauncherList) = 0x2c, from NONE to DASHBOARDS, at most 8 * KIB;
    /// Hub to dashboard: the certificate by which peers verify it.
    HubCertificate(HubCertificate) = 0x2d, from NONE to DASHBOARDS, at most SMALL;
    /// Operator to hub: pause the run.
    Pause(Request) = 0x30, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: resume the run.
    Resume(Request) = 0x31, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: end the run.
    Stop(Request) = 0x32, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: start one more local worker.
    AddWorker(Request) = 0x33, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: remove a worker.
    RemoveWorker(WorkerRequest) = 0x34, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: begin a run.
    StartRun(StartRun) = 0x35, from OPERATOR to NONE, at most RunConfig::MAX_WIRE_BYTES as u32 + 16;
    /// Operator to hub: watch another slot.
    Watch(Watch) = 0x36, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: request a token with which a tab can join as worker.
    WorkerTokenRequest(Request) = 0x37, from OPERATOR to NONE, at most SMALL;
    /// Hub to dashboard: whether a request was executed, or why not.
    Reply(Reply) = 0x38, from NONE to DASHBOARDS, at most 4 * KIB;
    /// Hub to operator: the requested worker token.
    WorkerToken(WorkerToken) = 0x39, from NONE to OPERATOR, at most SMALL;
    /// Operator to hub: set the number of local workers.
    Scale(Scale) = 0x3a, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: let the leases of the run end, keep their fragments, and end it.
    Drain(Request) = 0x3b, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: write a checkpoint of the run now.
    Checkpoint(Request) = 0x3c, from OPERATOR to NONE, at most SMALL;
    /// Operator to hub: list, create, revoke or rotate tokens.
    ManageTokens(ManageTokens) = 0x3d, from OPERATOR to NONE, at most SMALL;
    /// Hub to operator: the list of tokens.
    TokenRows(TokenRows) = 0x3e, from NONE to OPERATOR, at most 32 * KIB;
    /// Hub to operator: a token that was just created.
    NewToken(NewToken) = 0x3f, from NONE to OPERATOR, at most SMALL;
    /// Hub to client: agents and spaces of the episodes.
    Spaces(Spaces) = 0x40, from NONE to CLIENT, at most IN_FRAME;
    /// Client to hub: an episode begins.
    StartEpisode(StartEpisode) = 0x41, from CLIENT to NONE, at most SMALL;
    /// Client to hub: requests actions.
    GetAction(GetAction) = 0x42, from CLIENT to NONE, at most IN_FRAME;
    /// Client to hub: logs actions that it has chosen.
    LogAction(LogAction) = 0x43, from CLIENT to NONE, at most IN_FRAME;
    /// Client to hub: logs the results of actions.
    LogReturns(LogReturns) = 0x44, from CLIENT to NONE, at most IN_FRAME;
    /// Client to hub: ends an episode.
    EndEpisode(EndEpisode) = 0x45, from CLIENT to NONE, at most IN_FRAME;
    /// Client to hub: abandons an episode.
    AbandonEpisode(AbandonEpisode) = 0x46, from CLIENT to NONE, at most SMALL;
    /// Hub to client: the requested actions.
    Actions(Actions) = 0x47, from NONE to CLIENT, at most IN_FRAME;
    /// Hub to client: whether a message was handled, or why not.
    EpisodeReply(EpisodeReply) = 0x48, from NONE to CLIENT, at most 4 * KIB;
    /// Hub to dashboard: the metrics of an evaluation.
    Evaluation(EvaluationPoint) = 0x50, from NONE to DASHBOARDS, at most SMALL;
    // 0x51 belonged to observations of evaluated episodes, 0x52 to 0x56 to evaluators.
    /// Worker to hub: a request to an evaluation worker.
    Ask(Ask) = 0x57, from WORKER to NONE, at most CALL + PASSED_ON;
    /// Worker to hub: cancels a request.
    AskCancel(AskCancel) = 0x58, from WORKER to NONE, at most SMALL;
    /// Hub to worker: the answer to a request.
    Asked(Asked) = 0x59, from NONE to WORKER, at most RESULT + PASSED_ON;
    /// Hub to dashboard: an episode of the latest evaluation.
    EvaluationClip(EnvClip) = 0x5a, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Hub to dashboard: an episode of the best evaluation.
    BestEvaluationClip(EnvClip) = 0x5b, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Operator to hub: remove a run from the queue.
    RemoveRun(RemoveRun) = 0x60, from OPERATOR to NONE, at most SMALL;
    /// Dashboard to hub: requests the curves and settings of a run.
    RunHistoryRequest(RunHistoryRequest) = 0x61, from DASHBOARDS to NONE, at most SMALL;
    /// Hub to dashboard: the curves and settings of a run.
    RunHistory(RunHistory) = 0x62, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Dashboard to hub: requests the runs below the hub's directory of runs.
    SavedRunsRequest(Request) = 0x63, from DASHBOARDS to NONE, at most SMALL;
    /// Hub to dashboard: those runs.
    SavedRuns(SavedRuns) = 0x64, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Dashboard to hub: requests the curves and settings of one of them.
    SavedRunRequest(SavedRunRequest) = 0x65, from DASHBOARDS to NONE, at most KIB;
    /// Operator to hub: resume one of them.
    ResumeRun(SavedRunRequest) = 0x66, from OPERATOR to NONE, at most KIB;
    /// Operator to hub: delete one of them with its files.
    DeleteRun(SavedRunRequest) = 0x67, from OPERATOR to NONE, at most KIB;
    /// Worker to hub, and hub to dashboard: a host, and how busy it is.
    HostReport(HostReport) = 0x68, from WORKER to DASHBOARDS, at most 8 * KIB;
    /// Hub to operator: new lines of a worker's log.
    WorkerLog(WorkerLog) = 0x69, from NONE to OPERATOR, at most 64 * KIB;
    /// Dashboard to hub: requests the latest fragment of the watched slot.
    FragmentRequest(Request) = 0x6a, from DASHBOARDS to NONE, at most SMALL;
    /// Hub to dashboard: that fragment.
    FragmentReport(FragmentReport) = 0x6b, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Hub to dashboard: pictures of the watched slot.
    SlotClip(EnvClip) = 0x6c, from NONE to DASHBOARDS, at most IN_FRAME;
    /// Dashboard to hub: requests a recent fragment of a slot.
    RecentFragmentRequest(RecentFragmentRequest) = 0x6d, from DASHBOARDS to NONE, at most SMALL;
    /// Launcher to hub: how many workers it can run, and which it runs.
    LauncherReady(LauncherReady) = 0x70, from LAUNCHER to NONE, at most 16 * KIB;
    /// Hub to launcher: start a worker.
    LaunchWorker(LaunchWorker) = 0x71, from NONE to LAUNCHER, at most 4 * KIB;
    /// Hub to launcher: end a worker.
    EndWorker(EndWorker) = 0x72, from NONE to LAUNCHER, at most SMALL;
    /// Launcher to hub: a worker has ended, or could not be started.
    WorkerEnded(WorkerEnded) = 0x73, from LAUNCHER to NONE, at most 4 * KIB;
    /// Worker to hub, and hub to a worker that acts for others: rows of observations.
    Infer(Infer) = 0x80, from WORKER to WORKER, at most IN_FRAME;
    /// The answer: the outputs of the policy's networks.
    Inferred(Inferred) = 0x81, from WORKER to WORKER, at most IN_FRAME;
    /// Hub to worker: new weights with 16-bit values.
    HalfWeightsUpdate(HalfWeightsUpdate) = 0x90, from NONE to ACTORS, at most 64 * MIB;
    /// Hub to worker or relay: the hash of new weights, which a relay has.
    WeightsNotice(WeightsNotice) = 0x91, from NONE to ACTORS, at most SMALL;
    /// Worker or relay to hub: requests weights that no relay could provide.
    WeightsRequest(WeightsRequest) = 0x92, from ACTORS to NONE, at most SMALL;
    /// Worker to hub: fragments of a lease, compressed.
    CompressedUpload(CompressedUpload) = 0x93, from WORKER to NONE, at most 32 * MIB;
    /// Operator to hub: end the process of a worker, and start another one in its place.
    RestartWorker(WorkerRequest) = 0xa0, from OPERATOR to NONE, at most SMALL;
}

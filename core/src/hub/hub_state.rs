//! The state of a hub, and what its transitions ask of the shell.

use super::{
    BatchWork, ClipJob, HubTokens, NoticeRate, Peer, PeerConnection, Record, RunCourse, RunFacts, RunLoop, RunQueue,
    RunStep, TrainBatchError, asks::Asks, dashboards::Dashboards, inference::HubInference, logs::Logs,
    run_queue::WaitingRun, run_starts::RunStart,
};
use crate::{
    group::{AuditTask, JournalEntry, Principal},
    ids::FragmentNo,
    prelude::*,
    protocol::{
        Kind, TokenId,
        message::{CallResult, HubCertificate},
    },
    time::Micros,
    weights::Weights,
};

/// A hub without I/O: its peers, tokens and run, and what follows from everything that happens to them.
///
/// The shell sets the [time](Self::set_time), passes one event to a `handle_` method or to a request such as
/// [`stop_run`](Self::stop_run), and executes [effects](Self::poll_effect) until there are none. Messages for peers are queued
/// on their [connections](super::PeerConnection).
#[derive(Debug)]
pub struct Hub<C, R> {
    pub(super) setup: HubSetup,
    pub(super) now: Micros,
    pub(super) seconds: u64,
    /// The tokens that admit peers. A shell that keeps tokens in files changes both.
    pub tokens: HubTokens,
    /// The connected peers, by id.
    pub peers: BTreeMap<u32, Peer<C>>,
    pub(super) next_peer: u32,
    /// Evaluator names that a browser tab may not use.
    pub(super) reserved_names: BTreeSet<String>,
    pub(super) asks: Asks,
    pub(super) inference: HubInference,
    /// The current run, or the one that is over.
    pub run: Option<R>,
    /// Decides which step of the run comes next.
    pub course: RunCourse,
    /// The runs that wait, and those that are over.
    pub queue: RunQueue,
    /// The number of the next run.
    pub(super) next_run: u32,
    /// The run that is about to begin.
    pub(super) starting: Option<RunStart>,
    /// True while the shell finishes the run that is over: the next one begins afterwards.
    pub is_finishing: bool,
    /// The pending audits, by the run that began them and their number, with the run that awaits them.
    pub(super) audits: BTreeMap<(u32, u64), u32>,
    /// True once the program is about to exit: the hub accepts no more workers and runs.
    pub is_leaving: bool,
    /// True if the hub outlives its runs, so that further ones may wait.
    pub keeps_queue: bool,
    /// Number of local workers that ended unexpectedly and were replaced.
    pub num_worker_restarts: u64,
    /// The state that dashboards are shown.
    pub dashboards: Dashboards,
    pub(super) logs: Logs,
    /// Hung workers, and since when.
    pub(super) hung: BTreeMap<u32, Micros>,
    /// Since when no worker has been able to continue the run.
    pub(super) hopeless_since: Option<Micros>,
    /// Limits notices about unauthenticated and misbehaving peers.
    pub(super) loud: NoticeRate,
    /// Limits notices about peers that connect and disconnect.
    pub(super) comings: NoticeRate,
    pub(super) effects: VecDeque<HubEffect<C>>,
}

/// The properties that distinguish a hub from others.
#[derive(Clone, Debug, Default)]
pub struct HubSetup {
    /// Distinguishes connections of this process from those of earlier hubs of the same run. Never 0.
    pub life: u32,
    /// The fingerprint that workers need.
    pub fingerprint: [u8; 16],
    /// Name and version of the program, for peers.
    pub server: String,
    /// The schema of the settings of runs, for dashboards.
    pub schema: String,
    /// The certificate by which peers verify the hub; `None` without encryption.
    pub certificate: Option<HubCertificate>,
    /// Whether to distrust all workers that are not the hub's own.
    pub distrusts_remote: bool,
    /// Whether a run is rolled back after a failed audit, instead of continuing as tainted.
    pub rolls_back: bool,
}

/// A run of a hub, as its shell keeps it: the [loop](RunLoop), a consumer of its batches, and files.
pub trait HubRun {
    /// Returns its loop.
    fn state(&self) -> &RunLoop;

    /// Returns its loop.
    fn state_mut(&mut self) -> &mut RunLoop;

    /// Returns what decides about its course and only the shell knows. [`RunFacts::may_be_undone`] is about a rollback to
    /// before the given batch.
    fn facts(&mut self, roll_back_before: Option<FragmentNo>, now: Micros) -> RunFacts;

    /// Keeps a snapshot if untrusted workers are about to commit fragments.
    fn keep_for_undoing(&mut self, now: Micros);

    /// Keeps the run's own worker, if it has one, from completing its current batch.
    fn interrupt(&self) {}

    /// Records that its batches have rows of a principal that failed an audit.
    fn taint(&mut self) {
        self.state_mut().taint();
    }
}

/// The actions that the shell has to take, in this order.
#[derive(Debug)]
pub enum HubEffect<C> {
    /// Add a record to the audit log.
    Record(Record),
    /// Show a notice to the user of the program.
    Notice {
        /// 0 information, 1 warning, 2 error.
        level: u8,
        /// The text, one line.
        text: String,
    },
    /// Report that a worker joined that takes part in runs.
    Joined(u32),
    /// A peer has disconnected, or was expelled.
    Left {
        /// Its id.
        id: u32,
        /// The peer.
        peer: Box<Peer<C>>,
        /// The reason.
        reason: String,
    },
    /// Pass on a worker's answer to a call of the program.
    Answered {
        /// The worker.
        peer: u32,
        /// The answer.
        result: CallResult,
    },
    /// The consequence for the process of a local worker.
    Child {
        /// Its number.
        child: u32,
        /// Its fate.
        fate: ChildFate,
    },
    /// A local worker has hung for too long: end its process if another one may take its place.
    Hung {
        /// The worker.
        worker: u32,
        /// Its number.
        child: u32,
        /// The least duration for which it has hung.
        patience: Micros,
    },
    /// A principal has failed an audit, and its workers are expelled: revoke its tokens, also where they are stored, then
    /// [expel](Hub::expel_invalid) their holders.
    Quarantine {
        /// The principal.
        principal: Principal,
        /// Its tokens, unless others have them, too.
        tokens: Vec<TokenId>,
        /// The first batch that may have divergent rows of it, if there is one.
        first_doubtful: Option<FragmentNo>,
    },
    /// [Reply](Hub::reply) to an operator whose command the earlier effects have executed.
    Reply {
        /// The operator.
        peer: u32,
        /// The command's kind.
        kind: Kind,
        /// Its number.
        request: u32,
    },
    /// Notify callers that wait until all workers act with new weights.
    WeightsApplied,
    /// Give a batch to its consumer.
    Consume(Result<BatchWork, TrainBatchError>),
    /// Add an entry to the run's journal.
    Journal(JournalEntry),
    /// Recompute a fragment; [`handle_audited`](Hub::handle_audited) must follow.
    Audit {
        /// The run.
        run: u32,
        /// The fragment.
        task: Box<AuditTask>,
        /// The weights that it was made with.
        weights: Weights,
    },
    /// [Draw](ClipJob::draw) a fragment; [`handle_clip`](Hub::handle_clip) must follow.
    Draw(Box<ClipJob>),
    /// Take a step of the run.
    Step(RunStep),
    /// Make the parts of the run that has waited longest, and begin it; [`end_start`](Hub::end_start) must follow.
    MakeRun(Box<WaitingRun>),
    /// Give up the run whose parts are being made: an operator has removed it.
    GiveUpStart,
}

/// The fate of a local worker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildFate {
    /// It has done useful work.
    Useful,
    /// It is not replaced once it ends.
    Last,
    /// It is not replaced, and has to end: it has been sent a goodbye.
    Dismissed,
    /// It is in quarantine: another one takes its place.
    Replaced,
    /// An operator restarts it: another one takes its place, which counts as no failure.
    Restarted,
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Creates a hub without peers and runs.
    #[must_use]
    pub fn new(setup: HubSetup, tokens: HubTokens) -> Self {
        Self {
            setup,
            now: Micros(0),
            seconds: 0,
            tokens,
            peers: BTreeMap::new(),
            next_peer: 1,
            reserved_names: BTreeSet::new(),
            asks: Asks::default(),
            inference: HubInference::default(),
            run: None,
            course: RunCourse::default(),
            queue: RunQueue::default(),
            next_run: 1,
            starting: None,
            is_finishing: false,
            audits: BTreeMap::new(),
            is_leaving: false,
            keeps_queue: false,
            num_worker_restarts: 0,
            dashboards: Dashboards::default(),
            logs: Logs::default(),
            hung: BTreeMap::new(),
            hopeless_since: None,
            loud: NoticeRate::default(),
            comings: NoticeRate::default(),
            effects: VecDeque::new(),
        }
    }

    /// Sets the time of the events that follow: on the shell's clock, and in seconds since 1970.
    pub fn set_time(&mut self, now: Micros, seconds: u64) {
        (self.now, self.seconds) = (now, seconds);
    }

    /// Returns the loop of the current run, or of the one that is over.
    pub fn state(&self) -> Option<&RunLoop> {
        self.run.as_ref().map(R::state)
    }

    pub(super) fn state_mut(&mut self) -> Option<&mut RunLoop> {
        self.run.as_mut().map(R::state_mut)
    }

    /// Returns the current run unless it is over.
    pub fn current(&mut self) -> Option<&mut R> {
        self.run.as_mut().filter(|run| !run.state().is_over())
    }

    /// Returns the workers that have a place and take part in runs.
    pub fn workers(&self) -> impl Iterator<Item = (u32, &Peer<C>)> {
        self.peers.iter().filter(|(_, peer)| peer.is_worker()).map(|(&id, peer)| (id, peer))
    }

    /// Returns the peer of a local worker, if it is connected.
    pub fn peer_of_child(&self, child: u32) -> Option<u32> {
        self.peers.iter().find(|(_, peer)| peer.child == Some(child)).map(|(&id, _)| id)
    }
    pub(super) fn decide(&mut self, child: Option<u32>, fate: ChildFate) {
        self.effects.extend(child.map(|child| HubEffect::Child { child, fate }));
    }
}

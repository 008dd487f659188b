//! The actor: the task that owns all of the hub's state.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hub::{NoticeRate, Offences, RunCourse, RunQueue},
    ids::{LeaseId, WeightsVersion},
    kernels::Kernels,
    protocol::{
        Role, Token, TokenId,
        handshake::PeerService,
        message::{HostReport, RunStatus},
    },
    time::Micros,
    weights::Weights,
    worker::Registry,
    worker::core_fingerprint,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep_until},
};

use super::{
    HubNotice, Traffic,
    access::Tokens,
    admit::random_id,
    asks::Asks,
    audit::{Audit, Record},
    auditor::{Auditor, Distrust},
    calls::{NewsSink, WorkerOrder},
    checkpoints::{Asker, Askers, next_save},
    children::Children,
    dashboard::Dashboard,
    departure::Departure,
    in_process::InProcess,
    launchers::Launchers,
    link::{CloseReason, PeerLink},
    monitoring::{HUB, Monitoring},
    peer::Knock,
    room::Reserved,
    runs::{Finishing, next_fault},
    saved_runs::Finding,
    socket::Received,
};
use crate::{
    checkpoint::PolicyCheckpoint,
    launch::{LaunchedEnd, WorkerSpec},
    train::{Consuming, IterationMetrics, Run, RunEnd, StartError, Summary, SyncError, Task, Update, Work},
    worker::WorkerEnd,
};

/// Minimum interval between two updates to dashboards.
const DASHBOARD_INTERVAL: Duration = Duration::from_millis(100);

/// Events that the actor handles.
#[derive(Debug)]
pub(super) enum Event {
    /// A peer sent its Hello.
    Knock(Box<Knock>),
    /// A peer was refused before its Hello was accepted.
    Refused { from: SocketAddr, reason: String },
    /// A record for the audit log.
    Remember(Record),
    /// A peer sent a message that its role allows.
    Received {
        peer: u32,
        received: Box<Received>,
        /// The memory reserved for the message, if it came in parts.
        room: Option<Reserved>,
    },
    /// A peer disconnected.
    Left { peer: u32, departure: Departure },
    /// A local worker's process exited.
    ChildExited { number: u32, end: LaunchedEnd },
    /// A local worker has been disconnected for some time.
    ChildSilent { number: u32 },
    /// A local worker wrote a line to its standard error.
    ChildSaid { number: u32, line: String },
    /// The hub measured the load of its machine.
    Measured(HostReport),
    /// A thread has read files for a request.
    FilesRead(Finding),
    /// A request for metrics, with its token; the answer is `None` if that is not valid.
    Metrics { token: Token, reply: oneshot::Sender<Option<String>> },
    /// A message of the in-process worker for the user.
    InProcessSaid(String),
    /// The in-process worker ended.
    InProcessEnded(WorkerEnd),
    /// The delay is over after which a local worker that ended, or failed to start, is replaced.
    ReplaceChild { number: u32 },
    /// The program starts a run.
    Start {
        task: Task,
        work: Work,
        /// Each iteration begins only when the program asks for it.
        stepwise: bool,
        started: oneshot::Sender<Result<(), StartError>>,
        done: oneshot::Sender<Summary>,
    },
    /// The program asks for the next iteration of a stepwise run.
    Step { asker: oneshot::Sender<IterationMetrics> },
    /// The program asks for the policies of the current run.
    Policy { asker: oneshot::Sender<PolicyCheckpoint> },
    /// The program sets weights.
    SyncWeights { weights: Weights, applied: oneshot::Sender<Result<WeightsVersion, SyncError>> },
    /// The program asks for a checkpoint of the run.
    Checkpoint { asker: Asker },
    /// The program asks for the workers' traffic and processes.
    CountTraffic { reply: oneshot::Sender<Traffic> },
    /// The program stops the run.
    StopRun,
    /// A command of the program to the workers themselves.
    Workers(WorkerOrder),
    /// The program is about to exit: the hub accepts no more workers and runs, and drains the current run.
    Drain { drained: oneshot::Sender<()> },
    /// The program shuts the hub down.
    Shutdown,
    /// Replaces the run's ledger by this one, to test the balance check.
    #[cfg(test)]
    Falsify(rollmesh_core::group::Ledger),
}

pub(super) struct Peer {
    pub(super) role: Role,
    pub(super) link: PeerLink,
    /// `native`, `browser`, …
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) device: String,
    /// The launcher that started it, if a connected one did.
    pub(super) launcher: String,
    /// The local worker's number: of a child process, or [`IN_PROCESS`](super::in_process::IN_PROCESS).
    pub(super) child: Option<u32>,
    /// The service that the peer connected for.
    pub(super) service: PeerService,
    /// True for a spare local worker, which has no place in the run yet.
    pub(super) is_spare: bool,
    /// The token that the peer authenticated with.
    pub(super) token: TokenId,
    /// Why the peer is about to leave, if it has announced that.
    pub(super) leaving: Option<String>,
    pub(super) admitted_at: Micros,
    /// True for a worker of which the hub has accepted something.
    pub(super) has_delivered: bool,
    /// True once the peer has its welcome and, as a dashboard, a full snapshot: from then on it receives changes.
    pub(super) is_up_to_date: bool,
    /// True if state updates were skipped because the peer is a slow consumer.
    pub(super) has_missed: bool,
    /// Calls that the peer has not answered yet.
    pub(super) calls: BTreeSet<u64>,
    pub(super) offences: Offences,
}

impl Peer {
    /// True for a worker that has a place and takes part in runs.
    pub(super) fn is_worker(&self) -> bool {
        self.role == Role::Worker && self.service == PeerService::Runs && !self.is_spare
    }
}

pub(super) struct Actor {
    pub(super) registry: Registry,
    pub(super) kernels: Kernels,
    pub(super) auditor: Auditor,
    pub(super) distrust: Distrust,
    /// Distinguishes connections of this process from those of earlier hubs of the same run. Never 0.
    pub(super) life: u32,
    pub(super) fingerprint: [u8; 16],
    pub(super) tokens: Tokens,
    pub(super) children: Children,
    /// Starts the children.
    pub(super) launchers: Launchers,
    pub(super) in_process: Option<InProcess>,
    /// The program that is started for evaluations alongside runs.
    pub(super) program: PathBuf,
    /// Parent directory of the run directories for runs started from the page.
    pub(super) runs_dir: Option<PathBuf>,
    /// Resources of a local worker, unless the run specifies others.
    pub(super) worker: WorkerSpec,
    pub(super) peers: BTreeMap<u32, Peer>,
    /// Open requests of workers to evaluators.
    pub(super) asks: Asks,
    /// Evaluator names that a browser tab may not use.
    pub(super) reserved_names: BTreeSet<String>,
    pub(super) next_peer: u32,
    pub(super) run: Option<Run>,
    pub(super) next_run: u32,
    pub(super) queue: RunQueue,
    /// Number of requests for which files are being read.
    pub(super) num_reading: usize,
    pub(super) next_lease: LeaseId,
    /// Decides which step of the run comes next.
    pub(super) course: RunCourse,
    /// Callers waiting for the run to have drained.
    pub(super) drained: Vec<oneshot::Sender<()>>,
    /// True once the program is about to exit.
    pub(super) is_leaving: bool,
    /// The consumer's progress with the iteration's batch.
    pub(super) update: Option<Consuming>,
    /// Delivers the metrics of the iteration that the program has asked for.
    pub(super) turn: Option<oneshot::Sender<IterationMetrics>>,
    /// Callers waiting for a checkpoint.
    pub(super) askers: Askers,
    /// Callers waiting until all workers have applied new weights.
    pub(super) syncing: Vec<(WeightsVersion, oneshot::Sender<Result<WeightsVersion, SyncError>>)>,
    /// Bytes received from workers that have disconnected since.
    pub(super) left_bytes: u64,
    pub(super) done: Option<oneshot::Sender<Summary>>,
    /// The run that is over, until its last pictures are drawn. Its summary follows.
    pub(super) finishing: Option<Finishing>,
    /// Number of local workers that ended unexpectedly and were replaced.
    pub(super) num_worker_restarts: u64,
    pub(super) dashboard: Dashboard,
    pub(super) monitoring: Monitoring,
    /// Hung workers, and since when.
    pub(super) hung: BTreeMap<u32, Micros>,
    /// Since when no worker has been able to continue the run.
    pub(super) hopeless_since: Option<Micros>,
    /// Since when the run has been waiting for workers, and whether the user was told.
    pub(super) waiting_since: Option<(Micros, bool)>,
    /// Receives worker notifications besides the run.
    pub(super) listener: Option<NewsSink>,
    status: watch::Sender<RunStatus>,
    pub(super) notices: mpsc::Sender<HubNotice>,
    /// Rate limit for notices about unauthenticated and misbehaving peers, and the count of those left out.
    pub(super) loud: NoticeRate,
    /// Rate limit for notices about peers that connect and disconnect.
    pub(super) comings: NoticeRate,
    pub(super) audit: Audit,
    epoch: Instant,
}

impl Actor {
    pub(super) fn new(
        registry: Registry,
        (kernels, distrust, life): (Kernels, Distrust, u32),
        tokens: Tokens,
        (children, launchers, worker): (Children, Launchers, WorkerSpec),
        (program, runs_dir): (PathBuf, Option<PathBuf>),
        (status, notices): (watch::Sender<RunStatus>, mpsc::Sender<HubNotice>),
        audit: Audit,
    ) -> Self {
        Self {
            auditor: Auditor::new(registry.clone(), kernels),
            distrust,
            life,
            registry,
            kernels,
            fingerprint: core_fingerprint(kernels),
            tokens,
            children,
            launchers,
            in_process: None,
            program,
            runs_dir,
            worker,
            peers: BTreeMap::new(),
            asks: Asks::default(),
            reserved_names: BTreeSet::new(),
            next_peer: 1,
            run: None,
            next_run: 1,
            queue: RunQueue::default(),
            num_reading: 0,
            next_lease: LeaseId(1),
            course: RunCourse::default(),
            drained: Vec::new(),
            is_leaving: false,
            update: None,
            turn: None,
            askers: Askers::default(),
            syncing: Vec::new(),
            left_bytes: 0,
            done: None,
            finishing: None,
            num_worker_restarts: 0,
            dashboard: Dashboard::default(),
            monitoring: Monitoring::default(),
            hung: BTreeMap::new(),
            hopeless_since: None,
            waiting_since: None,
            listener: None,
            status,
            notices,
            loud: NoticeRate::default(),
            comings: NoticeRate::default(),
            audit,
            epoch: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.epoch.elapsed().into()
    }

    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut refresh = interval(DASHBOARD_INTERVAL);
        loop {
            let deadline = self.run.as_ref().and_then(|run| run.state.group.poll_timeout());
            let step = self.run.as_ref().and_then(|run| self.course.poll_timeout(&run.state, self.now()));
            let [deadline, step] = [deadline, step].map(|at| at.map(|at| self.epoch + Duration::from(at)));
            tokio::select! {
                event = events.recv() => match event {
                    None | Some(Event::Shutdown) => break,
                    Some(event) => self.handle(event),
                },
                update = next_update(&mut self.update) => self.handle_update(update),
                report = next_save(&mut self.run) => self.handle_save(report),
                fault = next_fault(&mut self.finishing) => self.handle_last_pictures(fault),
                Some(audited) = self.auditor.next() => self.handle_audited(&audited),
                () = until(deadline) => self.handle_deadline(&mut events),
                () = until(step) => {}
                _ = refresh.tick() => {
                    self.expel_invalid();
                    self.tend_launchers();
                    self.end_hung();
                    self.end_hung_run();
                    self.tell_of_waiting();
                    self.end_hopeless();
                    self.end_unwanted_run();
                    self.hear_evaluation();
                    self.interrupt_late_run();
                    self.catch_up_lines();
                    self.check_books();
                    self.refresh_dashboards();
                }
            }
            self.settle();
        }
        self.say_goodbye(&mut events).await;
    }

    /// Takes all steps that are due after an event. Each may make others due.
    fn settle(&mut self) {
        loop {
            self.convict_liars();
            self.drain_group();
            self.audit_fragments();
            match self.poll_step() {
                Some(step) => self.take_step(step),
                None if self.begin_next_run() => {}
                None => break,
            }
        }
        self.tend_in_process();
    }

    /// Handles the events that are queued before it handles a deadline: after a suspension of the hub, workers must not be
    /// blamed for messages that were not read yet.
    fn handle_deadline(&mut self, events: &mut mpsc::Receiver<Event>) {
        for _ in 0..events.len() {
            match events.try_recv() {
                // The event loop has to see the shutdown: it does when the channel is closed.
                Ok(Event::Shutdown) => return events.close(),
                Ok(event) => self.handle(event),
                Err(_) => break,
            }
        }
        let now = self.now();
        if let Some(run) = &mut self.run {
            run.state.group.handle_timeout(now);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Knock(knock) => self.answer(*knock),
            Event::Refused { from, reason } => {
                self.remember(&Record::Refused { from, why: "no Hello" });
                self.notice_offence(format!("a connection was refused: {reason}"));
            }
            Event::Remember(record) => self.remember(&record),
            Event::Received { peer, received, room } => {
                // A peer that was expelled after it had sent this is ignored.
                if self.peers.contains_key(&peer) {
                    self.handle_received(peer, *received);
                }
                drop(room);
            }
            Event::Left { peer, departure } => self.forget(peer, &departure),
            Event::ChildExited { number, end } => self.handle_child_exit(number, &end),
            Event::ChildSilent { number } => self.handle_silent_child(number),
            Event::ChildSaid { number, line } => self.log_child(number, &line),
            Event::Measured(report) => self.handle_host_report(HUB, report),
            Event::FilesRead(finding) => self.handle_finding(finding),
            // The connection may have ended.
            Event::Metrics { token, reply } => _ = reply.send(self.metrics_for(&token)),
            Event::InProcessSaid(line) => self.notice(1, format!("in-process worker: {line}")),
            Event::InProcessEnded(end) => self.handle_in_process_end(&end),
            Event::ReplaceChild { number } => self.replace_awaited(number),
            Event::Step { asker } => self.take_turn(asker),
            Event::Policy { asker } => {
                if let Some(run) = self.run.as_ref().filter(|_| self.has_stepwise_run()) {
                    // The caller may no longer wait.
                    let _ = asker.send(run.policy());
                }
            }
            Event::Start { task, work, stepwise, started, done } => {
                let result = self.start_run(None, task, work);
                if result.is_ok() {
                    self.done = Some(done);
                    self.course.set_stepwise(stepwise);
                }
                // The caller may have dropped the receiver; the run continues.
                let _ = started.send(result);
            }
            Event::Drain { drained } => {
                self.is_leaving = true;
                self.give_up_waiting();
                if self.run.as_ref().is_some_and(|run| !run.is_over()) {
                    self.drained.push(drained);
                    self.drain_run();
                } else {
                    // The caller may have dropped the receiver.
                    let _ = drained.send(());
                }
            }
            Event::StopRun => self.stop_run(),
            Event::Checkpoint { asker } => self.checkpoint_now(asker),
            Event::SyncWeights { weights, applied } => self.sync_weights(&weights, applied),
            // The caller may have dropped the receiver.
            Event::CountTraffic { reply } => _ = reply.send(self.traffic()),
            Event::Workers(order) => self.obey_program(order),
            Event::Shutdown => {}
            #[cfg(test)]
            Event::Falsify(books) => self.run.iter_mut().for_each(|run| run.false_ledger = Some(books)),
        }
    }

    fn traffic(&self) -> Traffic {
        let workers = self.peers.values().filter(|peer| peer.role == Role::Worker);
        let received = workers.map(|peer| peer.link.received_bytes()).sum::<u64>();
        Traffic { received_bytes: self.left_bytes + received, worker_pids: self.children.pids() }
    }

    pub(super) fn publish_status(&self) {
        if let Some(run) = &self.run {
            // There may be no receiver.
            let _ = self.status.send(run.state.status(self.now()));
        }
    }

    async fn say_goodbye(mut self, events: &mut mpsc::Receiver<Event>) {
        self.remember(&Record::Stopped);
        self.give_up_waiting();
        self.end_run(RunEnd::Stopped);
        self.children.dismiss_all();
        self.launchers.remove_all();
        for peer in self.peers.values() {
            peer.link.close(CloseReason::Away, "the hub is shutting down");
        }
        // Waits until all peers have disconnected and all children have exited; children that do not exit are killed when
        // the channel closes.
        let farewell = async {
            while !(self.children.is_empty() && self.peers.is_empty()) {
                match events.recv().await {
                    Some(Event::ChildExited { number, .. }) => _ = self.children.handle_exit(number),
                    Some(Event::Left { peer, .. }) => _ = self.peers.remove(&peer),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(4), farewell).await;
        while self.finishing.is_some() {
            let fault = next_fault(&mut self.finishing).await;
            self.handle_last_pictures(fault);
        }
    }
}

/// Returns a random number that no earlier process is likely to have had.
pub(super) fn life() -> u32 {
    let [a, b, c, d, ..] = random_id();
    u32::from_le_bytes([a, b, c, d]) | 1
}

async fn next_update(update: &mut Option<Consuming>) -> Update {
    match update {
        Some(update) => update.await,
        None => pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

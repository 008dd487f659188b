//! The actor: the task that owns all of the hub's state.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use rollmesh_core::{
    group::{AuditPolicy, Verdict},
    hub::{ClipJob, CloseReason, Hub, PeerConnection as _, PeerEnd, Record},
    ids::{LeaseId, WeightsVersion},
    protocol::{
        Message, Role, Token,
        message::{EnvClip, HostReport, RunStatus},
    },
    time::Micros,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep_until, timeout},
};

use super::{
    HubNotice, Traffic,
    access::TokenFiles,
    admit::random_id,
    audit::Audit,
    calls::{CalledWorkers, NotificationSink},
    checkpoints::{Askers, next_save},
    children::Children,
    departure::Departure,
    in_process::InProcessPeers,
    launchers::Launchers,
    link::PeerLink,
    memory_budget::Reserved,
    peer::HandshakeRequest,
    queue::{Starting, next_parts},
    recompute::{AuditJob, Recomputer},
    runs::{Finishing, next_fault},
    saved_runs::Finding,
    socket::Received,
    token_file,
};
use crate::{
    child::HUB_GRACE,
    launch::{LaunchedEnd, WorkerSpec},
    runs::{
        Consuming, IterationMetrics, Run, RunEnd, RunMaker, RunParts, SaveReport, StartError, Summary, SyncError,
        Update,
    },
    worker::WorkerEnd,
};

/// Minimum interval between two updates to dashboards.
const DASHBOARD_INTERVAL: Duration = Duration::from_millis(100);

/// Time for a rollback to end when the hub is shut down, so that its run has a summary.
const ROLLBACK_GRACE: Duration = Duration::from_secs(1);
/// Maximum number of events that are deferred while a run is rolled back; beyond it the hub disconnects peers that send
/// more, which reconnect.
const MAX_DEFERRED: usize = 1024;

/// Events that the actor handles.
pub(super) enum Event {
    /// A peer sent its Hello.
    Handshake(Box<HandshakeRequest>),
    /// A peer was refused before its Hello was accepted.
    Refused { from: SocketAddr, reason: String },
    /// A record for the audit log.
    Record(Record),
    /// A peer sent a message that its role allows.
    Received {
        peer: u32,
        received: Box<Received>,
        /// The memory reserved for the message, if it came in parts.
        budget: Option<Reserved>,
    },
    /// A peer disconnected.
    Left { peer: u32, departure: Departure },
    /// A local worker's process exited.
    ChildExited { number: u32, end: LaunchedEnd },
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
    /// The in-process worker of this number ended.
    InProcessEnded { child: u32, end: WorkerEnd },
    /// The in-process worker of this number, of this run, cannot act.
    InProcessUnable { child: u32, run: u32, error: String },
    /// A request of the program.
    Ask(Ask),
    /// The program shuts the hub down.
    Shutdown,
    /// The consumer is done with a batch.
    Updated(Update),
    /// A thread has made the parts of an operator's run.
    Made(Result<Box<RunParts>, StartError>),
    /// A checkpoint is on disk, or could not be saved.
    Saved(SaveReport),
    /// An episode of the run that is over was not recorded; `None` once all are.
    PictureFailed(Option<String>),
    /// A fragment was recomputed.
    Audited(Box<AuditJob>, Verdict),
    /// Pictures of the watched slot are drawn.
    Drawn(Box<EnvClip>),
    /// A deadline is over.
    Deadline,
    /// Some time has passed.
    Tick,
}

/// A request of the program, which the actor executes after earlier events.
pub(super) type Ask = Box<dyn FnOnce(&mut Actor) + Send>;

impl Event {
    pub(super) fn ask(ask: impl FnOnce(&mut Actor) + Send + 'static) -> Self {
        Self::Ask(Box::new(ask))
    }
}

/// The shell of a [`Hub`]: sockets, processes, files and threads.
pub(super) struct Actor {
    pub(super) hub: Hub<PeerLink, Run>,
    /// Makes the parts of runs. Its program also evaluates alongside runs.
    pub(super) maker: RunMaker,
    pub(super) auditor: Recomputer<AuditJob>,
    pub(super) painter: Recomputer<ClipJob>,
    /// The fragment that the painter draws, and its deadline.
    pub(super) drawing: Option<(ClipJob, Instant)>,
    /// The fragments of untrusted workers that are recomputed.
    pub(super) audits: AuditPolicy,
    pub(super) tokens: TokenFiles,
    pub(super) children: Children,
    /// Starts the children.
    pub(super) launchers: Launchers,
    /// The in-process workers by their numbers.
    pub(super) in_process: BTreeMap<u32, InProcessPeers>,
    /// Parent directory of the run directories for runs started from the page.
    pub(super) runs_dir: Option<PathBuf>,
    /// Resources of a local worker, unless the run specifies others.
    pub(super) worker: WorkerSpec,
    pub(super) next_lease: LeaseId,
    /// Number of requests for which files are being read.
    pub(super) num_reading: usize,
    /// Callers waiting for the run to have drained.
    pub(super) drained: Vec<oneshot::Sender<()>>,
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
    /// The summary of the run that is over, until its last effects are executed.
    pub(super) ended: Option<Summary>,
    /// The run that is over, until its last pictures are drawn. Its summary follows.
    pub(super) finishing: Option<Finishing>,
    /// The run of an operator whose parts are being made.
    pub(super) starting: Option<Starting>,
    /// Messages of peers and requests of the program that arrived while the run is rolled back, for the run that continues.
    pub(super) deferred: VecDeque<Event>,
    /// The time from which on the run has been waiting for workers, and whether the user was notified.
    pub(super) waiting_since: Option<(Micros, bool)>,
    /// Receives worker notifications besides the run.
    pub(super) listener: Option<NotificationSink>,
    /// Rows and notices of the workers that the program calls, for dashboards.
    pub(super) called: CalledWorkers,
    pub(super) status: watch::Sender<RunStatus>,
    pub(super) notices: mpsc::Sender<HubNotice>,
    pub(super) audit: Audit,
    pub(super) epoch: Instant,
}

impl Actor {
    pub(super) fn now(&self) -> Micros {
        self.epoch.elapsed().into()
    }

    /// Gives the hub the time of the event that follows.
    pub(super) fn set_time(&mut self) {
        self.hub.set_time(self.now(), token_file::now());
    }

    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut refresh = interval(DASHBOARD_INTERVAL);
        loop {
            if !self.is_rolling_back()
                && let Some(event) = self.deferred.pop_front()
            {
                self.handle(event);
                self.settle();
                continue;
            }
            let due = self.hub.poll_timeout().into_iter().chain(self.children.local.poll_timeout()).min();
            let deadline = due.map(|at| self.epoch + Duration::from(at));
            let event = tokio::select! {
                event = events.recv() => match event {
                    None | Some(Event::Shutdown) => break,
                    Some(event) => event,
                },
                update = next_update(&mut self.update) => Event::Updated(update),
                report = next_save(&mut self.hub.run) => Event::Saved(report),
                parts = next_parts(&mut self.starting) => Event::Made(parts.map(Box::new)),
                fault = next_fault(&mut self.finishing) => Event::PictureFailed(fault),
                Some((job, verdict)) = self.auditor.next() => Event::Audited(Box::new(job), verdict),
                Some((_, clip)) = self.painter.next() => Event::Drawn(Box::new(clip)),
                () = until(deadline) => Event::Deadline,
                _ = refresh.tick() => Event::Tick,
            };
            if let Event::Deadline | Event::Tick = event {
                self.handle_arrived(&mut events);
            }
            self.handle(event);
            self.settle();
        }
        self.say_goodbye(&mut events).await;
    }

    /// Handles the events that are queued before a deadline or a tick: after a suspension of the hub, no lease may expire and no
    /// worker count as hung because of messages that were not read yet.
    fn handle_arrived(&mut self, events: &mut mpsc::Receiver<Event>) {
        for _ in 0..events.len() {
            match events.try_recv() {
                // The event loop has to see the shutdown: it does when the channel is closed.
                Ok(Event::Shutdown) => return events.close(),
                Ok(event) => {
                    self.handle(event);
                    self.settle();
                }
                Err(_) => break,
            }
        }
    }

    fn handle(&mut self, event: Event) {
        if self.is_rolling_back() && is_for_run(&event, &self.deferred) {
            return self.defer(event);
        }
        self.set_time();
        match event {
            Event::Handshake(request) => self.answer(*request),
            Event::Refused { from, reason } => {
                self.hub.record(Record::Refused { from, why: "no Hello" });
                self.hub.notice_offence(format!("a connection was refused: {reason}"));
            }
            Event::Record(record) => self.hub.record(record),
            Event::Received { peer, received, budget } => {
                self.handle_received(peer, *received);
                drop(budget);
            }
            Event::Left { peer, departure: Departure { reason, is_fault, denied, .. } } => {
                self.hub.handle_left(peer, PeerEnd { reason: &reason, is_fault, denied });
            }
            Event::ChildExited { number, end } => self.handle_child_exit(number, &end),
            Event::ChildSaid { number, line } => self.hub.log_child(number, self.children.local.peer_of(number), &line),
            Event::Measured(report) => self.hub.handle_host_report(0, report),
            Event::FilesRead(finding) => self.handle_finding(finding),
            // The connection may have ended.
            Event::Metrics { token, reply } => _ = reply.send(self.metrics_for(&token)),
            Event::InProcessSaid(line) => self.hub.notice(1, format!("in-process worker: {line}")),
            Event::InProcessEnded { child, end } => self.handle_in_process_end(child, &end),
            Event::InProcessUnable { child, run, error } => self.handle_in_process_unable(child, run, &error),
            Event::Ask(ask) => ask(self),
            Event::Updated(update) => self.handle_update(update),
            Event::Made(parts) => self.handle_parts(parts.map(|parts| *parts)),
            Event::Saved(report) => self.handle_save(report),
            Event::PictureFailed(fault) => self.handle_last_pictures(fault),
            Event::Audited(job, verdict) => self.hub.handle_audited(job.run, &job.task, verdict),
            Event::Drawn(clip) => self.handle_drawn(*clip),
            Event::Deadline => {
                self.hub.handle_timeout();
                self.tend_children();
            }
            Event::Tick => self.tend_all(),
            Event::Shutdown => {}
        }
    }

    /// Keeps an event for the run that continues. The program's own requests are never dropped.
    fn defer(&mut self, event: Event) {
        match event {
            Event::Received { peer, .. } if self.deferred.len() >= MAX_DEFERRED => {
                self.hub.peers.get(&peer).into_iter().for_each(|peer| peer.link.hang_up());
            }
            event => self.deferred.push_back(event),
        }
    }

    /// Checks everything that changes without an event.
    fn tend_all(&mut self) {
        self.expel_invalid();
        self.tend_launchers();
        self.hub.sweep_hung();
        self.end_hung_run();
        self.end_hung_drawing();
        self.notify_of_waiting();
        self.notify_of_starting();
        self.end_hopeless();
        self.end_unwanted_run();
        self.report_evaluations();
        self.interrupt_late_run();
        self.catch_up_lines();
        self.check_ledger();
        self.refresh_dashboards();
    }

    pub(super) fn traffic(&self) -> Traffic {
        let workers = self.hub.peers.values().filter(|peer| peer.role == Role::Worker);
        let received = workers.map(|peer| peer.link.received_bytes()).sum::<u64>();
        Traffic { received_bytes: self.left_bytes + received, worker_pids: self.children.pids() }
    }

    pub(super) fn publish_status(&self) {
        if let Some(run) = self.hub.state() {
            // There may be no receiver.
            let _ = self.status.send(run.status(self.now()));
        }
    }

    /// Sends the program and dashboards all changes.
    pub(super) fn refresh_dashboards(&mut self) {
        self.publish_status();
        self.show_called();
        self.hub.show_launchers(self.launchers.with(|launchers| launchers.list()));
        self.hub.refresh_dashboards();
    }

    async fn say_goodbye(mut self, events: &mut mpsc::Receiver<Event>) {
        self.set_time();
        self.hub.record(Record::Stopped);
        if self.is_rolling_back()
            && let Ok(parts) = timeout(ROLLBACK_GRACE, next_parts(&mut self.starting)).await
        {
            self.handle_parts(parts);
        }
        self.give_up_waiting();
        self.end_run(RunEnd::Stopped);
        self.children.dismiss_all();
        self.launchers.with(|launchers| launchers.remove_all());
        self.hub.send_last_states();
        for peer in self.hub.peers.values() {
            peer.link.close(CloseReason::Away, "the hub is shutting down");
        }
        self.settle();
        for event in std::mem::take(&mut self.deferred) {
            if let Event::Left { peer, .. } = event {
                self.hub.peers.remove(&peer);
            }
        }
        // Waits until all peers have disconnected and all children have exited; children that do not exit are killed when
        // the channel closes.
        let farewell = async {
            while !(self.children.is_empty() && self.hub.peers.is_empty()) {
                match events.recv().await {
                    Some(Event::ChildExited { number, .. }) => _ = self.children.handle_exit(number, self.now()),
                    Some(Event::Left { peer, .. }) => _ = self.hub.peers.remove(&peer),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let _ = timeout(HUB_GRACE, farewell).await;
        while self.finishing.is_some() {
            let fault = next_fault(&mut self.finishing).await;
            self.handle_last_pictures(fault);
            self.settle();
        }
    }
}

/// Returns true for an event that waits while a run is rolled back, since it may concern the run that continues: a
/// message, a request, the result of an audit, and the departure of a peer whose messages wait.
fn is_for_run(event: &Event, deferred: &VecDeque<Event>) -> bool {
    let is_of = |left: u32| move |event: &Event| matches!(event, Event::Received { peer, .. } if *peer == left);
    match event {
        // Of no importance to runs, and every worker repeats it.
        Event::Received { received, .. } => !matches!(**received, Received::Message(Message::HostReport(_))),
        Event::Ask(_) | Event::Audited(..) => true,
        Event::Left { peer, .. } => deferred.iter().any(is_of(*peer)),
        _ => false,
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

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::Goodbye;

    use super::*;

    #[test]
    fn peers_messages_and_their_departure_keep_their_order_in_a_rollback() {
        let received =
            |peer, message| Event::Received { peer, received: Box::new(Received::Message(message)), budget: None };
        let left = |peer| Event::Left { peer, departure: Departure::wished("done") };
        let mut deferred = VecDeque::new();
        assert!(!is_for_run(&left(1), &deferred));
        assert!(!is_for_run(&received(1, Message::HostReport(HostReport::default())), &deferred));
        let goodbye = received(1, Message::Goodbye(Goodbye { reason: String::new() }));
        assert!(is_for_run(&goodbye, &deferred) && is_for_run(&Event::ask(|_| ()), &deferred));
        deferred.push_back(goodbye);
        assert!(is_for_run(&left(1), &deferred) && !is_for_run(&left(2), &deferred));
    }
}

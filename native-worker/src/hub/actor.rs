//! The task that owns all of the hub's state.

use std::{
    collections::BTreeMap,
    future::pending,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use rollmesh_core::{
    env::EnvRegistry,
    ids::{FragmentNo, LeaseId, WeightsVersion, WorkerId},
    kernels::Kernels,
    protocol::{
        INITIAL_CREDIT, Message, RefusalCode, Role, TokenGrant, TokenId,
        handshake::{Accepted, busy, check_hello},
        message::{Refused, RunStatus, Welcome},
    },
    time::Micros,
    weights::Weights,
    worker::core_fingerprint,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant as TokioInstant, interval, sleep_until},
};

use super::{
    HubNotice, Traffic,
    access::Tokens,
    audit::{Audit, Record},
    auditor::{Auditor, Distrust},
    calls::{NewsSink, WorkerNews, WorkerOrder},
    checkpoints::{Asker, Askers, next_save},
    children::{Children, Ended},
    dashboard::Dashboard,
    limits::{MAX_LOUD_NOTICES, MAX_PEERS},
    peer::{Admission, CloseReason, Departure, Knock, PeerLink},
    token_file,
};
use crate::{
    launch::{LaunchError, WorkerSpec},
    train::{Consuming, Run, RunEnd, StartError, Summary, SyncError, Task, Update},
};

/// Dashboards are told what changed at most this often.
const DASHBOARD_INTERVAL: Duration = Duration::from_millis(100);

/// What happens to the hub.
#[derive(Debug)]
pub(super) enum Event {
    /// A peer said Hello.
    Knock(Box<Knock>),
    /// Somebody was turned away before that.
    Refused { from: SocketAddr, reason: String },
    /// Something that belongs into the audit log.
    Remember(Record),
    /// A peer said something that its role allows.
    Message { peer: u32, message: Box<Message> },
    /// A peer's connection is over.
    Left { peer: u32, departure: Departure },
    /// A local worker has ended.
    ChildExited { number: u32, status: String },
    /// A local worker that ended is to be replaced now.
    ReplaceChild,
    /// The program wants a run.
    Start { task: Task, started: oneshot::Sender<Result<(), StartError>>, done: oneshot::Sender<Summary> },
    /// The program sets weights.
    SyncWeights { weights: Weights, applied: oneshot::Sender<Result<WeightsVersion, SyncError>> },
    /// The program wants the run saved.
    Checkpoint { asker: Asker },
    /// The program asks what workers cost.
    CountTraffic { reply: oneshot::Sender<Traffic> },
    /// The program wants no run any more.
    StopRun,
    /// The program asks workers itself.
    Workers(WorkerOrder),
    /// The program is about to end: no more workers and runs, and the run that goes on is to drain.
    Drain { drained: oneshot::Sender<()> },
    /// The program ends.
    Shutdown,
}

pub(super) struct Peer {
    pub(super) role: Role,
    pub(super) link: PeerLink,
    /// `native`, `browser`, …
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) device: String,
    /// The local worker that it is.
    pub(super) child: Option<u32>,
    /// The token that it showed.
    pub(super) token: TokenId,
    /// Why it is about to leave, if it has said so.
    pub(super) leaving: Option<String>,
    pub(super) admitted_at: Micros,
    /// Something of it was accepted, if it is a worker.
    pub(super) has_delivered: bool,
    /// It is welcomed and, as a dashboard, has been shown everything: from now on it is told what changes.
    pub(super) is_up_to_date: bool,
    /// It took too little to be told how things stand.
    pub(super) has_missed: bool,
}

pub(super) struct Actor {
    pub(super) envs: EnvRegistry,
    pub(super) auditor: Auditor,
    pub(super) distrust: Distrust,
    /// The run is to go back to before this batch.
    pub(super) roll_back_before: Option<FragmentNo>,
    /// Tells connections of this process from those of others, for runs that outlive it. Never 0.
    pub(super) life: u32,
    fingerprint: [u8; 16],
    pub(super) tokens: Tokens,
    pub(super) children: Children,
    /// What evaluates beside runs.
    pub(super) program: PathBuf,
    /// What a local worker needs, unless the run says otherwise.
    pub(super) worker: WorkerSpec,
    pub(super) peers: BTreeMap<u32, Peer>,
    next_peer: u32,
    pub(super) run: Option<Run>,
    pub(super) next_run: u32,
    pub(super) next_lease: LeaseId,
    /// When the next iteration begins, if the run's pace makes it wait.
    pub(super) resting_until: Option<TokioInstant>,
    /// When a run that drains ends, whatever is still out.
    pub(super) draining_until: Option<TokioInstant>,
    /// Who waits for the run to have drained.
    pub(super) drained: Vec<oneshot::Sender<()>>,
    /// The program is about to end.
    pub(super) is_leaving: bool,
    /// What is becoming of the batch of the iteration.
    pub(super) update: Option<Consuming>,
    /// The run is to end after the update that is being computed.
    pub(super) is_stopping: bool,
    /// Who waits for a checkpoint.
    pub(super) askers: Askers,
    /// Who waits for weights to act everywhere.
    pub(super) syncing: Vec<(WeightsVersion, oneshot::Sender<Result<WeightsVersion, SyncError>>)>,
    /// Bytes that workers sent which have left.
    left_bytes: u64,
    pub(super) done: Option<oneshot::Sender<Summary>>,
    /// Local workers that ended unasked and were replaced.
    pub(super) num_worker_restarts: u64,
    pub(super) dashboard: Dashboard,
    /// Who hears of workers, besides the run.
    pub(super) listener: Option<NewsSink>,
    status: watch::Sender<RunStatus>,
    notices: mpsc::Sender<HubNotice>,
    /// Notices of this second about strangers and offenders, and how many were left out before.
    loud: Loud,
    audit: Audit,
    epoch: Instant,
}

/// How often strangers and offenders are talked about.
#[derive(Default)]
struct Loud {
    second: u64,
    said: u32,
    left_out: u32,
}

impl Loud {
    /// The notice with what was left out before it; none if there are too many.
    fn say(&mut self, text: String, now: Micros) -> Option<String> {
        let second = now.0 / 1_000_000;
        if second != self.second {
            (self.second, self.said) = (second, 0);
        }
        if self.said >= MAX_LOUD_NOTICES {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.said += 1;
        match std::mem::take(&mut self.left_out) {
            0 => Some(text),
            more => Some(format!("{text} (and {more} more like it before)")),
        }
    }
}

impl Actor {
    pub(super) fn new(
        envs: EnvRegistry,
        (kernels, distrust): (Kernels, Distrust),
        tokens: Tokens,
        (children, worker, program): (Children, WorkerSpec, PathBuf),
        status: watch::Sender<RunStatus>,
        notices: mpsc::Sender<HubNotice>,
        audit: Audit,
    ) -> Self {
        Self {
            auditor: Auditor::new(envs.clone(), kernels),
            distrust,
            roll_back_before: None,
            life: life(),
            envs,
            fingerprint: core_fingerprint(kernels),
            tokens,
            children,
            program,
            worker,
            peers: BTreeMap::new(),
            next_peer: 1,
            run: None,
            next_run: 1,
            next_lease: LeaseId(1),
            resting_until: None,
            draining_until: None,
            drained: Vec::new(),
            is_leaving: false,
            update: None,
            is_stopping: false,
            askers: Askers::default(),
            syncing: Vec::new(),
            left_bytes: 0,
            done: None,
            num_worker_restarts: 0,
            dashboard: Dashboard::default(),
            listener: None,
            status,
            notices,
            loud: Loud::default(),
            audit,
            epoch: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        Micros(self.epoch.elapsed().as_micros() as u64)
    }

    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut refresh = interval(DASHBOARD_INTERVAL);
        loop {
            let deadline = self.run.as_ref().and_then(|run| run.group.poll_timeout());
            let deadline = deadline.map(|at| TokioInstant::from_std(self.epoch + Duration::from_micros(at.0)));
            tokio::select! {
                event = events.recv() => match event {
                    None | Some(Event::Shutdown) => break,
                    Some(event) => self.handle(event),
                },
                update = next_update(&mut self.update) => self.handle_update(update),
                report = next_save(&mut self.run) => self.handle_save(report),
                Some(audited) = self.auditor.next() => self.handle_audited(&audited),
                () = until(deadline) => self.handle_deadline(&mut events),
                () = until(self.resting_until) => self.next_iteration(),
                () = until(self.draining_until) => self.end_drain(),
                _ = refresh.tick() => {
                    self.expel_invalid();
                    self.end_unwanted_run();
                    self.begin_first_iteration();
                    self.poll_evaluation();
                    self.refresh_dashboards();
                }
            }
            self.drain_group();
            self.audit_fragments();
            self.roll_back_if_due();
            self.end_drained_run();
        }
        self.say_goodbye(&mut events).await;
    }

    /// What has arrived comes before a deadline: a hub that was suspended blames nobody.
    fn handle_deadline(&mut self, events: &mut mpsc::Receiver<Event>) {
        for _ in 0..events.len() {
            match events.try_recv() {
                // The loop has to see this one: closing the channel is how it will.
                Ok(Event::Shutdown) => return events.close(),
                Ok(event) => self.handle(event),
                Err(_) => break,
            }
        }
        let now = self.now();
        if let Some(run) = &mut self.run {
            run.group.handle_timeout(now);
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
            Event::Message { peer, message } => self.handle_message(peer, *message),
            Event::Left { peer, departure } => self.forget(peer, &departure),
            Event::ChildExited { number, status } => self.handle_child_exit(number, &status),
            Event::ReplaceChild => self.replace_child(),
            Event::Start { task, started, done } => {
                let result = self.start_run(task);
                if result.is_ok() {
                    self.done = Some(done);
                }
                // Whoever asked may have gone; the run goes on.
                let _ = started.send(result);
                self.begin_first_iteration();
            }
            Event::Drain { drained } => {
                self.is_leaving = true;
                if self.run.as_ref().is_some_and(|run| !run.is_over()) {
                    self.drained.push(drained);
                    self.drain_run();
                } else {
                    // Whoever asked may have gone.
                    let _ = drained.send(());
                }
            }
            Event::StopRun => self.stop_run(),
            Event::Checkpoint { asker } => self.checkpoint_now(asker),
            Event::SyncWeights { weights, applied } => self.sync_weights(&weights, applied),
            // Whoever asked may have gone.
            Event::CountTraffic { reply } => _ = reply.send(self.traffic()),
            Event::Workers(order) => self.obey_program(order),
            Event::Shutdown => {}
        }
    }

    fn traffic(&self) -> Traffic {
        let workers = self.peers.values().filter(|peer| peer.role == Role::Worker);
        let received = workers.map(|peer| peer.link.received_bytes()).sum::<u64>();
        Traffic { received_bytes: self.left_bytes + received, worker_pids: self.children.pids() }
    }

    fn answer(&mut self, knock: Knock) {
        let verdict = if self.peers.len() >= MAX_PEERS {
            Err(busy("the hub has as many peers as it takes; try again later"))
        } else {
            let (tokens, now) = (self.tokens.table(), token_file::now());
            check_hello(&knock.hello, tokens, now, self.fingerprint).and_then(|accepted| match accepted.role {
                Role::Worker if self.is_leaving => Err(busy("the hub is about to end")),
                _ => Ok(accepted),
            })
        };
        let from = knock.from;
        if let Err(refused) = &verdict {
            self.remember(&Record::Refused { from, why: why(refused) });
        }
        let answer = verdict.map(|accepted| self.admit(accepted, from, knock.link));
        match &answer {
            Ok(admission) => self.introduce(admission.peer),
            Err(Refused { reason, .. }) => self.notice_offence(format!("a peer was refused: {reason}")),
        }
        // A peer that has gone meanwhile leaves as soon as its task sees that; without a task it has left.
        if let Err(Ok(Admission { peer, .. })) = knock.answer.send(answer) {
            self.forget(peer, &Departure::expelled("its connection is gone"));
        }
    }

    fn admit(&mut self, accepted: Accepted, from: SocketAddr, link: PeerLink) -> Admission {
        let peer = self.next_peer;
        self.next_peer += 1;
        let Accepted { protocol, role, token, child, resume, kind, name, device } = accepted;
        self.remember(&Record::Admitted { from, peer, role, token, kind: kind.clone(), name: name.clone() });
        let resume_id = resume.unwrap_or_else(random_id);
        let server = concat!("rollmesh ", env!("CARGO_PKG_VERSION")).into();
        let welcome = Welcome { protocol, peer, resume_id, credit: INITIAL_CREDIT, server };
        // Queued before anybody here knows the peer, so that nothing can come before it. It is small.
        let _ = link.send(&Message::Welcome(welcome));
        if let Some(child) = child {
            self.children.joined(child);
        }
        let (leaving, is_up_to_date, has_missed) = (None, false, false);
        let (admitted_at, has_delivered) = (self.now(), false);
        let newcomer = Peer {
            role,
            link,
            kind,
            name,
            device,
            child,
            token,
            leaving,
            admitted_at,
            has_delivered,
            is_up_to_date,
            has_missed,
        };
        self.peers.insert(peer, newcomer);
        Admission { peer, role }
    }

    /// Tells a new peer what it has to know, and makes use of it.
    fn introduce(&mut self, id: u32) {
        let Some(Peer { role, kind, name, device, .. }) = self.peers.get(&id) else { return };
        match role {
            Role::Viewer | Role::Operator => self.show_everything(id),
            Role::Worker => {
                self.notice(0, format!("worker {id} joined: {name} ({kind}, {device})"));
                let child = self.peers.get(&id).and_then(|peer| peer.child);
                self.tell(WorkerNews::Joined { peer: id, child });
                self.bring_into_run(id);
                self.begin_first_iteration();
            }
            // What it needs to know it is told by its socket's task.
            Role::Client => self.notice(0, format!("client {id} joined: {name} ({kind})")),
        }
    }

    pub(super) fn forget(&mut self, id: u32, departure: &Departure) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let Departure { reason, is_fault, denied, .. } = departure;
        if let Some(kind) = *denied {
            self.remember(&Record::Denied { peer: id, role: peer.role, kind });
        }
        self.remember(&Record::Left { peer: id, role: peer.role, fault: is_fault.then(|| reason.clone()) });
        let Departure { reason, is_fault, .. } = departure;
        let reason = peer.leaving.as_ref().filter(|_| !is_fault).unwrap_or(reason);
        if peer.role == Role::Worker {
            let now = self.now();
            self.left_bytes += peer.link.received_bytes();
            if let Some(run) = &mut self.run {
                run.group.handle_left(WorkerId(id), now);
                run.forget_worker(WorkerId(id));
            }
            self.note_applied();
            self.dashboard.forget_worker(id);
            self.tell(WorkerNews::Left { peer: id, reason: reason.clone() });
            self.notice_leave(*is_fault, format!("worker {id} left: {reason}"));
            self.broadcast_gone(id);
        } else if peer.role == Role::Client {
            self.notice_leave(*is_fault, format!("client {id} left: {reason}"));
        } else if *is_fault {
            self.notice_offence(format!("a dashboard was disconnected: {reason}"));
        }
    }

    pub(super) fn dismiss(&mut self, id: u32) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (reason, child) = (peer.leaving.as_deref(), peer.child);
        peer.link.close(CloseReason::Done, reason.unwrap_or("the hub dismissed this worker"));
        // One that goes by itself is replaced.
        if let Some(child) = child.filter(|_| reason.is_none()) {
            self.children.dismiss(child);
        }
    }

    /// Starts a local worker as the run wants it, or as the hub does without one.
    pub(super) fn add_child(&mut self) -> Result<u32, LaunchError> {
        let none = BTreeMap::new();
        let terms = self.run.as_ref().map(|run| &run.terms);
        let spec = terms.and_then(|terms| terms.worker.as_ref()).unwrap_or(&self.worker);
        let (number, token) = self.children.start(spec, terms.map_or(&none, |terms| &terms.extra_environs))?;
        let grant = TokenGrant { role: Role::Worker, child: Some(number), expires: None };
        self.tokens.add(&token, grant);
        Ok(number)
    }

    fn replace_child(&mut self) {
        if let Err(error) = self.add_child() {
            self.tell(WorkerNews::GaveUp(error.to_string()));
            self.notice(2, format!("a local worker could not be started: {error}"));
        }
    }

    fn handle_child_exit(&mut self, number: u32, status: &str) {
        let Some((token, ended)) = self.children.handle_exit(number) else { return };
        self.tokens.forget(token);
        match ended {
            Ended::AsWished => {}
            Ended::NotReplaced => {
                let text = format!("local worker {number} ended ({status}), and is not replaced");
                self.tell(WorkerNews::GaveUp(text.clone()));
                self.notice(1, text);
            }
            // Whoever ends the hub may have told its workers, too.
            Ended::Replace(_) if self.is_leaving => {}
            Ended::Replace(pause) => {
                self.num_worker_restarts += 1;
                self.notice(1, format!("local worker {number} ended ({status}); another one takes its place"));
                if pause.is_zero() {
                    self.replace_child();
                } else {
                    self.children.replace_after(pause);
                }
            }
            Ended::GiveUp => {
                let reason = format!("local workers end as soon as they start ({status}); no more attempts");
                self.notice(2, reason.clone());
                self.tell(WorkerNews::GaveUp(reason.clone()));
                let has_workers = self.peers.values().any(|peer| peer.role == Role::Worker);
                if !has_workers && self.done.is_some() {
                    // Nobody would ever work for it.
                    self.end_run(RunEnd::Failed(reason));
                }
            }
        }
    }

    pub(super) fn publish_status(&self) {
        if let Some(run) = &self.run {
            // Nobody may be listening.
            let _ = self.status.send(run.status());
        }
    }

    /// Sends those away whose token is no longer valid: it was revoked, or has run out.
    pub(super) fn expel_invalid(&mut self) {
        if let Err(error) = self.tokens.follow() {
            self.notice(2, error.to_string());
        }
        let (now, table) = (token_file::now(), self.tokens.table());
        let invalid = self.peers.iter().filter(|(_, peer)| !table.is_valid(peer.token, now));
        let invalid: Vec<u32> = invalid.map(|(id, _)| *id).collect();
        for id in invalid {
            const REASON: &str = "its token is no longer valid";
            if let Some(peer) = self.peers.get(&id) {
                peer.link.expel(REASON);
            }
            // From now on nothing that it said before is heard any more.
            self.forget(id, &Departure::expelled(REASON));
        }
    }

    /// Puts something into the audit log.
    pub(super) fn remember(&mut self, record: &Record) {
        if let Err(error) = self.audit.add(record) {
            self.notice(2, format!("the audit log cannot be written, no more is: {error}"));
        }
    }

    /// Tells people: dashboards, and the terminal.
    pub(super) fn notice(&mut self, level: u8, text: String) {
        self.broadcast_notice(level, &text);
        // Whoever does not listen misses something.
        let _ = self.notices.try_send(HubNotice { level, text });
    }

    fn notice_leave(&mut self, is_fault: bool, text: String) {
        if is_fault { self.notice_offence(text) } else { self.notice(0, text) }
    }

    /// As [`notice`](Self::notice), for what anybody may cause as often as they like.
    fn notice_offence(&mut self, text: String) {
        let now = self.now();
        if let Some(text) = self.loud.say(text, now) {
            self.notice(1, text);
        }
    }

    async fn say_goodbye(mut self, events: &mut mpsc::Receiver<Event>) {
        self.remember(&Record::Stopped);
        self.end_run(RunEnd::Stopped);
        self.children.dismiss_all();
        for peer in self.peers.values() {
            peer.link.close(CloseReason::Away, "the hub is shutting down");
        }
        // The hub waits until everybody has heard it and its workers have gone; whoever does not go is killed with
        // the channel's end.
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
    }
}

/// Why somebody was refused, without what they said.
fn why(refused: &Refused) -> &'static str {
    match RefusalCode::try_from(refused.code) {
        Ok(RefusalCode::ProtocolVersion) => "protocol version",
        Ok(RefusalCode::Fingerprint) => "fingerprint",
        Ok(RefusalCode::Token) => "token",
        Ok(RefusalCode::Malformed) => "no Hello",
        Ok(RefusalCode::Busy) => "busy",
        Err(_) => "other",
    }
}

/// A name for a session. Nothing secret: without randomness zeros, which resume nothing, will do.
fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    if getrandom::fill(&mut id).is_err() {
        id = [0; 16];
    }
    id
}

/// A number that no process before is likely to have had.
fn life() -> u32 {
    let [a, b, c, d, ..] = random_id();
    u32::from_le_bytes([a, b, c, d]) | 1
}

async fn next_update(update: &mut Option<Consuming>) -> Update {
    match update {
        Some(update) => update.await,
        None => pending().await,
    }
}

async fn until(deadline: Option<TokioInstant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offenders_are_not_talked_about_all_the_time() {
        let mut loud = Loud::default();
        let mut say = |ms: u64| loud.say("bad".into(), Micros::from_millis(ms));
        assert!((0..MAX_LOUD_NOTICES).all(|_| say(10) == Some("bad".into())));
        assert_eq!((say(20), say(999)), (None, None));
        assert_eq!(say(1000), Some("bad (and 2 more like it before)".into()));
        assert_eq!(say(1001), Some("bad".into()));
    }
}

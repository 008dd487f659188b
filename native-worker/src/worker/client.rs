//! A worker's socket and its rollout thread.

use std::{
    convert::Infallible,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::{
    evaluation::Evaluates,
    kernels::Kernels,
    protocol::{Message, RefusalCode, Role, Token, handshake::Identity, reconnect_delay},
    worker::{HostSettings, Registry, RolloutWorkerBuilder, SessionState, WorkerSession, core_fingerprint},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep, timeout},
};
use tokio_tungstenite::tungstenite::{Bytes, Message as Frame};

use crate::{
    envs::{catch_panics, words},
    machine::{Machine, REPORT_INTERVAL},
    net::{ConnectError, HubSocket, Trust, bytes_of, connect},
    shell::NativeWorker as _,
};

/// A hub pings every five seconds; after this time without a frame it counts as disconnected.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// After a connection broke, frames that have arrived before are read for this long.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time for the rollout thread to end after the connection was lost; then its environments hang, and it is abandoned.
const END_DEADLINE: Duration = Duration::from_secs(4);
/// Time for a worker that was asked to leave to finish its lease.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);
/// The reason that a worker gives when it was asked to leave.
const ASKED_TO_LEAVE: &str = "it was asked to leave";
/// Maximum number of steps of all lanes between two checks of the socket, …
const MAX_SLICE_STEPS: u32 = 64;
/// … and about how long they may take.
const SLICE: Duration = Duration::from_millis(20);
/// Maximum number of frames queued for the socket; beyond it the worker blocks.
const QUEUED_FRAMES: usize = 16;

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerConfig {
    /// `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub(crate) hub: String,
    /// How to verify the hub.
    pub(crate) trust: Trust,
    pub(crate) token: Token,
    /// The kind that the hub shows.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) kernels: Kernels,
    /// What becomes of the hub's settings that name files and environment variables of this machine.
    pub(crate) host_settings: HostSettings,
    /// The evaluator, if it evaluates under its name instead of sampling.
    pub(crate) evaluating: Option<Evaluating>,
}

/// Makes a worker evaluate. It stays at the hub until it is stopped, and reconnects after the hub was lost.
#[derive(Clone)]
pub(crate) struct Evaluating {
    pub(crate) evaluator: Arc<dyn Fn() -> Box<dyn Evaluates> + Send + Sync>,
    /// Notified when there may be outcomes.
    pub(crate) changes: watch::Receiver<()>,
    /// Called whenever the hub has admitted the worker.
    pub(crate) joined: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Evaluating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluating").finish_non_exhaustive()
    }
}

/// How and why a worker has ended.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    pub(crate) kind: EndKind,
    pub(crate) reason: String,
}

/// How a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// The hub refuses it permanently.
    Refused,
    /// The hub's identity could not be verified, so no token was sent.
    Untrusted,
    /// The session was closed on purpose.
    Closed,
    /// Another worker evaluates under this name.
    NameTaken,
    /// It cannot begin to work.
    Failed,
}

impl EndKind {
    fn because(self, reason: impl Into<String>) -> WorkerEnd {
        WorkerEnd { kind: self, reason: reason.into() }
    }
}

/// How a connection ended.
enum SessionEnd {
    Final(WorkerEnd),
    /// Another attempt may succeed. `was_ready` tells whether this one had.
    Lost {
        reason: String,
        was_ready: bool,
    },
}

/// Input of the rollout thread.
enum Incoming {
    Frame(Bytes),
    /// Leave when the lease is done.
    Leave,
    /// There may be something to send.
    Wake,
    /// A report about this machine, to be sent once the hub has admitted the worker.
    Report(Bytes),
}

/// Works for a hub until it says goodbye, reconnecting as needed, or until `leave` is true and the current lease is done.
/// `say` prints messages for users.
pub(crate) async fn run(
    config: WorkerConfig,
    registry: Registry,
    mut leave: watch::Receiver<bool>,
    say: impl Fn(&str) + Clone + Send + 'static,
) -> WorkerEnd {
    let fingerprint = core_fingerprint(config.kernels);
    let mut failures = 0;
    let mut resume = None;
    loop {
        let identity = Identity::new(Role::Worker, config.token, config.kind, &config.name, &config.device);
        let identity = Identity { resume, core_fingerprint: fingerprint, ..identity };
        let connection = tokio::select! {
            connection = connect(&config.hub, &config.trust) => connection,
            () = asked(&mut leave) => return EndKind::Closed.because(ASKED_TO_LEAVE),
        };
        let reason = match connection {
            Err(error @ ConnectError::UnknownIssuer) => {
                return EndKind::Untrusted.because(format!("the hub at {} is not trusted: {error}", config.hub));
            }
            Err(ConnectError::Failed(reason)) => format!("cannot reach the hub at {}: {reason}", config.hub),
            Ok(socket) => {
                // Environments need not be `Send`: the session is created on the thread that uses it.
                let (registry, kernels, evaluating) = (registry.clone(), config.kernels, config.evaluating.clone());
                let host_settings = config.host_settings.clone();
                let changes = evaluating.as_ref().map(|evaluating| evaluating.changes.clone());
                let joined = evaluating.as_ref().map(|evaluating| evaluating.joined.clone());
                let session = move || {
                    let session = WorkerSession::new(identity, registry.clone(), kernels)
                        .with_workers(move || RolloutWorkerBuilder::new(registry.clone()).native().kernels(kernels))
                        .with_guard(catch_panics)
                        .with_host_settings(host_settings);
                    match evaluating {
                        Some(evaluating) => session.with_evaluator((evaluating.evaluator)()),
                        None => session,
                    }
                };
                let heard = tells(say.clone(), joined);
                // The hub measures its own machine.
                let measures = config.host_settings != HostSettings::Taken;
                match serve(session, heard, socket, &mut resume, (leave.clone(), changes, measures)).await {
                    // A worker that was admitted before reconnects to a restarted hub.
                    SessionEnd::Final(end) if config.evaluating.is_some() && resume.is_some() => end.reason,
                    SessionEnd::Final(end) => return end,
                    SessionEnd::Lost { reason, .. } if *leave.borrow() => {
                        return EndKind::Closed.because(format!("{ASKED_TO_LEAVE}; {reason}"));
                    }
                    SessionEnd::Lost { reason, was_ready } => {
                        if was_ready {
                            failures = 0;
                        }
                        reason
                    }
                }
            }
        };
        failures += 1;
        let pause = reconnect_delay(failures, getrandom::u32().unwrap_or(u32::MAX / 2));
        let pause = Duration::from(pause);
        say(&format!("{reason}; trying again in {:.1} s", pause.as_secs_f64()));
        tokio::select! {
            () = sleep(pause) => {}
            () = asked(&mut leave) => return EndKind::Closed.because(ASKED_TO_LEAVE),
        }
    }
}

/// Returns once this worker has been asked to leave.
async fn asked(leave: &mut watch::Receiver<bool>) {
    if leave.wait_for(|leave| *leave).await.is_err() {
        // The sender is dropped, so it can no longer be asked.
        std::future::pending::<()>().await;
    }
}

/// Returns when there may be something to send that was not caused by a frame from the hub.
async fn changed(changes: &mut Option<watch::Receiver<()>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Returns a function that reports runs that this worker cannot execute, and calls `joined` when the hub has admitted the
/// worker.
fn tells(say: impl Fn(&str), joined: Option<Arc<dyn Fn() + Send + Sync>>) -> impl FnMut(&WorkerSession) {
    let mut unable_for = None;
    move |session| {
        if let Some(joined) = joined.as_ref().filter(|_| *session.state() == SessionState::Ready) {
            joined();
        }
        let inability = session.inability();
        if let Some((run, inability)) = inability.filter(|(run, _)| unable_for != Some(*run)) {
            say(&format!("this worker cannot run the hub's run {run}, and waits for the next one: {inability}"));
        }
        unable_for = inability.map(|(run, _)| run);
    }
}

/// Moves frames between the socket and the rollout thread.
async fn serve(
    session: impl FnOnce() -> WorkerSession + Send + 'static,
    heard: impl FnMut(&WorkerSession) + Send + 'static,
    socket: HubSocket,
    resume: &mut Option<[u8; 16]>,
    (mut leave, changes, measures): (watch::Receiver<bool>, Option<watch::Receiver<()>>, bool),
) -> SessionEnd {
    let (from_hub, incoming) = mpsc::channel::<Incoming>(QUEUED_FRAMES);
    let (outgoing, to_hub) = mpsc::channel::<Bytes>(QUEUED_FRAMES);
    let (done, ended) = oneshot::channel();
    let work = move || {
        // A panic ends this session, not the process: the hub may run in it.
        let end = catch_unwind(AssertUnwindSafe(|| work(session(), heard, incoming, &outgoing)));
        // The receiver may be dropped.
        let _ = done.send(end.map_err(|panic| words(&*panic)));
    };
    if let Err(error) = thread::Builder::new().name("rollout".into()).spawn(work) {
        let reason = format!("the system gives this worker no thread: {error}");
        // A worker that had one before may get another one later.
        return match resume {
            Some(_) => SessionEnd::Lost { reason, was_ready: false },
            None => SessionEnd::Final(EndKind::Failed.because(reason)),
        };
    }
    let wish = leave.clone();
    let overdue = async {
        asked(&mut leave).await;
        sleep(LEAVE_DEADLINE).await;
        Some(format!("its lease was not done within {} s", LEAVE_DEADLINE.as_secs()))
    };
    let reports = from_hub.clone();
    let lost = tokio::select! {
        lost = carry(socket, from_hub, to_hub, (wish, changes)) => lost,
        never = report(reports, measures) => match never {},
        lost = overdue => lost,
    };
    // The thread sees that its channels are closed and ends within a slice, unless an environment hangs: another connection
    // gets another thread.
    let has_lost = lost.is_some();
    let hangs = async {
        tokio::select! {
            () = async { asked(&mut leave).await; sleep(LAST_WORDS).await } => {}
            () = sleep(END_DEADLINE), if has_lost => {}
        }
    };
    let ended = tokio::select! {
        ended = ended => ended,
        () = hangs => {
            let lost = lost.unwrap_or_else(|| "the connection was lost".into());
            return SessionEnd::Lost { reason: format!("{lost}; its environments hang"), was_ready: false };
        }
    };
    let (state, resume_id) = match ended {
        Ok(Ok(end)) => end,
        Ok(Err(panic)) => {
            let reason = format!("the rollout thread {panic}");
            return SessionEnd::Lost { reason, was_ready: false };
        }
        // Panics are caught: the thread always reports how it ended.
        Err(_) => return SessionEnd::Lost { reason: "the rollout thread is gone".into(), was_ready: false },
    };
    *resume = resume_id.or(*resume);
    match state {
        SessionState::Refused { code: Some(RefusalCode::Busy), reason } => {
            SessionEnd::Lost { reason, was_ready: false }
        }
        SessionState::Refused { code: Some(RefusalCode::Token), reason } => {
            let advice = "a hub that was restarted may have new tokens: take the one that it prints";
            SessionEnd::Final(EndKind::Refused.because(format!("{reason}; {advice}")))
        }
        SessionState::Refused { code: Some(RefusalCode::NameTaken), reason } => {
            SessionEnd::Final(EndKind::NameTaken.because(reason))
        }
        SessionState::Refused { reason, .. } => SessionEnd::Final(EndKind::Refused.because(reason)),
        SessionState::Closed { reason } => SessionEnd::Final(EndKind::Closed.because(reason)),
        state @ (SessionState::Connecting | SessionState::Ready) => SessionEnd::Lost {
            reason: lost.unwrap_or_else(|| "the connection was lost".into()),
            was_ready: state == SessionState::Ready,
        },
    }
}

/// Passes on this machine's names, and unless the hub knows it its load, again and again.
async fn report(incoming: mpsc::Sender<Incoming>, measures: bool) -> Infallible {
    let mut machine = Machine::default();
    let mut ticks = interval(REPORT_INTERVAL);
    loop {
        ticks.tick().await;
        let report = if measures { machine.report().await } else { Machine::names() };
        let sent = incoming.send(Incoming::Report(Message::HostReport(report).encode().into())).await;
        if !measures || sent.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Transports frames in both directions until the connection is lost, and returns why, or until the session is over.
async fn carry(
    socket: HubSocket,
    from_hub: mpsc::Sender<Incoming>,
    mut to_hub: mpsc::Receiver<Bytes>,
    (mut leave, mut changes): (watch::Receiver<bool>, Option<watch::Receiver<()>>),
) -> Option<String> {
    let (mut sink, mut stream) = socket.split();
    let read = async {
        let mut is_leaving = false;
        loop {
            let frame = tokio::select! {
                frame = timeout(SILENCE_LIMIT, stream.next()) => frame,
                () = asked(&mut leave), if !is_leaving => {
                    is_leaving = true;
                    if from_hub.send(Incoming::Leave).await.is_err() {
                        return None;
                    }
                    continue;
                }
                () = changed(&mut changes) => {
                    if from_hub.send(Incoming::Wake).await.is_err() {
                        return None;
                    }
                    continue;
                }
            };
            match frame.map(bytes_of) {
                Ok(Ok(Some(bytes))) => {
                    if from_hub.send(Incoming::Frame(bytes)).await.is_err() {
                        return None;
                    }
                }
                Ok(Ok(None)) => {}
                Ok(Err(reason)) => return Some(reason),
                Err(_) => return Some(format!("nothing was heard from the hub for {} s", SILENCE_LIMIT.as_secs())),
            }
        }
    };
    let write = async {
        while let Some(bytes) = to_hub.recv().await {
            if let Err(error) = sink.send(Frame::Binary(bytes)).await {
                return Some(format!("the connection broke: {error}"));
            }
        }
        // The session is over and its last frame has been sent.
        let _ = sink.close().await;
        None
    };
    tokio::pin!(read, write);
    tokio::select! {
        lost = &mut read => match lost {
            // The session ended by itself: let it send its last frame.
            None => write.await,
            lost => lost,
        },
        lost = &mut write => {
            if lost.is_some() {
                // The hub's last frames, a goodbye in particular, may still be on their way.
                let _ = timeout(LAST_WORDS, &mut read).await;
            }
            lost
        }
    }
}

/// Works until the session or the connection is over; calls `heard` after each frame. Returns the session's final state, and
/// how to resume it.
fn work(
    mut session: WorkerSession,
    mut heard: impl FnMut(&WorkerSession),
    mut incoming: mpsc::Receiver<Incoming>,
    outgoing: &mpsc::Sender<Bytes>,
) -> (SessionState, Option<[u8; 16]>) {
    let epoch = Instant::now();
    let (mut steps, mut report) = (1, None);
    while exchange(&mut session, &mut incoming, outgoing, &mut heard, &mut report) {
        if session.has_work() {
            let began = epoch.elapsed();
            session.work(steps, began.into());
            steps = match epoch.elapsed().saturating_sub(began) {
                took if took > SLICE => (steps / 2).max(1),
                took if took < SLICE / 4 => (steps * 2).min(MAX_SLICE_STEPS),
                _ => steps,
            };
        }
    }
    (session.state().clone(), session.resume_id())
}

/// Sends pending frames and handles received ones; blocks if there is no work. Calls `heard` after each frame. False at the
/// end.
fn exchange(
    session: &mut WorkerSession,
    incoming: &mut mpsc::Receiver<Incoming>,
    outgoing: &mpsc::Sender<Bytes>,
    heard: &mut impl FnMut(&WorkerSession),
    report: &mut Option<Bytes>,
) -> bool {
    loop {
        if let Some(frame) = report.take_if(|_| *session.state() == SessionState::Ready) {
            // If the connection is lost, the next frame of the session finds that, too.
            let _ = outgoing.blocking_send(frame);
        }
        while let Some(frame) = session.poll_frame() {
            if outgoing.blocking_send(frame).is_err() {
                // The connection is lost. Its last frames may contain a goodbye.
                while let Ok(Incoming::Frame(frame)) = incoming.try_recv() {
                    session.handle_frame(&frame);
                }
                return false;
            }
        }
        if matches!(session.state(), SessionState::Refused { .. } | SessionState::Closed { .. }) {
            return false;
        }
        let frame = if session.has_work() {
            match incoming.try_recv() {
                Err(mpsc::error::TryRecvError::Empty) => return true,
                received => received.ok(),
            }
        } else {
            incoming.blocking_recv()
        };
        match frame {
            Some(Incoming::Frame(frame)) => {
                session.handle_frame(&frame);
                heard(session);
            }
            Some(Incoming::Leave) => session.leave_when_done(ASKED_TO_LEAVE),
            Some(Incoming::Wake) => {}
            Some(Incoming::Report(frame)) => *report = Some(frame),
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn worker_asked_to_leave_exits_although_its_environment_hangs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let hub = async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio_tungstenite::accept_async(stream).await.unwrap()
        };
        let trust = Trust::default();
        let (hub, socket) = tokio::join!(hub, connect(&url, &trust));
        // The channels' other ends are closed, and the session never ends.
        drop(hub);
        let (_wish, leave) = watch::channel(true);
        let hangs = || -> WorkerSession {
            loop {
                thread::park();
            }
        };
        let end =
            timeout(Duration::from_secs(60), serve(hangs, |_| (), socket.unwrap(), &mut None, (leave, None, false)))
                .await;
        let Ok(SessionEnd::Lost { reason, was_ready: false }) = end else { panic!("it waits for ever") };
        assert!(reason.ends_with("; its environments hang"), "{reason}");
    }
}

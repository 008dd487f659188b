//! A worker's socket and its rollout thread.

use std::{
    collections::VecDeque,
    convert::Infallible,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::{
    protocol::{
        Connection, InabilityKind, Role, Token,
        handshake::Identity,
        message::{HostReport, WeightsNotice},
    },
    worker::{HostSettings, Registry, RolloutWorkerBuilder, WorkerSession, core_fingerprint, forward_by},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep, timeout},
};
use tokio_tungstenite::tungstenite::{Bytes, Message as Frame};

use super::{
    asks::{AnswerFrames, Asks},
    config::{Duty, WorkerConfig},
    end::{ASKED_TO_LEAVE, EndKind, WorkerEnd},
};
use crate::{
    child::ROLLOUT_GRACE,
    envs::{catch_panics, words},
    machine::{Machine, REPORT_INTERVAL},
    net::{FollowedToken, HubSocket, RelaySource, Route, asked, next_frame, reconnect},
    shell::NativeWorker as _,
};

/// After a connection was lost, frames that have arrived before are read for this long.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time for a worker that was asked to leave to finish its lease.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of steps of all lanes between two checks of the socket, …
const MAX_SLICE_STEPS: u32 = 64;
/// … and about how long they may take.
const SLICE: Duration = Duration::from_millis(20);
/// Maximum number of frames queued for the socket; beyond it the worker blocks.
const QUEUED_FRAMES: usize = 16;

/// The reason that there is no session whose connection could be resumed.
#[derive(Debug)]
enum SessionError {
    /// The system gives this worker no thread.
    NoThread(String),
    /// The rollout thread panicked or hangs.
    Abandoned(String),
}

/// Input of the rollout thread.
enum Incoming {
    Frame(Bytes),
    /// Leave when the lease is done.
    Leave,
    /// There may be something to send.
    Wake,
    /// Weights of a relay, if it has provided them.
    Relayed(WeightsNotice, Option<Vec<u8>>),
    /// Another token of this worker.
    Renew(Token),
    /// A report about this machine, to be sent once the hub has admitted the worker.
    Report(HostReport),
}

/// Works for a hub until it says goodbye, reconnecting as needed, or until `leave` is true and the current lease is done.
/// `say` prints messages for users.
pub(crate) async fn run(
    config: WorkerConfig,
    registry: Registry,
    mut leave: watch::Receiver<bool>,
    say: impl Fn(&str) + Clone + Send + 'static,
) -> WorkerEnd {
    let WorkerConfig { hub, trust, relay, token_file, kernels, host_settings, env_memory_mb, duty, .. } = config;
    let evaluating = if let Duty::Evaluates(evaluating) = &duty { Some(evaluating.clone()) } else { None };
    let identity = Identity::new(Role::Worker, config.token, config.kind, &config.name, &config.device);
    let mut connection = Connection::new(Identity {
        core_fingerprint: core_fingerprint(kernels),
        by_relay: relay.is_some(),
        ..identity
    });
    if evaluating.is_some() {
        connection = connection.staying();
    }
    let mut tokens = FollowedToken::new(config.token, token_file);
    let mut weights = relay.clone().map(RelaySource::new);
    let mut lost = None;
    loop {
        let route = Route { hub: &hub, trust: &trust, relay: relay.as_ref() };
        let socket = match reconnect(route, &mut connection, lost, &mut leave, &say).await {
            Ok(socket) => socket,
            Err(end) => return end.into(),
        };
        connection.renew(tokens.latest());
        // Environments need not be `Send`: the session is created on the thread that uses it.
        let (registry, duty, settings) = (registry.clone(), duty.clone(), host_settings.clone());
        let changes = evaluating.as_ref().map(|evaluating| evaluating.changes.clone());
        let joined = evaluating.as_ref().map(|evaluating| evaluating.joined.clone());
        let begun = connection.clone();
        let session = move |asks: Asks| {
            let inference = forward_by(move |request| asks.ask(request));
            let builder = {
                let (registry, is_sampling) = (registry.clone(), matches!(duty, Duty::Runs));
                move || {
                    let builder = RolloutWorkerBuilder::new(registry.clone()).native().kernels(kernels);
                    if is_sampling { builder.inference(inference.clone()) } else { builder }
                }
            };
            let session = WorkerSession::new(begun, registry, kernels)
                .with_workers(builder)
                .with_guard(catch_panics)
                .with_host_settings(settings)
                .with_env_memory(env_memory_mb);
            match duty {
                Duty::Runs => session,
                Duty::ActsForOthers => session.acting_for_others(),
                Duty::Evaluates(evaluating) => session.with_evaluator((evaluating.evaluator)()),
            }
        };
        let heard = report_status(say.clone(), joined);
        // The hub measures its own machine.
        let measures = host_settings != HostSettings::Taken;
        let sources = Sources { weights: weights.as_mut(), tokens: &mut tokens, changes, measures };
        let reason = match serve(session, heard, socket, leave.clone(), sources, &say).await {
            Ok((ended, reason)) => {
                connection = ended;
                reason
            }
            // A worker that had a thread before may get another one later.
            Err(SessionError::NoThread(reason)) if connection.welcome().is_none() => {
                return EndKind::Failed.because(reason);
            }
            Err(SessionError::NoThread(reason) | SessionError::Abandoned(reason)) => reason,
        };
        if *leave.borrow() && connection.end().is_none() {
            return EndKind::Closed.because(format!("{ASKED_TO_LEAVE}; {reason}"));
        }
        lost = Some(reason);
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
fn report_status(say: impl Fn(&str), joined: Option<Arc<dyn Fn() + Send + Sync>>) -> impl FnMut(&WorkerSession) {
    let mut unable_for = None;
    move |session| {
        if let Some(joined) = joined.as_ref().filter(|_| session.connection().is_ready()) {
            joined();
        }
        let inability = session.inability();
        if let Some((run, inability)) = inability.filter(|(run, _)| unable_for != Some(*run)) {
            say(&match inability.kind() {
                InabilityKind::ActsForOthers => format!("this worker acts for the other workers of run {run}"),
                _ => format!("this worker cannot run the hub's run {run}, and waits for the next one: {inability}"),
            });
        }
        unable_for = inability.map(|(run, _)| run);
    }
}

/// Moves frames between the socket and the rollout thread. Returns the session's connection, and the reason that the
/// socket ended.
async fn serve(
    session: impl FnOnce(Asks) -> WorkerSession + Send + 'static,
    heard: impl FnMut(&WorkerSession) + Send + 'static,
    socket: HubSocket,
    mut leave: watch::Receiver<bool>,
    sources: Sources<'_>,
    say: &impl Fn(&str),
) -> Result<(Connection, String), SessionError> {
    let Sources { weights, tokens, changes, measures } = sources;
    let (from_hub, incoming) = mpsc::channel::<Incoming>(QUEUED_FRAMES);
    let (outgoing, to_hub) = mpsc::channel::<Bytes>(QUEUED_FRAMES);
    let (wanted, notices) = watch::channel(None);
    let (done, ended) = oneshot::channel();
    let (asks, answers) = Asks::new(outgoing.clone());
    let clock = Clock { epoch: Instant::now(), runtime: Handle::current() };
    let work = move || {
        // A panic ends this session, not the process: the hub may run in it.
        let end = catch_unwind(AssertUnwindSafe(|| work(session(asks), heard, incoming, &outgoing, &clock, &wanted)));
        // The receiver may be dropped.
        let _ = done.send(end.map_err(|panic| words(&*panic)));
    };
    let thread = thread::Builder::new().name("rollout".into()).spawn(work);
    thread.map_err(|error| SessionError::NoThread(format!("the system gives this worker no thread: {error}")))?;
    let wish = leave.clone();
    let overdue = async {
        asked(&mut leave).await;
        sleep(LEAVE_DEADLINE).await;
        Some(format!("its lease was not done within {} s", LEAVE_DEADLINE.as_secs()))
    };
    let (reports, fetched, renewed) = (from_hub.clone(), from_hub.clone(), from_hub.clone());
    let lost = tokio::select! {
        lost = transport(socket, (from_hub, answers), to_hub, (wish, changes)) => lost,
        never = report(reports, measures) => match never {},
        never = fetch_weights(weights, notices, fetched, say) => match never {},
        never = follow_token(tokens, renewed) => match never {},
        lost = overdue => lost,
    };
    // The thread sees that its channels are closed and ends within a slice, unless an environment hangs: another connection
    // gets another thread.
    let has_lost = lost.is_some();
    let lost = lost.unwrap_or_else(|| "the connection was lost".into());
    let hangs = async {
        tokio::select! {
            () = async { asked(&mut leave).await; sleep(ROLLOUT_GRACE).await } => {}
            () = sleep(ROLLOUT_GRACE), if has_lost => {}
        }
    };
    let ended = tokio::select! {
        ended = ended => ended,
        () = hangs => return Err(SessionError::Abandoned(format!("{lost}; its environments hang"))),
    };
    match ended {
        Ok(Ok(connection)) => Ok((connection, lost)),
        Ok(Err(panic)) => Err(SessionError::Abandoned(format!("the rollout thread {panic}"))),
        // Panics are caught: the thread always reports how it ended.
        Err(_) => Err(SessionError::Abandoned("the rollout thread has ended".into())),
    }
}

/// The inputs of the rollout thread besides the hub's frames.
struct Sources<'a> {
    weights: Option<&'a mut RelaySource>,
    tokens: &'a mut FollowedToken,
    changes: Option<watch::Receiver<()>>,
    /// True if this machine's load is reported.
    measures: bool,
}

/// Fetches the newest announced weights from a relay.
async fn fetch_weights(
    source: Option<&mut RelaySource>,
    mut notices: watch::Receiver<Option<WeightsNotice>>,
    incoming: mpsc::Sender<Incoming>,
    say: &impl Fn(&str),
) -> Infallible {
    let Some(source) = source else { return std::future::pending().await };
    let mut message = Vec::new();
    loop {
        let add = |_: &WeightsNotice, at, part: &[u8]| {
            message.truncate(at);
            message.extend_from_slice(part);
        };
        let Some((notice, fetched)) = source.next(&mut notices, add).await else { break };
        if let Err(Some(reason)) = &fetched {
            say(&format!("{reason}; the hub is asked until it works"));
        }
        let relayed = Incoming::Relayed(notice, fetched.is_ok().then(|| mem::take(&mut message)));
        if incoming.send(relayed).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

/// Presents another token once the file has one.
async fn follow_token(tokens: &mut FollowedToken, incoming: mpsc::Sender<Incoming>) -> Infallible {
    loop {
        let renewed = Incoming::Renew(tokens.next().await);
        if incoming.send(renewed).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Reports this machine's names periodically, and its load unless the hub measures it.
async fn report(incoming: mpsc::Sender<Incoming>, measures: bool) -> Infallible {
    let mut machine = Machine::default();
    let mut ticks = interval(REPORT_INTERVAL);
    loop {
        ticks.tick().await;
        let report = if measures { machine.report().await } else { Machine::names() };
        let sent = incoming.send(Incoming::Report(report)).await;
        if !measures || sent.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Transports frames in both directions until the connection is lost, and returns the reason, or until the session is
/// over.
async fn transport(
    socket: HubSocket,
    (from_hub, mut answers): (mpsc::Sender<Incoming>, AnswerFrames),
    mut to_hub: mpsc::Receiver<Bytes>,
    (mut leave, mut changes): (watch::Receiver<bool>, Option<watch::Receiver<()>>),
) -> Option<String> {
    let (mut sink, mut stream) = socket.split();
    let read = async move {
        let mut is_leaving = false;
        let mut heard = tokio::time::Instant::now();
        // Frames beyond the thread's queue. While it is full nothing more is read, so that the hub replaces weights that it has not
        // sent; but while the thread waits for an answer it takes no frames, and the answer comes behind other frames.
        let mut waiting = VecDeque::new();
        loop {
            let reads = waiting.is_empty() || answers.is_wanted();
            tokio::select! {
                room = from_hub.reserve(), if !waiting.is_empty() => match (room, waiting.pop_front()) {
                    (Ok(room), Some(incoming)) => room.send(incoming),
                    _ => return None,
                },
                () = answers.wanted(), if !reads => {}
                frame = next_frame(&mut stream, &mut heard), if reads => match frame {
                    Ok(bytes) => waiting.extend(answers.take(bytes).map(Incoming::Frame)),
                    Err(reason) => {
                        // No answer comes any more: a thread that waits for one has to take the frames, which may
                        // contain a goodbye.
                        drop(answers);
                        let hand_over = async {
                            for incoming in waiting {
                                if from_hub.send(incoming).await.is_err() {
                                    break;
                                }
                            }
                        };
                        let _ = timeout(LAST_WORDS, hand_over).await;
                        return Some(reason);
                    }
                },
                () = asked(&mut leave), if !is_leaving => {
                    is_leaving = true;
                    waiting.push_back(Incoming::Leave);
                }
                () = changed(&mut changes) => waiting.push_back(Incoming::Wake),
            }
        }
    };
    let write = async {
        while let Some(bytes) = to_hub.recv().await {
            if let Err(error) = sink.send(Frame::Binary(bytes)).await {
                // The hub's last frames, a goodbye in particular, may not have been handled yet. The thread has to get
                // to them: it does not while its own frames are blocked.
                let discard = async { while to_hub.recv().await.is_some() {} };
                let _ = timeout(LAST_WORDS, discard).await;
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
        lost = &mut write => lost,
    }
}

/// The clock of a session, and the waker of its thread at a given time.
struct Clock {
    epoch: Instant,
    runtime: Handle,
}

/// Works until the session or the socket is over; calls `heard` after each frame. Returns the connection.
fn work(
    mut session: WorkerSession,
    mut heard: impl FnMut(&WorkerSession),
    mut incoming: mpsc::Receiver<Incoming>,
    outgoing: &mpsc::Sender<Bytes>,
    clock: &Clock,
    wanted: &watch::Sender<Option<WeightsNotice>>,
) -> Connection {
    let mut steps = 1;
    let mut heard = |session: &mut WorkerSession| {
        heard(session);
        if let Some(notice) = session.poll_notice() {
            wanted.send_replace(Some(notice));
        }
    };
    while exchange(&mut session, &mut incoming, outgoing, clock, &mut heard) {
        if session.has_work() || session.due_at().is_some() {
            let began = clock.epoch.elapsed();
            session.work(steps, began.into());
            steps = match clock.epoch.elapsed().saturating_sub(began) {
                took if took > SLICE => (steps / 2).max(1),
                took if took < SLICE / 4 => (steps * 2).min(MAX_SLICE_STEPS),
                _ => steps,
            };
        }
    }
    session.into_connection()
}

/// Sends pending frames and handles received ones; blocks if there is no work. Calls `heard` after each frame. False at the
/// end.
fn exchange(
    session: &mut WorkerSession,
    incoming: &mut mpsc::Receiver<Incoming>,
    outgoing: &mpsc::Sender<Bytes>,
    clock: &Clock,
    heard: &mut impl FnMut(&mut WorkerSession),
) -> bool {
    loop {
        session.set_time(clock.epoch.elapsed().into());
        while let Some(frame) = session.poll_frame() {
            if outgoing.blocking_send(Bytes::from_owner(frame)).is_err() {
                // The connection is lost. Its last frames, between other messages, may contain a goodbye.
                while let Ok(message) = incoming.try_recv() {
                    if let Incoming::Frame(frame) = message {
                        session.handle_frame(&frame);
                    }
                }
                return false;
            }
        }
        if session.connection().end().is_some() {
            return false;
        }
        let frame = match incoming.try_recv() {
            Err(mpsc::error::TryRecvError::Empty) => {
                session.has_caught_up();
                if session.has_work() {
                    return true;
                }
                match session.due_at() {
                    Some(due) => {
                        let left = Duration::from(due).saturating_sub(clock.epoch.elapsed());
                        match clock.runtime.block_on(async { timeout(left, incoming.recv()).await }) {
                            Err(_) => return true,
                            Ok(received) => received,
                        }
                    }
                    None => incoming.blocking_recv(),
                }
            }
            received => received.ok(),
        };
        match frame {
            Some(Incoming::Frame(frame)) => {
                session.handle_frame(&frame);
                heard(session);
            }
            Some(Incoming::Leave) => session.leave_when_done(ASKED_TO_LEAVE),
            Some(Incoming::Wake) => {}
            Some(Incoming::Relayed(notice, message)) => session.take_relayed(&notice, message.as_deref()),
            Some(Incoming::Renew(token)) => session.renew(token),
            Some(Incoming::Report(report)) => session.report_host(report),
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::{
        Message,
        message::{Goodbye, Infer, Inferred},
    };
    use tokio::{
        net::{TcpListener, TcpStream},
        task::spawn_blocking,
    };
    use tokio_tungstenite::WebSocketStream;

    use super::*;
    use crate::net::{Route, Trust, connect};

    /// Returns both ends of a connection, the hub's first.
    async fn connected() -> (WebSocketStream<TcpStream>, HubSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let hub = async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio_tungstenite::accept_async(stream).await.unwrap()
        };
        let trust = Trust::default();
        let (hub, socket) = tokio::join!(hub, connect(Route::direct(&url, &trust)));
        (hub, socket.unwrap())
    }

    #[tokio::test]
    async fn answer_behind_many_frames_reaches_the_thread_that_waits_for_it() {
        let (mut hub, socket) = connected().await;
        let (from_hub, mut incoming) = mpsc::channel(QUEUED_FRAMES);
        let (outgoing, to_hub) = mpsc::channel(QUEUED_FRAMES);
        let (asks, answers) = Asks::new(outgoing.clone());
        let (_wish, leave) = watch::channel(false);
        let transported = tokio::spawn(transport(socket, (from_hub, answers), to_hub, (leave, None)));
        let asking = spawn_blocking(move || asks.ask(Infer { rows: 1, ..Infer::default() }));
        let Some(Ok(Frame::Binary(_))) = hub.next().await else { panic!("no request") };
        let number = 3 * QUEUED_FRAMES;
        for _ in 0..number {
            hub.send(Frame::Binary(Bytes::from_static(b"RM\x01\0\x06\0\0\0"))).await.unwrap();
        }
        let answer = Message::Inferred(Inferred { ask: 1, ..Inferred::default() });
        hub.send(Frame::Binary(answer.encode().into())).await.unwrap();
        let answer = timeout(Duration::from_secs(10), asking).await.expect("it is read").unwrap();
        assert_eq!(answer.unwrap().ask, 1);
        for _ in 0..number {
            assert!(matches!(incoming.recv().await, Some(Incoming::Frame(_))));
        }
        drop(hub);
        assert!(transported.await.unwrap().is_some());
        drop(outgoing);
    }

    #[tokio::test]
    async fn frames_beyond_the_queue_reach_the_thread_after_the_connection_is_lost() {
        let (mut hub, socket) = connected().await;
        let (from_hub, mut incoming) = mpsc::channel(1);
        let (outgoing, to_hub) = mpsc::channel(QUEUED_FRAMES);
        let (asks, answers) = Asks::new(outgoing.clone());
        let (_wish, leave) = watch::channel(false);
        let transported = tokio::spawn(transport(socket, (from_hub, answers), to_hub, (leave, None)));
        // While the thread waits for an answer, everything is read.
        let asking = spawn_blocking(move || asks.ask(Infer { rows: 1, ..Infer::default() }));
        let Some(Ok(Frame::Binary(_))) = hub.next().await else { panic!("no request") };
        for _ in 0..3 {
            hub.send(Frame::Binary(Bytes::from_static(b"RM\x01\0\x06\0\0\0"))).await.unwrap();
        }
        hub.close(None).await.unwrap();
        assert!(asking.await.unwrap().is_err(), "the connection is lost");
        let mut frames = 0;
        while let Some(Incoming::Frame(_)) = incoming.recv().await {
            frames += 1;
        }
        assert_eq!(frames, 3);
        assert!(transported.await.unwrap().is_some());
        drop(outgoing);
    }

    #[test]
    fn goodbye_behind_another_message_ends_the_session_whose_connection_is_lost() {
        let identity = Identity::new(Role::Worker, Token::new([1; 32]), "native", "name", "cpu");
        let kernels = rollmesh_core::kernels::Kernels::PORTABLE;
        let mut session = WorkerSession::new(Connection::new(identity), Registry::builtin(), kernels);
        let (from_hub, mut incoming) = mpsc::channel(QUEUED_FRAMES);
        let goodbye = Message::Goodbye(Goodbye { reason: "it stops".into() });
        assert!(from_hub.try_send(Incoming::Wake).is_ok());
        assert!(from_hub.try_send(Incoming::Frame(goodbye.encode().into())).is_ok());
        // Nothing is sent any more.
        let (outgoing, _) = mpsc::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = Clock { epoch: Instant::now(), runtime: runtime.handle().clone() };
        assert!(!exchange(&mut session, &mut incoming, &outgoing, &clock, &mut |_| ()));
        assert!(session.connection().end().is_some());
    }

    #[tokio::test]
    async fn worker_asked_to_leave_exits_although_its_environment_hangs() {
        let (hub, socket) = connected().await;
        // The channels' other ends are closed, and the session never ends.
        drop(hub);
        let (_wish, leave) = watch::channel(true);
        let hangs = |_| -> WorkerSession {
            loop {
                thread::park();
            }
        };
        let mut tokens = FollowedToken::new(Token::new([1; 32]), None);
        let sources = Sources { weights: None, tokens: &mut tokens, changes: None, measures: false };
        let served = serve(hangs, |_| (), socket, leave, sources, &|_: &str| ());
        let end = timeout(Duration::from_secs(60), served).await;
        let Ok(Err(SessionError::Abandoned(reason))) = end else { panic!("it waits for ever") };
        assert!(reason.ends_with("; its environments hang"), "{reason}");
    }
}

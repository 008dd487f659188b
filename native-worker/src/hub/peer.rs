//! One peer's socket: frames in and out, limits and deadlines. What messages mean is the actor's.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rollmesh_core::protocol::{
    Frame as OutFrame, Inbox, InboxError, Kind, Message, Outbox, RefusalCode, Role, TooLarge,
    handshake::{busy, malformed},
    message::{Goodbye, Hello, Refused},
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{interval, sleep, timeout, timeout_at},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message as Frame, Utf8Bytes, error::ProtocolError, protocol::CloseFrame},
};

use super::{
    actor::Event,
    client::{Client, Clients},
    gate::{Gate, Pass},
    limits::{HANDSHAKE_DEADLINE, MAX_DASHBOARD_MESSAGES_PER_S, PING_INTERVAL, SILENCE_LIMIT, WRITE_DEADLINE},
    meter::Meter,
    pace::Pace,
    server::READ_BYTES,
};
use crate::pulse::Pulse;

/// A peer that is sent away has this time to hear why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// One whose token is no longer valid has less: it is gone within a second.
const EXPULSION: Duration = Duration::from_millis(300);

/// What the actor holds of a peer: a way to send, and to close.
#[derive(Clone, Debug)]
pub(super) struct PeerLink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    outbox: Mutex<Outbox>,
    wake: Notify,
    /// Nothing waits to be sent any more.
    drained: Notify,
    /// Set once: the goodbye is queued, and nothing after it.
    closing: Mutex<Option<CloseReason>>,
    /// The peer is to be sent away at once.
    expelled: Notify,
    /// Bytes of the frames that came, with what WebSocket adds to them.
    received: AtomicU64,
    /// When one of them came.
    pulse: Pulse,
}

impl PeerLink {
    fn new() -> Self {
        let shared = Shared {
            outbox: Mutex::default(),
            wake: Notify::new(),
            drained: Notify::new(),
            closing: Mutex::new(None),
            expelled: Notify::new(),
            received: AtomicU64::new(0),
            pulse: Pulse::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // Nobody panics while holding it; and if so, the queue is still one.
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closing(&self) -> MutexGuard<'_, Option<CloseReason>> {
        self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, message: &Message) -> Result<(), TooLarge> {
        self.send_frame(OutFrame::new(message)?);
        Ok(())
    }

    pub(super) fn send_frame(&self, frame: OutFrame) {
        if self.closing().is_none() {
            self.outbox().push_frame(frame);
            self.shared.wake.notify_one();
        }
    }

    /// Returns once all that waited has been sent.
    pub(super) async fn drained(&self) {
        self.shared.drained.notified().await;
    }

    /// Messages that wait to be sent.
    pub(super) fn queued_frames(&self) -> usize {
        self.outbox().queued_frames()
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox().queued_bytes()
    }

    /// Bytes that came from the peer since it was admitted.
    pub(super) fn received_bytes(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// When the peer last said something: a sign of life of its socket alone is none of it.
    pub(super) fn pulse(&self) -> Pulse {
        self.shared.pulse.clone()
    }

    /// Nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox().queued_frames() == 0
    }

    /// Closes without a goodbye, so that the peer connects again and is told everything.
    pub(super) fn hang_up(&self) {
        *self.outbox() = Outbox::default();
        *self.closing() = Some(CloseReason::Again);
        self.shared.wake.notify_one();
    }

    /// Sends the peer away at once: nothing more is heard of it, and what was queued is not sent.
    pub(super) fn expel(&self, reason: &str) {
        *self.outbox() = Outbox::default();
        self.close(CloseReason::Fault, reason);
        self.shared.expelled.notify_one();
    }

    /// Says goodbye and closes, after what is already queued.
    pub(super) fn close(&self, why: CloseReason, reason: &str) {
        // A goodbye is far below any limit.
        let _ = self.send(&Message::Goodbye(Goodbye { reason: reason.chars().take(512).collect() }));
        *self.closing() = Some(why);
        self.shared.wake.notify_one();
    }
}

/// Why the hub closes a connection, as WebSocket's status codes have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// There is nothing more to do.
    Done = 1000,
    /// The hub ends.
    Away = 1001,
    /// The peer broke the rules.
    Fault = 1008,
    /// The peer was too slow; it may connect again.
    Again = 1013,
}

/// A peer that the actor has let in; its welcome is queued.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) peer: u32,
    pub(super) role: Role,
}

/// A Hello on its way to the actor.
#[derive(Debug)]
pub(super) struct Knock {
    pub(super) from: SocketAddr,
    pub(super) hello: Hello,
    pub(super) link: PeerLink,
    pub(super) answer: oneshot::Sender<Result<Admission, Refused>>,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Sink = SplitSink<Socket, Frame>;
type Stream = SplitStream<Socket>;

/// Why a connection is over.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) reason: String,
    /// The peer broke the rules, or the connection broke.
    pub(super) is_fault: bool,
    /// What the peer said that its role does not allow.
    pub(super) denied: Option<Kind>,
    /// The peer is not to come back: it is told so.
    is_final: bool,
    /// How long it may take to tell.
    last_words: Duration,
}

impl Departure {
    /// The peer broke the rules.
    fn fault(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { reason, is_fault: true, denied: None, is_final: true, last_words: LAST_WORDS }
    }

    /// The connection is lost; the peer may connect again.
    fn lost(reason: impl ToString) -> Self {
        Self { is_final: false, ..Self::fault(reason) }
    }

    /// Somebody wished so.
    fn wished(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { reason, is_fault: false, denied: None, is_final: false, last_words: LAST_WORDS }
    }

    /// The hub wants the peer to be gone now.
    pub(super) fn expelled(reason: &str) -> Self {
        Self { is_final: false, last_words: EXPULSION, ..Self::fault(reason) }
    }
}

impl From<InboxError> for Departure {
    fn from(error: InboxError) -> Self {
        let denied = match error {
            InboxError::NotAllowed { kind, .. } => Some(kind),
            _ => None,
        };
        Self { denied, ..Self::fault(error) }
    }
}

/// A peer before it has shown its token.
pub(super) struct Doorstep {
    pub(super) from: SocketAddr,
    pub(super) pass: Pass,
    pub(super) meter: Meter,
    pub(super) gate: Arc<Gate>,
}

/// Lets a peer in, or tells it why not.
pub(super) async fn receive(
    socket: Socket,
    doorstep: Doorstep,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<Clients>>,
) -> Option<Guest> {
    let (mut sink, mut stream) = socket.split();
    let mut inbox = Inbox::of_hub();
    let link = PeerLink::new();
    let lost = doorstep.pass.lost();
    let heard = tokio::select! {
        heard = read_hello(&mut stream, &mut inbox, &doorstep.pass) => Some(heard),
        () = lost => None,
    };
    // Whoever has introduced itself keeps its place: the actor may have let it in, and only this task sees it go.
    let admitted = match heard {
        Some(heard) => admit(heard, &mut inbox, &link, &events, &doorstep).await,
        None => Err(busy("too many peers are about to connect; try again later")),
    };
    let Doorstep { from, pass, meter, gate } = doorstep;
    let admission = match admitted {
        Ok(admission) => admission,
        Err(refused) => {
            let bytes = Message::Refused(refused).encode();
            let farewell = async {
                sink.send(Frame::Binary(bytes.into())).await?;
                sink.send(close_frame(CloseReason::Fault)).await?;
                sink.close().await
            };
            // Whoever does not take it has gone, or does not want to know.
            let _ = timeout(LAST_WORDS, farewell).await;
            return None;
        }
    };
    drop(pass);
    let Admission { peer, role } = admission;
    let hearing = Hearing { cap: role.frame_cap() as usize + READ_BYTES, meter };
    // Where there is nothing for clients, nobody is one.
    let clients = clients.filter(|_| role == Role::Client);
    Some(Guest { peer, role, from: from.ip(), gate, sink, stream, inbox, link, hearing, events, clients })
}

/// A peer that was let in.
pub(super) struct Guest {
    peer: u32,
    role: Role,
    from: IpAddr,
    gate: Arc<Gate>,
    sink: Sink,
    stream: Stream,
    inbox: Inbox,
    link: PeerLink,
    hearing: Hearing,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<Clients>>,
}

impl Guest {
    /// Nobody's work waits for it.
    pub(super) fn only_watches(&self) -> bool {
        matches!(self.role, Role::Viewer | Role::Operator)
    }

    /// Hears and tells until one of both wants no more.
    pub(super) async fn stay(self) {
        let Self { peer, role, from, gate, mut sink, mut stream, mut inbox, link, hearing, events, clients } = self;
        hearing.next();
        let mut client = clients.map(|clients| Client::new(peer, clients, link.clone()));
        let read = async {
            match &mut client {
                Some(client) => read_client(client, &mut stream, &mut inbox, &link, &hearing).await,
                None => read((peer, role), &mut stream, &mut inbox, &link, &hearing, &events).await,
            }
        };
        let mut departure = tokio::select! {
            biased;
            () = link.shared.expelled.notified() => Departure::expelled("the hub closed the connection"),
            departure = read => departure,
            departure = write(&mut sink, &link) => departure,
        };
        if let Some(open) = client.map(|mut client| client.leave()).filter(|open| *open > 0) {
            departure.reason += &format!("; {open} of its episodes abandoned");
        }
        if departure.is_final {
            gate.fail(from);
            link.close(CloseReason::Fault, &departure.reason);
        }
        // What is queued, a goodbye in particular, still goes out if the peer takes it.
        let _ = timeout(departure.last_words, flush(&mut sink, &link)).await;
        let usual = if departure.is_fault { CloseReason::Fault } else { CloseReason::Done };
        let code = link.closing().unwrap_or(usual);
        let farewell = async {
            sink.send(close_frame(code)).await?;
            sink.close().await
        };
        let _ = timeout(departure.last_words, farewell).await;
        let _ = events.send(Event::Left { peer, departure }).await;
    }
}

fn close_frame(code: CloseReason) -> Frame {
    Frame::Close(Some(CloseFrame { code: (code as u16).into(), reason: Utf8Bytes::default() }))
}

/// What a peer may say before its next message is complete.
struct Hearing {
    cap: usize,
    meter: Meter,
}

impl Hearing {
    /// The message before is complete.
    fn next(&self) {
        self.meter.allow(self.cap);
    }
}

/// Asks the actor about a Hello.
async fn admit(
    heard: Result<Hello, Refused>,
    inbox: &mut Inbox,
    link: &PeerLink,
    events: &mpsc::Sender<Event>,
    doorstep: &Doorstep,
) -> Result<Admission, Refused> {
    let from = doorstep.from;
    let verdict = match heard {
        Ok(hello) => {
            doorstep.pass.ask();
            let (answer, verdict) = oneshot::channel();
            let knock = Knock { from, hello, link: link.clone(), answer };
            let stopped = || busy("the hub has stopped");
            events.send(Event::Knock(Box::new(knock))).await.map_err(|_| stopped())?;
            verdict.await.map_err(|_| stopped())?
        }
        Err(refused) => {
            // A hub that has stopped counts nothing.
            let _ = events.send(Event::Refused { from, reason: refused.reason.clone() }).await;
            Err(refused)
        }
    };
    match &verdict {
        Ok(admission) => inbox.admit(admission.role),
        Err(refused) if refused.code == RefusalCode::Busy.to_wire() => {}
        // Whoever guesses has to wait for the answer.
        Err(_) => sleep(doorstep.gate.fail(from.ip())).await,
    }
    verdict
}

async fn read_hello(stream: &mut Stream, inbox: &mut Inbox, pass: &Pass) -> Result<Hello, Refused> {
    let frame = match timeout_at(pass.deadline, stream.next()).await {
        Ok(Some(Ok(Frame::Binary(bytes)))) => bytes,
        Ok(Some(Ok(Frame::Close(_))) | None) => return Err(malformed("closed without a Hello")),
        Ok(Some(Ok(_))) => return Err(malformed("the first message must be a Hello, in a binary frame")),
        Ok(Some(Err(error))) => return Err(malformed(error)),
        Err(_) => return Err(malformed(format_args!("no Hello within {} s", HANDSHAKE_DEADLINE.as_secs()))),
    };
    match inbox.handle_frame(&frame) {
        Ok(Some(Message::Hello(hello))) => Ok(hello),
        // The inbox lets nothing else through.
        Ok(_) => Err(malformed("the first message must be a Hello")),
        Err(error) => Err(malformed(error)),
    }
}

/// Passes a client's messages to its episodes until it goes; there is no more reading while they have no room.
async fn read_client(
    client: &mut Client,
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &Hearing,
) -> Departure {
    loop {
        let has_room = client.has_room();
        let heard = tokio::select! {
            biased;
            () = client.changed() => continue,
            heard = next_message(stream, inbox, link, hearing), if has_room => heard,
        };
        match heard {
            Ok(Some(Message::Goodbye(goodbye))) => return wish(&goodbye),
            Ok(message) => message.into_iter().for_each(|message| client.handle(message)),
            Err(departure) => return departure,
        }
    }
}

/// Passes messages on until the peer goes; the channel's bound holds back who sends too fast.
async fn read(
    (peer, role): (u32, Role),
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &Hearing,
    events: &mpsc::Sender<Event>,
) -> Departure {
    let is_dashboard = matches!(role, Role::Viewer | Role::Operator);
    let mut pace = is_dashboard.then(|| Pace::new(MAX_DASHBOARD_MESSAGES_PER_S));
    loop {
        if let Some(pace) = &mut pace {
            pace.next().await;
        }
        match next_message(stream, inbox, link, hearing).await {
            Ok(None) => {}
            Ok(Some(Message::Credit(credit))) => {
                link.outbox().grant(credit.bytes);
                link.shared.wake.notify_one();
            }
            Ok(Some(Message::Goodbye(goodbye))) if role != Role::Worker => return wish(&goodbye),
            // A worker's is the actor's affair, too: it may have a lease to finish.
            Ok(Some(message)) => {
                if events.send(Event::Message { peer, message: Box::new(message) }).await.is_err() {
                    return Departure::wished("the hub has stopped");
                }
            }
            Err(departure) => return departure,
        }
        if let Some(credit) = inbox.take_credit_due() {
            let _ = link.send(&Message::Credit(credit));
        }
    }
}

/// What the next frame says, if that is complete; why the peer goes, if it does.
async fn next_message(
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &Hearing,
) -> Result<Option<Message>, Departure> {
    let frame = match timeout(SILENCE_LIMIT, stream.next()).await {
        Err(_) => return Err(Departure::lost(format_args!("nothing was heard for {} s", SILENCE_LIMIT.as_secs()))),
        Ok(None | Some(Ok(Frame::Close(_)))) => return Err(Departure::wished("the connection was closed")),
        Ok(Some(Err(error))) if is_offence(&error) => return Err(Departure::fault(error)),
        Ok(Some(Err(error))) => return Err(Departure::lost(format_args!("the connection broke: {error}"))),
        Ok(Some(Ok(Frame::Text(_)))) => return Err(Departure::fault("text frames have no place here")),
        Ok(Some(Ok(Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_)))) => {
            hearing.next();
            return Ok(None);
        }
        Ok(Some(Ok(Frame::Binary(bytes)))) => bytes,
    };
    hearing.next();
    link.shared.received.fetch_add(socket_bytes(frame.len()), Ordering::Relaxed);
    link.shared.pulse.beat();
    inbox.handle_frame(&frame).map_err(Departure::from)
}

/// Whether the peer, and not the way to it, is to blame for an error of its socket.
fn is_offence(error: &tungstenite::Error) -> bool {
    match error {
        tungstenite::Error::Protocol(error) => !matches!(error, ProtocolError::ResetWithoutClosingHandshake),
        tungstenite::Error::Capacity(_) | tungstenite::Error::Utf8(_) => true,
        _ => false,
    }
}

/// The peer goes by itself.
fn wish(goodbye: &Goodbye) -> Departure {
    Departure::wished(printable(&goodbye.reason))
}

/// A peer's text, which ends on a terminal.
pub(super) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Bytes of a client's frame on the socket: its payload, a mask, and a header that is longer for longer frames.
fn socket_bytes(payload: usize) -> u64 {
    let header = match payload {
        ..126 => 2,
        126..0x1_0000 => 4,
        _ => 10,
    };
    payload as u64 + header + 4
}

async fn write(sink: &mut Sink, link: &PeerLink) -> Departure {
    let mut pings = interval(PING_INTERVAL);
    loop {
        let sent = tokio::select! {
            () = link.shared.wake.notified() => flush(sink, link).await,
            _ = pings.tick() => deliver(sink, Frame::Ping(Vec::new().into())).await,
        };
        if let Err(reason) = sent {
            // It would not take more words either.
            return Departure { last_words: Duration::ZERO, ..Departure::lost(reason) };
        }
        if link.closing().is_some() && link.queued_bytes() == 0 {
            return Departure::wished("the hub closed the connection");
        }
    }
}

async fn flush(sink: &mut Sink, link: &PeerLink) -> Result<(), String> {
    loop {
        let next = link.outbox().poll_frame();
        match next {
            Some(bytes) => deliver(sink, Frame::Binary(bytes)).await?,
            None => {
                link.shared.drained.notify_one();
                return Ok(());
            }
        }
    }
}

async fn deliver(sink: &mut Sink, frame: Frame) -> Result<(), String> {
    let began = Instant::now();
    match timeout(WRITE_DEADLINE, sink.send(frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the connection broke: {error}")),
        Err(_) => Err(format!("nothing was taken for {} s", began.elapsed().as_secs())),
    }
}

//! One peer's socket: frames in and out, limits and deadlines. What messages mean is the actor's.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::extract::ws::{CloseFrame, Message as Frame, Utf8Bytes, WebSocket};
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use rollmesh_core::protocol::{
    Frame as OutFrame, Inbox, Message, Outbox, Role, TooLarge,
    handshake::{busy, malformed},
    message::{Goodbye, Hello, Refused},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot},
    time::{interval, timeout},
};

use super::{
    actor::Event,
    client::{Client, Clients},
};

/// A peer says Hello within this time.
const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// A peer takes a frame within this time.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// A peer is asked for a sign of its socket this often, …
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// … and has gone when there was none for this long.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);

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
    /// Bytes of the frames that came, with what WebSocket adds to them.
    received: AtomicU64,
}

impl PeerLink {
    fn new() -> Self {
        let shared = Shared {
            outbox: Mutex::default(),
            wake: Notify::new(),
            drained: Notify::new(),
            closing: Mutex::new(None),
            received: AtomicU64::new(0),
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

    /// Closes without a goodbye, so that the peer connects again and is told everything.
    pub(super) fn hang_up(&self) {
        *self.outbox() = Outbox::default();
        *self.closing() = Some(CloseReason::Again);
        self.shared.wake.notify_one();
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
    pub(super) hello: Hello,
    pub(super) link: PeerLink,
    pub(super) answer: oneshot::Sender<Result<Admission, Refused>>,
}

type Sink = SplitSink<WebSocket, Frame>;
type Stream = SplitStream<WebSocket>;

/// Why a connection is over.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) reason: String,
    /// The peer broke the rules, or the connection broke.
    pub(super) is_fault: bool,
    /// The peer is not to come back: it is told so.
    is_final: bool,
}

impl Departure {
    /// The peer broke the rules.
    fn fault(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), is_fault: true, is_final: true }
    }

    /// The connection is lost; the peer may connect again.
    fn lost(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), is_fault: true, is_final: false }
    }

    /// Somebody wished so.
    fn wished(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_fault: false, is_final: false }
    }
}

pub(super) async fn serve(
    socket: WebSocket,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<Clients>>,
    pending: OwnedSemaphorePermit,
) {
    let (mut sink, mut stream) = socket.split();
    let mut inbox = Inbox::of_hub();
    let link = PeerLink::new();
    let admission = match admit(&mut stream, &mut inbox, &link, &events).await {
        Ok(admission) => admission,
        Err(refused) => {
            let bytes = Message::Refused(refused).encode();
            let _ = timeout(WRITE_DEADLINE, sink.send(Frame::Binary(bytes.into()))).await;
            let _ = timeout(WRITE_DEADLINE, sink.close()).await;
            return;
        }
    };
    drop(pending);
    let peer = admission.peer;
    // Where there is nothing for clients, nobody is one.
    let mut client =
        clients.filter(|_| admission.role == Role::Client).map(|clients| Client::new(peer, clients, link.clone()));
    let read = async {
        match &mut client {
            Some(client) => read_client(client, &mut stream, &mut inbox, &link).await,
            None => read((peer, admission.role), &mut stream, &mut inbox, &link, &events).await,
        }
    };
    let mut departure = tokio::select! {
        departure = read => departure,
        departure = write(&mut sink, &link) => departure,
    };
    if let Some(open) = client.map(|mut client| client.leave()).filter(|open| *open > 0) {
        departure.reason += &format!("; {open} of its episodes abandoned");
    }
    if departure.is_final {
        link.close(CloseReason::Fault, &departure.reason);
    }
    // What is queued, a goodbye in particular, still goes out if the peer takes it.
    let _ = timeout(Duration::from_secs(1), flush(&mut sink, &link)).await;
    let code = link.closing().unwrap_or(CloseReason::Done) as u16;
    let close = Frame::Close(Some(CloseFrame { code, reason: Utf8Bytes::default() }));
    let _ = timeout(Duration::from_secs(1), sink.send(close)).await;
    let _ = timeout(Duration::from_secs(1), sink.close()).await;
    let _ = events.send(Event::Left { peer, departure }).await;
}

/// Waits for the Hello and asks the actor.
async fn admit(
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    events: &mpsc::Sender<Event>,
) -> Result<Admission, Refused> {
    let hello = match read_hello(stream, inbox).await {
        Ok(hello) => hello,
        Err(refused) => {
            // A hub that has stopped counts nothing.
            let _ = events.send(Event::Refused { reason: refused.reason.clone() }).await;
            return Err(refused);
        }
    };
    let (answer, verdict) = oneshot::channel();
    let knock = Knock { hello, link: link.clone(), answer };
    let stopped = || busy("the hub has stopped");
    events.send(Event::Knock(Box::new(knock))).await.map_err(|_| stopped())?;
    let admission = verdict.await.map_err(|_| stopped())??;
    inbox.admit(admission.role);
    Ok(admission)
}

async fn read_hello(stream: &mut Stream, inbox: &mut Inbox) -> Result<Hello, Refused> {
    let frame = match timeout(HELLO_DEADLINE, stream.next()).await {
        Ok(Some(Ok(Frame::Binary(bytes)))) => bytes,
        Ok(Some(Ok(Frame::Close(_))) | None) => return Err(malformed("closed without a Hello")),
        Ok(Some(Ok(_))) => return Err(malformed("the first message must be a Hello, in a binary frame")),
        Ok(Some(Err(error))) => return Err(malformed(error)),
        Err(_) => return Err(malformed(format_args!("no Hello within {} s", HELLO_DEADLINE.as_secs()))),
    };
    match inbox.handle_frame(&frame) {
        Ok(Some(Message::Hello(hello))) => Ok(hello),
        // The inbox lets nothing else through.
        Ok(_) => Err(malformed("the first message must be a Hello")),
        Err(error) => Err(malformed(error)),
    }
}

/// Passes a client's messages to its episodes until it goes; there is no more reading while they have no room.
async fn read_client(client: &mut Client, stream: &mut Stream, inbox: &mut Inbox, link: &PeerLink) -> Departure {
    loop {
        let has_room = client.has_room();
        let heard = tokio::select! {
            biased;
            () = client.changed() => continue,
            heard = next_message(stream, inbox, link), if has_room => heard,
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
    events: &mpsc::Sender<Event>,
) -> Departure {
    loop {
        match next_message(stream, inbox, link).await {
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
async fn next_message(stream: &mut Stream, inbox: &mut Inbox, link: &PeerLink) -> Result<Option<Message>, Departure> {
    let frame = match timeout(SILENCE_LIMIT, stream.next()).await {
        Err(_) => return Err(Departure::lost(format_args!("nothing was heard for {} s", SILENCE_LIMIT.as_secs()))),
        Ok(None | Some(Ok(Frame::Close(_)))) => return Err(Departure::wished("the connection was closed")),
        Ok(Some(Err(error))) => return Err(Departure::lost(format_args!("the connection broke: {error}"))),
        Ok(Some(Ok(Frame::Text(_)))) => return Err(Departure::fault("text frames have no place here")),
        Ok(Some(Ok(Frame::Ping(_) | Frame::Pong(_)))) => return Ok(None),
        Ok(Some(Ok(Frame::Binary(bytes)))) => bytes,
    };
    link.shared.received.fetch_add(socket_bytes(frame.len()), Ordering::Relaxed);
    match inbox.handle_frame(&frame) {
        heard => heard.map_err(Departure::fault),
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
            return Departure::lost(reason);
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

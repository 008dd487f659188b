//! The life of a peer's connection, from its Hello to its end, within limits and deadlines. The actor interprets its
//! messages.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::{
    hub::{CloseReason, PeerConnection as _},
    protocol::{
        Inbox, Message, RefusalCode, Role,
        handshake::{busy, malformed},
        message::{Hello, Refused},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{mpsc, oneshot},
    time::{sleep, timeout, timeout_at},
};
use tokio_tungstenite::tungstenite::{self, Message as Frame};

use super::{
    actor::Event,
    client::{Client, ClientsState},
    departure::{Departure, LAST_WORDS},
    handshake_limiter::{HandshakeLimiter, Pass},
    limits::HANDSHAKE_DEADLINE,
    link::PeerLink,
    memory_budget::MemoryBudget,
    read_allowance::ReadAllowance,
    server::READ_BYTES,
    socket::{ReadLimits, Socket, SocketSink, Stream, close_frame, flush, read, read_client, write},
};

/// Maximum number of bytes of a refused peer that are read and discarded.
const UNREAD_BYTES: usize = 64 << 10;

/// A peer that the actor has admitted; its welcome is queued.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) peer: u32,
    pub(super) role: Role,
}

/// A Hello for the actor.
#[derive(Debug)]
pub(super) struct HandshakeRequest {
    pub(super) from: SocketAddr,
    pub(super) hello: Hello,
    /// True if the connection has an `Origin`, which browsers add.
    pub(super) is_of_page: bool,
    pub(super) link: PeerLink,
    pub(super) answer: oneshot::Sender<Result<Admission, Refused>>,
}

/// A connection before authentication.
pub(super) struct Unauthenticated {
    pub(super) from: SocketAddr,
    /// True if the request had an `Origin`.
    pub(super) is_of_page: bool,
    pub(super) pass: Pass,
    pub(super) allowance: ReadAllowance,
    pub(super) limiter: Arc<HandshakeLimiter>,
    pub(super) budget: MemoryBudget,
}

/// Performs the handshake: admits a peer, or sends it the reason for the refusal.
pub(super) async fn receive(
    socket: Socket,
    unauthenticated: Unauthenticated,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<ClientsState>>,
) -> Option<Authenticated> {
    let (mut sink, mut stream) = socket.split();
    let mut inbox = Inbox::of_hub();
    let link = PeerLink::default();
    let lost = unauthenticated.pass.lost();
    let heard = tokio::select! {
        heard = read_hello(&mut stream, &mut inbox, &unauthenticated.pass) => Some(heard),
        () = lost => None,
    };
    // After its Hello a connection keeps its place: the actor may have admitted the peer, and only this task notices its
    // disconnection.
    let admitted = match heard {
        Some(heard) => admit(heard, &mut inbox, &link, &events, &unauthenticated).await,
        None => Err(busy("too many peers are about to connect; try again later")),
    };
    let Unauthenticated { from, pass, allowance, limiter, budget, .. } = unauthenticated;
    let admission = match admitted {
        Ok(admission) => admission,
        Err(refused) => {
            let bytes = Message::Refused(refused).encode();
            let farewell = async {
                sink.send(Frame::Binary(bytes.into())).await?;
                sink.send(close_frame(CloseReason::Fault)).await?;
                sink.close().await?;
                allowance.allow(UNREAD_BYTES);
                // Both are halves of one socket.
                let socket = sink.reunite(stream).map_err(|_| tungstenite::Error::ConnectionClosed)?;
                discard(socket.into_inner()).await;
                Ok::<_, tungstenite::Error>(())
            };
            // A peer that does not read this has disconnected or ignores it.
            let _ = timeout(LAST_WORDS, farewell).await;
            return None;
        }
    };
    drop(pass);
    let Admission { peer, role } = admission;
    let hearing = ReadLimits { cap: role.frame_cap() as usize + READ_BYTES, allowance, budget, reserved: None };
    // Without an environment for clients there are none.
    let clients = clients.filter(|_| role == Role::Client);
    Some(Authenticated { peer, role, from: from.ip(), limiter, sink, stream, inbox, link, hearing, events, clients })
}

/// Reads the rest of a refused peer's bytes: a socket that is closed with unread bytes is reset, and the answer lost.
async fn discard(mut socket: impl AsyncRead + Unpin) {
    let (mut bytes, mut left) = ([0; 4_096], UNREAD_BYTES);
    while let Ok(read @ 1..) = socket.read(&mut bytes).await {
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}

/// A peer that was admitted.
pub(super) struct Authenticated {
    peer: u32,
    role: Role,
    from: IpAddr,
    limiter: Arc<HandshakeLimiter>,
    sink: SocketSink,
    stream: Stream,
    inbox: Inbox,
    link: PeerLink,
    hearing: ReadLimits,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<ClientsState>>,
}

impl Authenticated {
    /// Returns true for viewers and operators: no work waits for them.
    pub(super) fn only_watches(&self) -> bool {
        matches!(self.role, Role::Viewer | Role::Operator)
    }

    /// Transports messages in both directions until either side ends the connection.
    pub(super) async fn stay(self) {
        let Self { peer, role, from, limiter, mut sink, mut stream, mut inbox, link, mut hearing, events, clients } =
            self;
        hearing.next();
        let mut client = clients.map(|clients| Client::new(peer, clients, link.clone()));
        let read = async {
            match &mut client {
                Some(client) => {
                    read_client(client, &mut stream, &mut inbox, &link, &mut hearing, (peer, &events)).await
                }
                None => read((peer, role), &mut stream, &mut inbox, &link, &mut hearing, &events).await,
            }
        };
        let mut departure = tokio::select! {
            biased;
            () = link.expelled() => Departure::expelled("the hub closed the connection"),
            departure = read => departure,
            departure = write(&mut sink, &link) => departure,
        };
        // Releases the message's results before its memory budget, which other connections wait for.
        drop(inbox);
        drop(hearing);
        if let Some(open) = client.map(|mut client| client.leave()).filter(|open| *open > 0) {
            departure.reason += &format!("; {open} of its episodes abandoned");
        }
        if departure.is_final {
            limiter.fail(from);
            link.close(CloseReason::Fault, &departure.reason);
        }
        // Sends the queued messages, a goodbye in particular, if the peer still reads.
        let _ = timeout(departure.last_words, flush(&mut sink, &link)).await;
        let usual = if departure.is_fault { CloseReason::Fault } else { CloseReason::Done };
        let code = link.why_closing().unwrap_or(usual);
        let farewell = async {
            sink.send(close_frame(code)).await?;
            sink.close().await
        };
        let _ = timeout(departure.last_words, farewell).await;
        let _ = events.send(Event::Left { peer, departure }).await;
    }
}

/// Asks the actor whether to admit a Hello.
async fn admit(
    heard: Result<Hello, Refused>,
    inbox: &mut Inbox,
    link: &PeerLink,
    events: &mpsc::Sender<Event>,
    unauthenticated: &Unauthenticated,
) -> Result<Admission, Refused> {
    let from = unauthenticated.from;
    let verdict = match heard {
        Ok(hello) => {
            unauthenticated.pass.ask();
            let (answer, verdict) = oneshot::channel();
            let is_of_page = unauthenticated.is_of_page;
            let request = HandshakeRequest { from, hello, is_of_page, link: link.clone(), answer };
            let stopped = || busy("the hub has stopped");
            events.send(Event::Handshake(Box::new(request))).await.map_err(|_| stopped())?;
            verdict.await.map_err(|_| stopped())?
        }
        Err(refused) => {
            // A hub that has stopped counts no failures.
            let _ = events.send(Event::Refused { from, reason: refused.reason.clone() }).await;
            Err(refused)
        }
    };
    match &verdict {
        Ok(admission) => inbox.admit(admission.role),
        Err(refused) if refused.code == RefusalCode::Busy.to_wire() => {}
        // Delays the answer, to slow down guessing of tokens.
        Err(_) => sleep(unauthenticated.limiter.fail(from.ip())).await,
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
        // The inbox lets no other kind through.
        Ok(_) => Err(malformed("the first message must be a Hello")),
        Err(error) => Err(malformed(error)),
    }
}

//! The frames of an admitted peer: reading until it disconnects, writing as fast as it reads.

use std::time::{Duration, Instant};

use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rollmesh_core::{
    hub::{CloseReason, DecodedUpload, PeerConnection as _, WorkerUpload},
    protocol::{Inbox, Kind, Message, Role, convert},
};
use tokio::{
    sync::mpsc,
    time::{interval, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Bytes, Message as Frame, Utf8Bytes, protocol::CloseFrame},
};

use super::{
    actor::Event,
    client::Client,
    departure::{Departure, is_offence, wish},
    limits::{MAX_DASHBOARD_MESSAGES_PER_S, PARTIAL_PATIENCE, PING_INTERVAL, SILENCE_LIMIT, WRITE_DEADLINE},
    link::PeerLink,
    memory_budget::{MemoryBudget, Reserved},
    rate_limiter::RateLimiter,
    read_allowance::ReadAllowance,
};

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;
pub(super) type SocketSink = SplitSink<Socket, Frame>;
pub(super) type Stream = SplitStream<Socket>;

pub(super) fn close_frame(code: CloseReason) -> Frame {
    Frame::Close(Some(CloseFrame { code: (code as u16).into(), reason: Utf8Bytes::default() }))
}

/// The number of bytes that a peer may send before its next message is complete.
pub(super) struct ReadLimits {
    pub(super) cap: usize,
    pub(super) allowance: ReadAllowance,
    /// The memory budget for messages that come in parts.
    pub(super) budget: MemoryBudget,
    /// The reservation of the message that is arriving in parts.
    pub(super) reserved: Option<Reserved>,
}

impl ReadLimits {
    /// Resets the allowance after a complete message.
    pub(super) fn next(&self) {
        self.allowance.allow(self.cap);
    }

    /// Returns when the message that is arriving in parts is dropped.
    async fn revoked(&self) {
        match &self.reserved {
            Some(reserved) => reserved.revoked().await,
            None => std::future::pending().await,
        }
    }

    /// Reserves memory for a message that has arrived whole. While it waits, a message that is arriving in parts can be dropped
    /// as at any other time, so that connections do not wait for each other.
    async fn reserve(&self, bytes: usize) -> Result<Reserved, Departure> {
        tokio::select! {
            reserved = self.budget.reserve(bytes) => {
                reserved.complete();
                Ok(reserved)
            }
            () = self.revoked() => Err(dropped()),
        }
    }

    /// Takes the reservation of the message that has just been completed, if it came in parts; other messages may arrive in
    /// between.
    fn take_reserved(&mut self, inbox: &Inbox) -> Option<Reserved> {
        let reserved = self.reserved.take_if(|_| !inbox.is_joining())?;
        reserved.complete();
        Some(reserved)
    }
}

/// A peer's message, decoded as far as possible without the hub's state.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message),
    /// An upload that cannot be decoded without the hub's state, or that refers to no lease of this peer.
    Upload(WorkerUpload),
    Decoded(DecodedUpload),
}

impl Received {
    /// Decodes uploads here, on the threads of the sockets: it takes longer than everything that the actor does with them.
    fn of(message: Message, link: &PeerLink) -> Self {
        let upload = match message {
            Message::FragmentUpload(upload) => WorkerUpload::Lanes(upload),
            Message::AgentUpload(upload) => WorkerUpload::Agents(upload),
            message => return Self::Message(message),
        };
        match link.decoder(upload.lease()).filter(|_| !upload.has_deltas()) {
            Some(decoder) => Self::Decoded(decoder.decode(&upload)),
            None => Self::Upload(upload),
        }
    }
}

/// Forwards a client's messages to its episodes until it disconnects; reading pauses while they have no space.
pub(super) async fn read_client(
    client: &mut Client,
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &mut ReadLimits,
    (peer, events): (u32, &mpsc::Sender<Event>),
) -> Departure {
    loop {
        let takes_messages = client.takes_messages();
        let heard = tokio::select! {
            biased;
            () = client.changed() => continue,
            heard = next_message(stream, inbox, link, hearing), if takes_messages => heard,
        };
        match heard {
            Ok(Some(Message::Goodbye(goodbye))) => return wish(&goodbye),
            Ok(Some(renewal @ Message::Renew(_))) => {
                let received = Box::new(Received::Message(renewal));
                if events.send(Event::Received { peer, received, budget: None }).await.is_err() {
                    return Departure::wished("the hub has stopped");
                }
            }
            Ok(message) => message.into_iter().for_each(|message| client.handle(message)),
            Err(departure) => return departure,
        }
    }
}

/// Forwards messages to the actor until the peer disconnects; the bounded channel applies back-pressure to fast senders.
pub(super) async fn read(
    (peer, role): (u32, Role),
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &mut ReadLimits,
    events: &mpsc::Sender<Event>,
) -> Departure {
    let sends_little = matches!(role, Role::Viewer | Role::Operator | Role::Launcher);
    let mut rate_limiter = sends_little.then(|| RateLimiter::new(MAX_DASHBOARD_MESSAGES_PER_S));
    loop {
        if let Some(rate_limiter) = &mut rate_limiter {
            rate_limiter.next().await;
        }
        match next_message(stream, inbox, link, hearing).await {
            Ok(None) => {}
            Ok(Some(Message::Credit(credit))) => link.grant(credit.bytes),
            Ok(Some(Message::Goodbye(goodbye))) if !matches!(role, Role::Worker | Role::Launcher) => {
                return wish(&goodbye);
            }
            Ok(Some(Message::CompressedUpload(upload))) => {
                // Before memory is reserved: a short block may claim any length.
                let bytes = match convert::decompressed_bytes(&upload) {
                    Ok(bytes) => bytes,
                    Err(error) => return Departure::fault(error),
                };
                let budget = match hearing.take_reserved(inbox) {
                    Some(budget) => budget,
                    None => match hearing.reserve(bytes).await {
                        Ok(budget) => budget,
                        Err(departure) => return departure,
                    },
                };
                let message = match convert::decompressed(&upload) {
                    Ok(message) => message,
                    Err(error) => return Departure::fault(error),
                };
                let received = Box::new(Received::of(message, link));
                if events.send(Event::Received { peer, received, budget: Some(budget) }).await.is_err() {
                    return Departure::wished("the hub has stopped");
                }
            }
            // Goodbyes of workers and launchers are for the actor, too: a worker may have a lease to finish.
            Ok(Some(message)) => {
                let budget = hearing.take_reserved(inbox);
                let received = Box::new(Received::of(message, link));
                if events.send(Event::Received { peer, received, budget }).await.is_err() {
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

/// Reads the next frame. Returns its message if that is complete, or the end of the connection.
async fn next_message(
    stream: &mut Stream,
    inbox: &mut Inbox,
    link: &PeerLink,
    hearing: &mut ReadLimits,
) -> Result<Option<Message>, Departure> {
    let came = tokio::select! {
        came = timeout(SILENCE_LIMIT, stream.next()) => came,
        () = hearing.revoked() => return Err(dropped()),
    };
    let frame = match came {
        Err(_) => return Err(Departure::lost(format_args!("the peer sent nothing for {} s", SILENCE_LIMIT.as_secs()))),
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
    link.record_received(socket_bytes(frame.len()));
    if let Some((kind, bytes)) = inbox.announced(&frame) {
        if kind == Kind::CallResult && !link.is_called() {
            return Err(Departure::fault("a result in parts, and no call that waits for one"));
        }
        hearing.reserved = Some(hearing.budget.reserve(bytes).await);
    }
    if let Some(reserved) = &hearing.reserved {
        reserved.add(frame.len());
    }
    inbox.handle_frame(&frame).map_err(Departure::from)
}

/// Returns the end of a connection whose message in parts is dropped.
fn dropped() -> Departure {
    let patience = PARTIAL_PATIENCE.as_secs();
    Departure::lost(format_args!(
        "a message in parts was not complete after {patience} s, and others wait for its budget"
    ))
}

/// Returns the size of a client's frame on the socket: its payload, a mask, and a header that is longer for longer frames.
fn socket_bytes(payload: usize) -> u64 {
    let header = match payload {
        ..126 => 2,
        126..0x1_0000 => 4,
        _ => 10,
    };
    payload as u64 + header + 4
}

pub(super) async fn write(sink: &mut SocketSink, link: &PeerLink) -> Departure {
    let mut pings = interval(PING_INTERVAL);
    loop {
        let sent = tokio::select! {
            () = link.woken() => flush(sink, link).await,
            _ = pings.tick() => deliver(sink, Frame::Ping(Vec::new().into())).await,
        };
        if let Err(reason) = sent {
            // It would not accept a goodbye either.
            return Departure { last_words: Duration::ZERO, ..Departure::lost(reason) };
        }
        if link.why_closing().is_some() && link.queued_bytes() == 0 {
            return Departure::wished("the hub closed the connection");
        }
    }
}

pub(super) async fn flush(sink: &mut SocketSink, link: &PeerLink) -> Result<(), String> {
    while let Some(bytes) = link.poll_frame() {
        deliver(sink, Frame::Binary(Bytes::from_owner(bytes))).await?;
    }
    Ok(())
}

async fn deliver(sink: &mut SocketSink, frame: Frame) -> Result<(), String> {
    let began = Instant::now();
    match timeout(WRITE_DEADLINE, sink.send(frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the connection broke: {error}")),
        Err(_) => Err(format!("nothing was taken for {} s", began.elapsed().as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_whose_message_is_arriving_does_not_wait_for_memory_for_ever() {
        let budget = MemoryBudget::new(100, Duration::from_millis(50));
        let arriving = budget.reserve(60).await;
        let hearing =
            ReadLimits { cap: 0, allowance: ReadAllowance::new(0), budget: budget.clone(), reserved: Some(arriving) };
        let end = timeout(Duration::from_secs(60), hearing.reserve(60)).await.expect("it does not wait for ever");
        assert!(end.expect_err("there is no memory").reason.contains("others wait for its budget"));
        drop(hearing);
        assert!(timeout(Duration::from_secs(60), budget.reserve(60)).await.is_ok());
    }
}

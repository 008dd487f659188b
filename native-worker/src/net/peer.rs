//! A peer's connection over its sockets: an I/O adapter of [`Connection`].

use std::{mem, time::Duration};

use futures_util::{SinkExt as _, Stream, StreamExt as _};
use rollmesh_core::protocol::{Connection, ConnectionEnd, Message, Received, Retry};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_tungstenite::tungstenite::{self, Bytes, Message as Frame};

use super::{ConnectError, HubSocket, Route, connect};

/// A hub pings every five seconds; after this time without a frame it counts as disconnected.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// Time for a goodbye to reach the hub.
const FAREWELL: Duration = Duration::from_secs(1);

/// The reason that a peer does not reconnect to its hub.
#[derive(Debug)]
pub(crate) enum PeerEnd {
    /// It was asked to leave.
    Asked,
    /// The hub's identity could not be verified, so no token was sent.
    Untrusted(String),
    /// Another attempt would end in this way, too.
    Over(ConnectionEnd),
}

/// Connects to a hub, with retries until it succeeds, at first after a delay if a connection was `lost` for this
/// reason. A way through a relay that fails is followed by the direct one. `say` prints messages for users.
pub(crate) async fn reconnect(
    route: Route<'_>,
    connection: &mut Connection,
    mut lost: Option<String>,
    leave: &mut watch::Receiver<bool>,
    say: &impl Fn(&str),
) -> Result<HubSocket, PeerEnd> {
    let attempts = async {
        let mut says_relay = true;
        loop {
            if let Some(reason) = lost.take() {
                let random = getrandom::u32().unwrap_or(u32::MAX / 2);
                let Retry { reason, delay } = connection.handle_close(&reason, random).map_err(PeerEnd::Over)?;
                let delay = Duration::from(delay);
                say(&format!("{reason}; trying again in {:.1} s", delay.as_secs_f64()));
                sleep(delay).await;
            }
            let hub = route.hub;
            if let Some(relay) = route.relay {
                match connect(route).await {
                    Ok(socket) => return Ok(socket),
                    // A relay that shows another certificate must not end this peer.
                    Err(error) if mem::take(&mut says_relay) => {
                        say(&format!(
                            "no way to the hub through the relay at {}: {error}; trying the direct one",
                            relay.url
                        ));
                    }
                    Err(_) => {}
                }
            }
            match connect(Route::direct(hub, route.trust)).await {
                Ok(socket) => return Ok(socket),
                Err(error @ (ConnectError::UnknownIssuer | ConnectError::OtherFingerprint)) => {
                    return Err(PeerEnd::Untrusted(format!("the hub at {hub} is not trusted: {error}")));
                }
                Err(ConnectError::Failed(reason)) => lost = Some(format!("cannot reach the hub at {hub}: {reason}")),
            }
        }
    };
    tokio::select! {
        biased;
        socket = attempts => socket,
        () = asked(leave) => Err(PeerEnd::Asked),
    }
}

/// Returns once this peer has been asked to leave.
pub(crate) async fn asked(leave: &mut watch::Receiver<bool>) {
    if leave.wait_for(|leave| *leave).await.is_err() {
        // The sender is dropped, so it can no longer be asked.
        std::future::pending::<()>().await;
    }
}

/// Waits for the next frame of the hub, which was last `heard` at this time. Nothing is lost if it is cancelled.
///
/// # Errors
/// The reason that the connection has ended.
pub(crate) async fn next_frame(
    socket: &mut (impl Stream<Item = tungstenite::Result<Frame>> + Unpin),
    heard: &mut Instant,
) -> Result<Bytes, String> {
    loop {
        let frame = timeout_at(*heard + SILENCE_LIMIT, socket.next()).await;
        if frame.is_ok() {
            *heard = Instant::now();
        }
        match frame {
            Ok(Some(Ok(Frame::Binary(bytes)))) => return Ok(bytes),
            Ok(Some(Ok(Frame::Close(_))) | None) => return Err("the hub closed the connection".into()),
            // Pings and pongs show only that the hub is alive.
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => return Err(format!("the connection broke: {error}")),
            Err(_) => return Err(format!("the hub sent nothing for {} s", SILENCE_LIMIT.as_secs())),
        }
    }
}

/// A peer's connection and its socket.
pub(crate) struct Linked<'a> {
    socket: &'a mut HubSocket,
    pub(crate) connection: &'a mut Connection,
    /// The time at which the hub was last heard.
    heard: Instant,
}

impl<'a> Linked<'a> {
    pub(crate) fn new(socket: &'a mut HubSocket, connection: &'a mut Connection) -> Self {
        Self { socket, connection, heard: Instant::now() }
    }

    /// Waits until the hub has admitted this peer.
    ///
    /// # Errors
    /// The reason that the connection has ended. [`Connection::end`] says whether the hub refused this peer.
    pub(crate) async fn admitted(&mut self) -> Result<(), String> {
        while !self.connection.is_ready() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The reason that the connection has ended.
    pub(crate) async fn send(&mut self, message: &Message) -> Result<(), String> {
        self.connection.send(message);
        self.flush().await
    }

    /// Says goodbye and closes the socket. A hub that does not answer is not waited for.
    pub(crate) async fn leave(&mut self, reason: &str) {
        self.connection.leave(reason);
        let farewell = async {
            if self.flush().await.is_ok() && self.socket.close(None).await.is_ok() {
                // Closing a socket with unread data may discard what was sent.
                while let Some(Ok(_)) = self.socket.next().await {}
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
    }

    /// Sends the queued messages, and waits for the hub's next frame. Returns the message that it completes.
    ///
    /// # Errors
    /// The reason that the connection has ended.
    pub(crate) async fn receive(&mut self) -> Result<Option<Message>, String> {
        let flushed = self.flush().await;
        // The reason of the end matters more than an error of sending the goodbye.
        if self.connection.end().is_none() {
            flushed?;
        }
        self.next().await
    }

    /// Waits for the hub's next frame, and returns the message that it completes. Nothing is lost if it is cancelled; it
    /// sends nothing.
    ///
    /// # Errors
    /// The reason that the connection has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, String> {
        Ok(match self.next_received().await? {
            Some(Received::Message(message)) => Some(message),
            Some(Received::Weights { .. } | Received::Piece(_)) | None => None,
        })
    }

    /// Works like [`next`](Self::next), and returns parts of weights, too, which only relays get.
    ///
    /// # Errors
    /// The reason that the connection has ended.
    pub(crate) async fn next_received(&mut self) -> Result<Option<Received>, String> {
        if let Some(end) = self.connection.end() {
            return Err(end.to_string());
        }
        let frame = next_frame(self.socket, &mut self.heard).await?;
        Ok(self.connection.handle_frame(&frame, None))
    }

    /// Sends the queued messages, as far as there is credit for them. A frame is lost if it is cancelled.
    ///
    /// # Errors
    /// The reason that the connection has ended.
    pub(crate) async fn flush(&mut self) -> Result<(), String> {
        while let Some(frame) = self.connection.poll_frame() {
            match timeout(SILENCE_LIMIT, self.socket.send(Frame::Binary(Bytes::from_owner(frame)))).await {
                Ok(sent) => sent.map_err(|error| format!("the connection broke: {error}"))?,
                Err(_) => return Err(format!("the hub has taken nothing for {} s", SILENCE_LIMIT.as_secs())),
            }
        }
        Ok(())
    }
}

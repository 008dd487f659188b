//! A connection to a hub: carries frames both ways until it is over.

use std::{sync::Arc, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::worker::SessionState;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_tungstenite::tungstenite::Message as Frame;

use super::EvalHub;
use crate::net::{HubSocket, connect};

/// A hub pings every five seconds, and takes what it is told; after this time without either, it is taken for gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// A hub has this long to take a goodbye.
const FAREWELL: Duration = Duration::from_secs(1);
/// As good as never.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// What is said and heard at this end of a connection.
pub(super) trait End {
    /// Takes a frame from the hub.
    fn handle_frame(&mut self, frame: &[u8]);
    /// The next frame to send, if there is one now.
    fn poll_frame(&mut self) -> Option<Vec<u8>>;
    /// Tells of changes: there may be frames though the hub has said nothing.
    fn changes(&self) -> Arc<Notify>;
    /// How long until there may be frames though nothing has changed.
    fn patience(&self) -> Option<Duration>;
    /// Why there is nothing more to say, if so.
    fn is_over(&self) -> Option<String>;
    /// The connection is over, or never came about.
    fn lost(&mut self, reason: &str);
}

/// Why a connection in this state is over, if it is.
pub(super) fn over(state: &SessionState) -> Option<String> {
    match state {
        SessionState::Connecting | SessionState::Ready => None,
        SessionState::Refused { reason, .. } => Some(format!("the hub refused: {reason}")),
        SessionState::Closed { reason } => Some(reason.clone()),
    }
}

/// Connects, and carries frames until either end is over.
pub(super) async fn carry(hub: &EvalHub, end: &mut impl End) {
    let reason = match connect(hub.url.as_str(), &hub.trust).await {
        Ok(socket) => converse(socket, end, SILENCE_LIMIT).await,
        Err(error) => error.to_string(),
    };
    end.lost(&reason);
}

/// Returns why it is over.
async fn converse(socket: HubSocket, end: &mut impl End, limit: Duration) -> String {
    let (mut sink, mut stream) = socket.split();
    let changes = end.changes();
    let mut heard = Instant::now();
    let reason = loop {
        // What changes from here on is not missed.
        let change = changes.notified();
        let failed = loop {
            let Some(frame) = end.poll_frame() else { break None };
            match timeout(limit, sink.send(Frame::Binary(frame.into()))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => break Some(error.to_string()),
                Err(_) => break Some(format!("the hub has taken nothing for {} s", limit.as_secs())),
            }
        };
        if let Some(reason) = failed.or_else(|| end.is_over()) {
            break reason;
        }
        let until = Instant::now() + end.patience().unwrap_or(LONG);
        tokio::select! {
            () = change => {}
            () = sleep_until(until) => {}
            frame = timeout_at(heard + limit, stream.next()) => {
                heard = Instant::now();
                match frame {
                    Ok(Some(Ok(Frame::Binary(frame)))) => end.handle_frame(&frame),
                    Ok(Some(Ok(Frame::Close(_))) | None) => break "the hub closed the connection".to_owned(),
                    Ok(Some(Ok(_))) => {}
                    Ok(Some(Err(error))) => break error.to_string(),
                    Err(_) => break format!("nothing was heard from the hub for {} s", limit.as_secs()),
                }
            }
        }
    };
    let _ = timeout(FAREWELL, sink.close()).await;
    reason
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::control::Trust;

    /// Always has something to say.
    struct Talks;

    impl End for Talks {
        fn handle_frame(&mut self, _: &[u8]) {}
        fn poll_frame(&mut self) -> Option<Vec<u8>> {
            Some(vec![0; 1 << 17])
        }
        fn changes(&self) -> Arc<Notify> {
            Arc::default()
        }
        fn patience(&self) -> Option<Duration> {
            None
        }
        fn is_over(&self) -> Option<String> {
            None
        }
        fn lost(&mut self, _: &str) {}
    }

    #[tokio::test]
    async fn a_hub_that_takes_nothing_is_taken_for_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let hub = async {
            let (stream, _) = listener.accept().await.unwrap();
            // Kept open, and never read.
            tokio_tungstenite::accept_async(stream).await.unwrap()
        };
        let trust = Trust::default();
        let (hub, socket) = tokio::join!(hub, connect(&url, &trust));
        let reason = converse(socket.unwrap(), &mut Talks, Duration::from_millis(300)).await;
        assert!(reason.starts_with("the hub has taken nothing for"), "{reason}");
        drop(hub);
    }
}

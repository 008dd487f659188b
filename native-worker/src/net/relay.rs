//! Relays, as workers and other relays use them: a way to the hub, and a place that has its weights.

use std::{fmt::Display, time::Duration};

use rollmesh_core::protocol::message::WeightsNotice;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::watch,
    time::{Instant, timeout},
};

use super::{ConnectError, Io, Trust, connect::dial};

/// The first bytes of a connection whose further bytes are for the hub, …
pub(crate) const TO_HUB: [u8; 4] = *b"RMH\x01";
/// … and of one that requests weights: each request is the hash of a message, each answer its length and its bytes, or a
/// length of 0.
pub(crate) const FOR_WEIGHTS: [u8; 4] = *b"RMW\x01";

/// Maximum number of bytes of weights that are read or written at a time.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// A relay that sends nothing for so long is given up: its own source may still be sending.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time for a newer notice to arrive after a relay has failed: a relay that has evicted weights has had newer notices already.
const NEWER: Duration = Duration::from_millis(200);
/// Time for which the hub is asked after a relay has failed. It doubles with each failure in a row, …
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The address of a relay, and how to verify it.
#[derive(Clone, Debug)]
pub(crate) struct RelayAddress {
    /// `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub(crate) url: String,
    pub(crate) trust: Trust,
}

impl RelayAddress {
    /// Opens a stream whose further bytes are for the hub.
    pub(crate) async fn to_hub(&self) -> Result<Box<dyn Io>, ConnectError> {
        let mut stream = self.dial().await?;
        stream.write_all(&TO_HUB).await.map_err(|error| error.to_string())?;
        Ok(stream)
    }

    /// Opens a stream to the relay. A relay that is not trusted does not end a peer, which can use the hub directly.
    async fn dial(&self) -> Result<Box<dyn Io>, String> {
        dial(&self.url, &self.trust).await.map_err(|error| match error {
            ConnectError::UnknownIssuer | ConnectError::OtherFingerprint => {
                "no TLS: the relay's certificate is not the trusted one; take the fingerprint that it prints now, with \
                 --relay-fingerprint"
                    .into()
            }
            ConnectError::Failed(reason) => reason,
        })
    }
}

/// A connection to a relay for weights, opened when it is needed.
pub(crate) struct RelaySource {
    relay: RelayAddress,
    stream: Option<Box<dyn Io>>,
    /// After a failure: until when the relay is not asked, and how long this has been chosen.
    pause: Option<(Instant, Duration)>,
}

impl RelaySource {
    pub(crate) fn new(relay: RelayAddress) -> Self {
        Self { relay, stream: None, pause: None }
    }

    /// Waits for a notice and fetches its message; passes on each part, with its place, as it arrives. Does not compare the
    /// message with its hash. Returns the notice, and the reason that the relay has not provided the message, for
    /// users, once for failures in a row; `None` when there are no more notices.
    pub(crate) async fn next(
        &mut self,
        notices: &mut watch::Receiver<Option<WeightsNotice>>,
        mut part: impl FnMut(&WeightsNotice, usize, &[u8]),
    ) -> Option<(WeightsNotice, Result<(), Option<String>>)> {
        let mut has_skipped = false;
        loop {
            notices.changed().await.ok()?;
            let Some(notice) = *notices.borrow_and_update() else { continue };
            if self.pause.is_some_and(|(until, _)| Instant::now() < until) {
                return Some((notice, Err(None)));
            }
            match self.fetch(&notice, &mut part).await {
                Ok(()) => {
                    self.pause = None;
                    return Some((notice, Ok(())));
                }
                // The relay may have dropped an outdated message. A relay that does not work must not be asked for ever.
                Err(_) if !has_skipped && matches!(timeout(NEWER, notices.changed()).await, Ok(Ok(()))) => {
                    has_skipped = true;
                    notices.mark_changed();
                }
                Err(reason) => {
                    let reason = format!("the relay at {} has not provided weights: {reason}", self.relay.url);
                    let before = self.pause.map(|(_, length)| length);
                    let length = before.map_or(FIRST_PAUSE, |length| (2 * length).min(LONGEST_PAUSE));
                    self.pause = Some((Instant::now() + length, length));
                    return Some((notice, Err(before.is_none().then_some(reason))));
                }
            }
        }
    }

    async fn fetch(
        &mut self,
        notice: &WeightsNotice,
        mut part: impl FnMut(&WeightsNotice, usize, &[u8]),
    ) -> Result<(), String> {
        // Taken, so that a stream whose message was not read to its end is not used again. The relay closes idle ones.
        let answered = match self.stream.take() {
            Some(stream) => request(stream, &notice.hash).await.ok(),
            None => None,
        };
        let (mut stream, length) = match answered {
            Some(answered) => answered,
            None => request(open(&self.relay).await?, &notice.hash).await?,
        };
        if length != notice.bytes {
            return Err(if length == 0 { "it does not have them".into() } else { format!("it has {length} bytes") });
        }
        let (mut at, length) = (0, length as usize);
        let mut buffer = vec![0; PIECE_BYTES];
        while at < length {
            let most = buffer.len().min(length - at);
            let read = within(stream.read(&mut buffer[..most])).await?;
            if read == 0 {
                return Err("it closed the connection".into());
            }
            part(notice, at, &buffer[..read]);
            at += read;
        }
        self.stream = Some(stream);
        Ok(())
    }
}

/// Opens a stream for requests.
async fn open(relay: &RelayAddress) -> Result<Box<dyn Io>, String> {
    let mut stream = within(relay.dial()).await?;
    within(stream.write_all(&FOR_WEIGHTS)).await?;
    Ok(stream)
}

/// Requests the message with this hash. Returns the stream that it follows on, and its length.
async fn request(mut stream: Box<dyn Io>, hash: &[u8; 32]) -> Result<(Box<dyn Io>, u32), String> {
    within(stream.write_all(hash)).await?;
    within(stream.flush()).await?;
    let length = within(stream.read_u32()).await?;
    Ok((stream, length))
}

async fn within<T, E: Display>(future: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    let done = timeout(PATIENCE, future).await.map_err(|_| format!("nothing for {} s", PATIENCE.as_secs()))?;
    done.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::sleep};

    use super::*;

    #[tokio::test]
    async fn weights_that_the_relay_has_evicted_are_skipped_for_newer_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let notice = |version: u8| WeightsNotice { run: 1, version: version.into(), bytes: 1, hash: [version; 32] };
        let (newest, mut notices) = watch::channel(None);
        newest.send_replace(Some(notice(1)));
        let relay = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 36];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_u32(0).await.unwrap();
            // The relay is ahead of the worker.
            sleep(Duration::from_millis(10)).await;
            newest.send_replace(Some(notice(2)));
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_u32(1).await.unwrap();
            stream.write_all(&asked[35..]).await.unwrap();
        };
        let mut source = RelaySource::new(RelayAddress { url, trust: Trust::default() });
        let mut part = Vec::new();
        let fetched = source.next(&mut notices, |_, _, data| part.extend_from_slice(data));
        let (fetched, ()) = tokio::join!(fetched, relay);
        assert_eq!((fetched, part), (Some((notice(2), Ok(()))), vec![2]));
    }
}

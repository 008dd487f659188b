//! Relays, as workers and other relays use them: a way to the hub, and a place that has its weights.

use std::time::Duration;

use rollmesh_core::protocol::message::WeightsNotice;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use tokio_tungstenite::tungstenite::Bytes;

use super::{ConnectError, Io, Trust, connect::dial};

/// The first bytes of a connection whose further bytes are for the hub, …
pub(crate) const TO_HUB: [u8; 4] = *b"RMH\x01";
/// … and of one that requests weights: each request is the hash of a message, each answer its length and its bytes, or a
/// length of 0.
pub(crate) const FOR_WEIGHTS: [u8; 4] = *b"RMW\x01";

/// Most bytes of weights that are read or written at a time.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// A relay that sends nothing for so long is given up: its own source may still be sending.
const PATIENCE: Duration = Duration::from_secs(15);

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
        let mut stream = dial(&self.url, &self.trust).await?;
        stream.write_all(&TO_HUB).await.map_err(|error| error.to_string())?;
        Ok(stream)
    }
}

/// A connection to a relay for weights, opened when it is needed.
pub(crate) struct WeightsSource {
    relay: RelayAddress,
    stream: Option<Box<dyn Io>>,
}

impl WeightsSource {
    pub(crate) fn new(relay: RelayAddress) -> Self {
        Self { relay, stream: None }
    }

    /// Fetches the message of a notice, and passes on each part as it arrives. Does not compare the message with its hash.
    ///
    /// # Errors
    /// Why the relay has not provided it, for users.
    pub(crate) async fn fetch(&mut self, notice: &WeightsNotice, part: impl FnMut(Bytes)) -> Result<(), String> {
        let fetched = self.try_fetch(notice, part).await;
        if fetched.is_err() {
            self.stream = None;
        }
        fetched.map_err(|reason| format!("the relay at {} has not provided weights: {reason}", self.relay.url))
    }

    async fn try_fetch(&mut self, notice: &WeightsNotice, mut part: impl FnMut(Bytes)) -> Result<(), String> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opened =
                    within(dial(&self.relay.url, &self.relay.trust)).await?.map_err(|error| error.to_string())?;
                let stream = self.stream.insert(opened);
                within(stream.write_all(&FOR_WEIGHTS)).await?.map_err(|error| error.to_string())?;
                stream
            }
        };
        let broken = |error: std::io::Error| error.to_string();
        within(stream.write_all(&notice.hash)).await?.map_err(broken)?;
        within(stream.flush()).await?.map_err(broken)?;
        let length = within(stream.read_u32()).await?.map_err(broken)?;
        if length != notice.bytes {
            return Err(if length == 0 { "it does not have them".into() } else { format!("it has {length} bytes") });
        }
        let mut left = length as usize;
        let mut buffer = vec![0; PIECE_BYTES];
        while left > 0 {
            let most = left.min(buffer.len());
            let read = within(stream.read(&mut buffer[..most])).await?.map_err(broken)?;
            if read == 0 {
                return Err("it closed the connection".into());
            }
            part(Bytes::copy_from_slice(&buffer[..read]));
            left -= read;
        }
        Ok(())
    }
}

async fn within<T>(future: impl Future<Output = T>) -> Result<T, String> {
    timeout(PATIENCE, future).await.map_err(|_| format!("nothing for {} s", PATIENCE.as_secs()))
}

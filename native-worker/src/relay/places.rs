//! The connections of a relay: their limits, and the forwarding of those that lead to the hub.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    time::timeout,
};

/// Maximum number of connections at the same time, …
const MAX_CONNECTIONS: usize = 1024;
/// … and from one address: a machine has many workers, with two connections each.
const MAX_PER_ADDRESS: usize = 512;
/// Bytes that are forwarded at a time.
const PART_BYTES: usize = 16 << 10;
/// A hub pings every five seconds, and peers answer: a connection without traffic in one direction is lost.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// Once one side has closed a connection, the other side's bytes are forwarded for this long.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The connections by address.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

/// The place of a connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct RelayPlace {
    places: Arc<Places>,
    from: IpAddr,
}

impl Places {
    /// Returns a place for a connection from this address; `None` if there are too many.
    pub(super) fn take(self: &Arc<Self>, from: IpAddr) -> Option<RelayPlace> {
        let mut taken = self.taken();
        let all: usize = taken.values().sum();
        let of_address = taken.get(&from).copied().unwrap_or(0);
        if all >= MAX_CONNECTIONS || of_address >= MAX_PER_ADDRESS {
            return None;
        }
        taken.insert(from, of_address + 1);
        Some(RelayPlace { places: self.clone(), from })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        // No code panics while holding the lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RelayPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.from) {
            *count -= 1;
        }
        taken.retain(|_, count| *count > 0);
    }
}

/// Forwards bytes in both directions until either side closes the connection, fails or sends nothing for the time of
/// `silence`.
pub(super) async fn forward<P, H>(peer: P, hub: H, silence: Duration)
where
    P: AsyncRead + AsyncWrite + Unpin + Send,
    H: AsyncRead + AsyncWrite + Unpin + Send,
{
    let ((peer_reads, peer_writes), (hub_reads, hub_writes)) = (split(peer), split(hub));
    let up = pass_on(peer_reads, hub_writes, silence);
    let down = pass_on(hub_reads, peer_writes, silence);
    tokio::pin!(up, down);
    let _ = tokio::select! {
        _ = &mut up => timeout(LAST_WORDS, down).await,
        _ = &mut down => timeout(LAST_WORDS, up).await,
    };
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    silence: Duration,
) -> io::Result<()> {
    let mut bytes = vec![0; PART_BYTES];
    loop {
        let read = timeout(silence, from.read(&mut bytes)).await??;
        if read == 0 {
            return to.shutdown().await;
        }
        timeout(silence, to.write_all(&bytes[..read])).await??;
        timeout(silence, to.flush()).await??;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn one_address_cannot_take_all_places() {
        let (places, [one, other]) = (Arc::new(Places::default()), [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from));
        let mut of_one: Vec<_> = std::iter::from_fn(|| places.take(one)).collect();
        assert_eq!(of_one.len(), MAX_PER_ADDRESS);
        let of_other: Vec<_> = std::iter::from_fn(|| places.take(other)).collect();
        assert_eq!(of_other.len(), MAX_CONNECTIONS - MAX_PER_ADDRESS);
        of_one.pop();
        assert!(places.take(other).is_none() && places.take(one).is_some());
    }

    #[tokio::test]
    async fn connection_ends_when_either_side_closes_it_or_is_silent() {
        let ends_with = async |closes_hub: bool| {
            let ((peer, mut worker), (hub, mut server)) = (duplex(64), duplex(64));
            let forwarding = tokio::spawn(forward(peer, hub, SILENCE));
            server.write_all(b"last words").await.unwrap();
            let mut heard = [0; 10];
            worker.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"last words");
            // The other side stays open and sends nothing.
            let (closed, _open) = if closes_hub { (server, worker) } else { (worker, server) };
            drop(closed);
            timeout(SILENCE / 2, forwarding).await.expect("it ends").unwrap();
        };
        let is_silent = async {
            let ((peer, _worker), (hub, _server)) = (duplex(64), duplex(64));
            timeout(SILENCE / 2, forward(peer, hub, Duration::from_millis(50))).await.expect("it ends");
        };
        tokio::join!(ends_with(true), ends_with(false), is_silent);
    }
}

//! The newest weights of a hub, as the bytes of messages. They may still be arriving while they are read.

use std::collections::VecDeque;

use rollmesh_core::protocol::{WeightsPiece, message::WeightsNotice};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::net::PIECE_BYTES;

/// Messages that are kept of each kind: complete, arriving, and announced. The newest, and the one before for workers that are
/// still reading it.
const KEPT: usize = 2;
/// Hashes of evicted messages that are kept: workers that ask for one of these get it from a newer notice, or from the hub.
const EVICTED: usize = 1_000;

/// A message with weights that the hub has announced, as far as it has arrived.
#[derive(Debug)]
pub(super) struct Blob {
    notice: WeightsNotice,
    data: Vec<u8>,
    /// Of `data`.
    hasher: Sha256,
}

/// The messages, oldest first, and the hashes of those that were evicted.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    kept: VecDeque<Blob>,
    evicted: VecDeque<[u8; 32]>,
}

/// The messages, which readers watch.
#[derive(Debug, Default)]
pub(super) struct Store {
    blobs: watch::Sender<Blobs>,
}

/// Reads messages while they arrive.
#[derive(Debug)]
pub(super) struct Reader {
    blobs: watch::Receiver<Blobs>,
}

/// The message that the hub is sending, by its hash, and the number of its bytes that have arrived.
pub(super) type Filling = Option<([u8; 32], usize)>;

impl Store {
    pub(super) fn reader(&self) -> Reader {
        Reader { blobs: self.blobs.subscribe() }
    }

    /// Reserves space for a message; a stored one stays. Returns whether it has yet to arrive.
    pub(super) fn announce(&self, notice: WeightsNotice) -> bool {
        self.blobs.send_if_modified(|blobs| {
            let is_new = blobs.find(&notice.hash).is_none();
            if is_new {
                blobs.kept.push_back(Blob { notice, data: Vec::new(), hasher: Sha256::new() });
                blobs.evict();
            }
            is_new
        });
        !self.has(&notice.hash)
    }

    /// Returns whether all of a message has arrived.
    pub(super) fn has(&self, hash: &[u8; 32]) -> bool {
        self.blobs.borrow().find(hash).is_some_and(Blob::is_complete)
    }

    /// Adds a part that the hub has sent; the first part says which weights these are.
    pub(super) fn add_piece(&self, piece: &WeightsPiece, filling: &mut Filling) {
        if let Some(start) = piece.start {
            let blobs = self.blobs.borrow();
            // A hub that was restarted may have announced other weights with this number before.
            let it = blobs.kept.iter().rev().find(|blob| (blob.notice.run, blob.notice.version) == start);
            *filling = it.map(|blob| (blob.notice.hash, 0));
        }
        if let Some((hash, at)) = filling {
            self.add(hash, *at, &piece.data);
            *at += piece.data.len();
        }
    }

    /// Adds what a message does not have yet of a part, of which `at` is the place in the message. A message that does not
    /// have its hash at the end begins again.
    pub(super) fn add(&self, hash: &[u8; 32], at: usize, data: &[u8]) {
        self.blobs.send_if_modified(|blobs| {
            let Some(blob) = blobs.kept.iter_mut().find(|blob| blob.notice.hash == *hash) else { return false };
            let known = blob.data.len().saturating_sub(at);
            let room = (blob.notice.bytes as usize).saturating_sub(blob.data.len());
            let new = data.get(known..).filter(|_| blob.data.len() >= at).unwrap_or_default();
            let new = &new[..new.len().min(room)];
            if new.is_empty() {
                return false;
            }
            blob.data.extend_from_slice(new);
            blob.hasher.update(new);
            if blob.is_complete() && <[u8; 32]>::from(blob.hasher.finalize_reset()) != blob.notice.hash {
                blob.data.clear();
            }
            blobs.evict();
            true
        });
    }
}

impl Blob {
    fn is_complete(&self) -> bool {
        self.data.len() == self.notice.bytes as usize
    }
}

impl Blobs {
    fn find(&self, hash: &[u8; 32]) -> Option<&Blob> {
        self.kept.iter().find(|blob| blob.notice.hash == *hash)
    }

    /// Drops outdated messages. One that is arriving stays until a newer one is complete: otherwise none would ever be, if the
    /// hub announces weights faster than they arrive.
    fn evict(&mut self) {
        let (mut complete, mut arriving, mut announced) = (0, 0, 0);
        // Newest first.
        let mut stays: VecDeque<bool> = VecDeque::new();
        for blob in self.kept.iter().rev() {
            let (count, is_outdated) = match blob.data.len() {
                _ if blob.is_complete() => (&mut complete, false),
                0 => (&mut announced, complete > 0),
                _ => (&mut arriving, complete > 0),
            };
            *count += 1;
            stays.push_front(*count <= KEPT && !is_outdated);
        }
        let Self { kept, evicted } = self;
        kept.retain(|blob| {
            let stays = stays.pop_front().unwrap_or(true);
            evicted.extend((!stays).then_some(blob.notice.hash));
            stays
        });
        evicted.drain(..evicted.len().saturating_sub(EVICTED));
    }
}

impl Reader {
    /// Waits until the message has been announced, and returns its length; `None` if it was dropped for newer ones, or the relay
    /// ends.
    pub(super) async fn length(&mut self, hash: &[u8; 32]) -> Option<u32> {
        let is_known = |blobs: &Blobs| blobs.find(hash).is_some() || blobs.evicted.contains(hash);
        let blobs = self.blobs.wait_for(is_known).await.ok()?;
        blobs.find(hash).map(|blob| blob.notice.bytes)
    }

    /// Waits for bytes of the message from this place on; `None` if it was dropped for newer ones, or the relay ends.
    pub(super) async fn part(&mut self, hash: &[u8; 32], at: usize) -> Option<Vec<u8>> {
        let has_more = |blobs: &Blobs| blobs.find(hash).is_none_or(|blob| blob.data.len() > at);
        let blobs = self.blobs.wait_for(has_more).await.ok()?;
        let data = blobs.find(hash)?.data.get(at..)?;
        Some(data[..data.len().min(PIECE_BYTES)].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const DATA: &[u8; 10] = b"0123456789";

    /// Returns the notice of weights of this version, whose message is `DATA`, or another one that never arrives.
    fn notice(version: u64) -> WeightsNotice {
        let hash = if version == 1 { Sha256::digest(DATA).into() } else { [version as u8; 32] };
        WeightsNotice { run: 1, version, bytes: 10, hash }
    }

    fn piece(start: Option<(u32, u64)>, data: &'static [u8]) -> WeightsPiece {
        WeightsPiece { start, total: 10, data: data.into() }
    }

    #[tokio::test]
    async fn message_is_read_while_it_arrives_from_either_source() {
        let (store, mut filling, one) = (Store::default(), None, notice(1).hash);
        let mut reader = store.reader();
        assert!(store.announce(notice(1)));
        assert_eq!(reader.length(&one).await, Some(10));
        store.add(&one, 0, b"0123");
        assert_eq!(reader.part(&one, 0).await.unwrap(), b"0123");
        assert!(store.announce(notice(1)), "the hub was lost meanwhile, and it is fetched again");
        // The hub sends all of it again, after another relay has failed.
        store.add_piece(&piece(Some((1, 1)), b"012"), &mut filling);
        store.add_piece(&piece(None, b"34567"), &mut filling);
        assert_eq!(reader.part(&one, 4).await.unwrap(), b"4567");
        store.add(&one, 9, b"x");
        store.add_piece(&piece(None, b"89too long"), &mut filling);
        assert_eq!(reader.part(&one, 0).await.unwrap(), DATA);
        assert!(!store.announce(notice(1)), "it is complete");
    }

    #[tokio::test]
    async fn message_that_is_arriving_outlives_newer_ones_that_are_not_complete() {
        let store = Store::default();
        let (mut reader, one) = (store.reader(), notice(1).hash);
        assert!(store.announce(notice(1)));
        store.add(&one, 0, b"01234");
        (2..=9).for_each(|version| _ = store.announce(notice(version)));
        store.add(&one, 5, b"56789");
        assert_eq!(reader.part(&one, 5).await.unwrap(), b"56789");
        assert!(store.has(&one));
        // Those that the hub has skipped are not waited for.
        assert_eq!(reader.part(&notice(7).hash, 0).await, None);
        assert_eq!(reader.length(&notice(7).hash).now_or_never(), Some(None), "it answers immediately");
        assert_eq!(reader.length(&notice(10).hash).now_or_never(), None, "it may yet be announced");
        assert_eq!(reader.length(&notice(9).hash).await, Some(10));
    }

    #[tokio::test]
    async fn complete_messages_evict_older_ones() {
        let store = Store::default();
        let whole = |version| WeightsNotice { version, bytes: 1, hash: Sha256::digest([version as u8]).into(), run: 1 };
        assert!(store.announce(notice(2)));
        store.add(&notice(2).hash, 0, b"half");
        for version in 3..=6 {
            assert!(store.announce(whole(version)));
            store.add(&whole(version).hash, 0, &[version as u8]);
        }
        assert_eq!([3, 4, 5, 6].map(|version| store.has(&whole(version).hash)), [false, false, true, true]);
        assert_eq!(store.reader().part(&notice(2).hash, 4).await, None);
    }

    #[tokio::test]
    async fn message_with_another_hash_is_not_complete() {
        let (store, mut filling, one) = (Store::default(), None, notice(1).hash);
        // Another hub, before its restart, has announced other weights with the same number.
        store.announce(WeightsNotice { version: 1, ..notice(2) });
        store.announce(notice(1));
        store.add(&one, 0, b"0123456780");
        assert!(!store.has(&one) && store.announce(notice(1)));
        store.add_piece(&piece(Some((1, 1)), DATA), &mut filling);
        assert!(store.has(&one));
    }
}

//! The newest weights of a hub, as the bytes of messages. They may still be arriving while they are read.

use std::collections::VecDeque;

use rollmesh_core::protocol::{WeightsPiece, message::WeightsNotice};
use tokio::sync::watch;

use crate::net::PIECE_BYTES;

/// Messages that are kept: the newest, and the one before for workers that are still reading it.
const KEPT: usize = 2;

/// A message with weights that the hub has announced, as far as it has arrived.
#[derive(Debug)]
pub(super) struct Blob {
    notice: WeightsNotice,
    data: Vec<u8>,
}

/// The messages, oldest first.
#[derive(Debug)]
pub(super) struct Store {
    blobs: watch::Sender<VecDeque<Blob>>,
}

/// Reads messages while they arrive.
#[derive(Debug)]
pub(super) struct Reader {
    blobs: watch::Receiver<VecDeque<Blob>>,
}

impl Default for Store {
    fn default() -> Self {
        Self { blobs: watch::Sender::new(VecDeque::new()) }
    }
}

impl Store {
    pub(super) fn reader(&self) -> Reader {
        Reader { blobs: self.blobs.subscribe() }
    }

    /// Makes room for a message; one that is there already stays. Returns whether it is new.
    pub(super) fn announce(&self, notice: WeightsNotice) -> bool {
        self.blobs.send_if_modified(|blobs| {
            if blobs.iter().any(|blob| blob.notice.hash == notice.hash) {
                return false;
            }
            while blobs.len() >= KEPT {
                blobs.pop_front();
            }
            blobs.push_back(Blob { notice, data: Vec::new() });
            true
        })
    }

    /// Adds a part that another relay has sent. `at` is its place in the message.
    pub(super) fn add(&self, hash: &[u8; 32], at: usize, data: &[u8]) {
        self.extend(|blob| blob.notice.hash == *hash, at, data);
    }

    /// Adds a part that the hub has sent, of the weights that `filling` names; the first part says which these are.
    pub(super) fn add_piece(&self, piece: &WeightsPiece, filling: &mut Option<((u32, u64), usize)>) {
        if let Some(start) = piece.start {
            *filling = Some((start, 0));
        }
        if let Some(((run, version), at)) = filling {
            self.extend(|blob| (blob.notice.run, blob.notice.version) == (*run, *version), *at, &piece.data);
            *at += piece.data.len();
        }
    }

    /// Adds what a message does not have yet of a part.
    fn extend(&self, is_it: impl Fn(&Blob) -> bool, at: usize, data: &[u8]) {
        self.blobs.send_if_modified(|blobs| {
            let Some(blob) = blobs.iter_mut().find(|blob| is_it(blob)) else { return false };
            let known = blob.data.len().saturating_sub(at);
            let room = (blob.notice.bytes as usize).saturating_sub(blob.data.len());
            let new = data.get(known..).filter(|_| blob.data.len() >= at).unwrap_or_default();
            let new = &new[..new.len().min(room)];
            blob.data.extend_from_slice(new);
            !new.is_empty()
        });
    }
}

fn find<'a>(blobs: &'a VecDeque<Blob>, hash: &[u8; 32]) -> Option<&'a Blob> {
    blobs.iter().find(|blob| blob.notice.hash == *hash)
}

impl Reader {
    /// Waits until the message has been announced, and returns its length; `None` if the relay ends.
    pub(super) async fn length(&mut self, hash: &[u8; 32]) -> Option<u32> {
        let blobs = self.blobs.wait_for(|blobs| find(blobs, hash).is_some()).await.ok()?;
        find(&blobs, hash).map(|blob| blob.notice.bytes)
    }

    /// Waits for bytes of the message from this place on; `None` if it was dropped for newer ones, or the relay ends.
    pub(super) async fn part(&mut self, hash: &[u8; 32], at: usize) -> Option<Vec<u8>> {
        let has_more = |blobs: &VecDeque<Blob>| find(blobs, hash).is_none_or(|blob| blob.data.len() > at);
        let blobs = self.blobs.wait_for(has_more).await.ok()?;
        let data = find(&blobs, hash)?.data.get(at..)?;
        Some(data[..data.len().min(PIECE_BYTES)].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(version: u64) -> WeightsNotice {
        WeightsNotice { run: 1, version, bytes: 10, hash: [version as u8; 32] }
    }

    fn piece(start: Option<(u32, u64)>, data: &'static [u8]) -> WeightsPiece {
        WeightsPiece { start, total: 10, data: data.into() }
    }

    #[tokio::test]
    async fn message_is_read_while_it_arrives_from_either_source() {
        let (store, mut filling) = (Store::default(), None);
        let mut reader = store.reader();
        assert!(store.announce(notice(1)) && !store.announce(notice(1)));
        assert_eq!(reader.length(&[1; 32]).await, Some(10));
        store.add(&[1; 32], 0, b"0123");
        assert_eq!(reader.part(&[1; 32], 0).await.unwrap(), b"0123");
        // The hub sends all of it again, after another relay has failed.
        store.add_piece(&piece(Some((1, 1)), b"012"), &mut filling);
        store.add_piece(&piece(None, b"34567"), &mut filling);
        assert_eq!(reader.part(&[1; 32], 4).await.unwrap(), b"4567");
        store.add(&[1; 32], 9, b"x");
        store.add_piece(&piece(None, b"89too long"), &mut filling);
        assert_eq!(reader.part(&[1; 32], 0).await.unwrap(), b"0123456789");
    }

    #[tokio::test]
    async fn only_the_newest_messages_are_kept() {
        let store = Store::default();
        let mut reader = store.reader();
        (1..=3).for_each(|version| _ = store.announce(notice(version)));
        assert_eq!(reader.part(&[1; 32], 0).await, None, "who still reads it asks the hub");
        assert_eq!(reader.length(&[3; 32]).await, Some(10));
        let other = piece(Some((2, 3)), b"of another run");
        store.add_piece(&other, &mut None);
        store.add(&[3; 32], 0, b"a");
        assert_eq!(reader.part(&[3; 32], 0).await.unwrap(), b"a");
    }
}

//! Room for messages that come in parts, over all connections. Whoever announces one reserves as much as it will take, and
//! waits if that is not there; so whatever has begun can end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::limits::{MAX_PARTIAL_BYTES, PARTIAL_PATIENCE};

/// All connections share it.
#[derive(Clone, Debug)]
pub(super) struct Room {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: usize,
    /// After this time a message that is not complete gives its room to one that waits.
    patience: Duration,
    state: Mutex<State>,
    /// Something was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    next: u64,
    /// Messages that are not complete, by the order in which they began.
    coming: BTreeMap<u64, Coming>,
}

#[derive(Debug)]
struct Coming {
    since: Instant,
    /// Whoever sends it is to go.
    revoked: Arc<Notify>,
}

/// Room for one message. Free again when dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    room: Room,
    number: u64,
    bytes: usize,
    revoked: Arc<Notify>,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(MAX_PARTIAL_BYTES, PARTIAL_PATIENCE)
    }
}

impl Room {
    fn new(bytes: usize, patience: Duration) -> Self {
        let (state, freed) = (Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { bytes, patience, state, freed }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for a message of so many bytes. While somebody waits, those that have been coming for too long are
    /// given up, the oldest first.
    pub(super) async fn reserve(&self, bytes: usize) -> Reserved {
        // What is larger is refused as soon as it is looked at.
        let bytes = bytes.min(self.shared.bytes);
        loop {
            let freed = self.shared.freed.notified();
            let overdue = match self.try_reserve(bytes) {
                Ok(reserved) => return reserved,
                Err(overdue) => overdue,
            };
            tokio::select! {
                () = freed => {}
                () = async { match overdue {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                } } => {}
            }
        }
    }

    /// Reserves; without room, when to try again if nothing is freed before.
    fn try_reserve(&self, bytes: usize) -> Result<Reserved, Option<Instant>> {
        let mut state = self.state();
        if state.taken + bytes > self.shared.bytes {
            return Err(state.give_up_oldest(self.shared.patience));
        }
        state.taken += bytes;
        let number = state.next;
        state.next += 1;
        let revoked = Arc::new(Notify::new());
        state.coming.insert(number, Coming { since: Instant::now(), revoked: revoked.clone() });
        Ok(Reserved { room: self.clone(), number, bytes, revoked })
    }
}

impl State {
    /// Gives the oldest message up if it is overdue; else says when it will be.
    fn give_up_oldest(&mut self, patience: Duration) -> Option<Instant> {
        let oldest = self.coming.first_entry()?;
        let overdue = oldest.get().since + patience;
        if overdue > Instant::now() {
            return Some(overdue);
        }
        // Its room is free once its connection has gone.
        oldest.remove().revoked.notify_one();
        self.coming.first_key_value().map(|(_, next)| next.since + patience)
    }
}

impl Reserved {
    /// The message is complete: it takes its room until it is dropped, and is not given up any more.
    pub(super) fn complete(&self) {
        self.room.state().coming.remove(&self.number);
    }

    /// Returns when the message is given up.
    pub(super) async fn revoked(&self) {
        self.revoked.notified().await;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.room.state();
        state.taken -= self.bytes;
        state.coming.remove(&self.number);
        drop(state);
        self.room.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Long enough for whatever happens without waiting.
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    async fn must_wait(room: &Room, bytes: usize) {
        assert!(timeout(SHORT, room.reserve(bytes)).await.is_err(), "there is room");
    }

    async fn soon<T>(happens: impl Future<Output = T>) -> T {
        timeout(LONG, happens).await.expect("it happens at once")
    }

    #[tokio::test]
    async fn what_is_free_again_is_for_whoever_waits() {
        let room = Room::new(100, 10 * LONG);
        let (first, second) = (room.reserve(50).await, room.reserve(50).await);
        must_wait(&room, 1).await;
        let (third, ()) = soon(async { tokio::join!(room.reserve(50), async { drop(second) }) }).await;
        must_wait(&room, 1).await;
        drop((first, third));
        // More than there ever is can wait for all of it only.
        assert_eq!(soon(room.reserve(usize::MAX)).await.bytes, 100);
    }

    #[tokio::test]
    async fn what_does_not_come_to_its_end_is_given_up_if_somebody_waits() {
        let room = Room::new(100, SHORT);
        let (oldest, done) = (room.reserve(50).await, room.reserve(50).await);
        done.complete();
        assert!(timeout(2 * SHORT, oldest.revoked()).await.is_err(), "nobody waits");
        let gives_up = async move {
            oldest.revoked().await;
            drop(oldest);
        };
        let (late, ()) = soon(async { tokio::join!(room.reserve(1), gives_up) }).await;
        must_wait(&room, 50).await;
        assert!(timeout(2 * SHORT, done.revoked()).await.is_err(), "it is complete");
        drop(late);
    }
}

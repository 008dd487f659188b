//! The memory budget for messages that come in parts, over all connections. A connection reserves the size that a message
//! announces and waits if the budget is exhausted, so that every message that has begun can be completed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::limits::{MAX_PARTIAL_BYTES, PARTIAL_PATIENCE, PARTIAL_RATE};

/// The budget, shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct MemoryBudget {
    shared: Arc<SharedBudget>,
}

#[derive(Debug)]
struct SharedBudget {
    bytes: usize,
    /// A message is overdue, and may be dropped in favour of a waiting one, after this long without any more of it, or if it
    /// has been slower than [`PARTIAL_RATE`] for longer than that.
    patience: Duration,
    state: Mutex<BudgetState>,
    /// Notified when bytes are released.
    freed: Notify,
}

impl SharedBudget {
    fn state(&self) -> MutexGuard<'_, BudgetState> {
        // No code panics while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct BudgetState {
    taken: usize,
    next: u64,
    /// Incomplete messages, in the order in which they began.
    coming: BTreeMap<u64, Coming>,
    /// Bytes of dropped messages whose connections have not closed yet.
    leaving: BTreeMap<u64, usize>,
    /// Waiting callers, in the order of their calls.
    waiting: BTreeSet<u64>,
}

/// The turn of a caller, until this is dropped.
struct BudgetTurn<'a> {
    shared: &'a SharedBudget,
    number: u64,
}

impl<'a> BudgetTurn<'a> {
    fn new(budget: &'a MemoryBudget) -> Self {
        let mut state = budget.state();
        let number = state.number();
        state.waiting.insert(number);
        Self { shared: &budget.shared, number }
    }

    fn has_come(&self) -> bool {
        self.shared.state().waiting.first() == Some(&self.number)
    }
}

impl Drop for BudgetTurn<'_> {
    fn drop(&mut self) {
        self.shared.state().waiting.remove(&self.number);
        self.shared.freed.notify_waiters();
    }
}

#[derive(Debug)]
struct Coming {
    since: Instant,
    /// The time at which the latest part arrived.
    latest: Instant,
    /// Bytes reserved for the message, and bytes received.
    bytes: usize,
    come: usize,
    /// Notified when the message is dropped: its connection has to close.
    revoked: Arc<Notify>,
}

/// The reservation for one message. Dropping it releases the bytes.
#[derive(Debug)]
pub(super) struct Reserved {
    budget: MemoryBudget,
    number: u64,
    bytes: usize,
    revoked: Arc<Notify>,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MAX_PARTIAL_BYTES, PARTIAL_PATIENCE)
    }
}

impl MemoryBudget {
    pub(super) fn new(bytes: usize, patience: Duration) -> Self {
        let (state, freed) = (Mutex::default(), Notify::new());
        Self { shared: Arc::new(SharedBudget { bytes, patience, state, freed }) }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.shared.state()
    }

    /// Waits for a reservation of this many bytes, or for three quarters of the budget if that is less: next to a very large
    /// message, which may take minutes, there is room for those of usual sizes. While a caller waits, as many overdue messages
    /// are dropped as needed. Callers get reservations in the order of their calls, so that a large message waits no
    /// longer than a small one.
    pub(super) async fn reserve(&self, bytes: usize) -> Reserved {
        let bytes = bytes.min(self.shared.bytes / 4 * 3);
        let turn = BudgetTurn::new(self);
        loop {
            let freed = self.shared.freed.notified();
            if !turn.has_come() {
                freed.await;
                continue;
            }
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

    /// Tries to reserve; on failure returns when to retry if no bytes are released before.
    fn try_reserve(&self, bytes: usize) -> Result<Reserved, Option<Instant>> {
        let mut state = self.state();
        if state.taken + bytes > self.shared.bytes {
            let wanted = state.taken + bytes - self.shared.bytes;
            return Err(state.give_up(wanted, self.shared.patience));
        }
        state.taken += bytes;
        let number = state.number();
        let revoked = Arc::new(Notify::new());
        let since = Instant::now();
        state.coming.insert(number, Coming { since, latest: since, bytes, come: 0, revoked: revoked.clone() });
        Ok(Reserved { budget: self.clone(), number, bytes, revoked })
    }
}

impl Coming {
    fn due(&self, patience: Duration) -> Instant {
        let at_rate = Duration::from_secs_f64(self.come as f64 / PARTIAL_RATE);
        self.latest.min(self.since + at_rate) + patience
    }
}

impl BudgetState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Drops overdue messages until `wanted` more bytes will be released; if these are too few, returns when the next
    /// message will be overdue.
    fn give_up(&mut self, wanted: usize, patience: Duration) -> Option<Instant> {
        while self.leaving.values().sum::<usize>() < wanted {
            let due = |(&number, coming): (&u64, &Coming)| (coming.due(patience), number);
            let (due, number) = self.coming.iter().map(due).min()?;
            if due > Instant::now() {
                return Some(due);
            }
            if let Some(overdue) = self.coming.remove(&number) {
                // Its bytes are released once its connection has closed.
                self.leaving.insert(number, overdue.bytes);
                overdue.revoked.notify_one();
            }
        }
        None
    }
}

impl Reserved {
    /// Records that this many more bytes of the message have arrived.
    pub(super) fn add(&self, bytes: usize) {
        if let Some(coming) = self.budget.state().coming.get_mut(&self.number) {
            coming.come += bytes;
            coming.latest = Instant::now();
        }
    }

    /// Marks the message as complete: it keeps its reservation until it is dropped, and is never overdue.
    pub(super) fn complete(&self) {
        self.budget.state().coming.remove(&self.number);
    }

    /// Returns when the message is dropped in favour of another one.
    pub(super) async fn revoked(&self) {
        self.revoked.notified().await;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.taken -= self.bytes;
        state.coming.remove(&self.number);
        state.leaving.remove(&self.number);
        drop(state);
        self.budget.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Long enough for anything that does not have to wait.
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    async fn must_wait(budget: &MemoryBudget, bytes: usize) {
        assert!(timeout(SHORT, budget.reserve(bytes)).await.is_err(), "there is budget");
    }

    async fn soon<T>(happens: impl Future<Output = T>) -> T {
        timeout(LONG, happens).await.expect("it happens immediately")
    }

    #[tokio::test]
    async fn freed_memory_is_granted_to_waiting_peers() {
        let budget = MemoryBudget::new(100, 10 * LONG);
        let (first, second) = (budget.reserve(50).await, budget.reserve(50).await);
        must_wait(&budget, 1).await;
        let (third, ()) = soon(async { tokio::join!(budget.reserve(50), async { drop(second) }) }).await;
        must_wait(&budget, 1).await;
        drop((first, third));
        // A message larger than the budget does not block others.
        let large = soon(budget.reserve(usize::MAX)).await;
        assert_eq!(large.bytes, 75);
        must_wait(&budget, usize::MAX).await;
        soon(budget.reserve(25)).await;
    }

    #[tokio::test]
    async fn large_message_does_not_wait_for_later_ones() {
        let budget = MemoryBudget::new(100, 10 * LONG);
        let first = budget.reserve(50).await;
        let mut large = Box::pin(budget.reserve(usize::MAX));
        assert!(timeout(SHORT, &mut large).await.is_err(), "the budget is in use");
        let mut later = Box::pin(budget.reserve(10));
        assert!(timeout(SHORT, &mut later).await.is_err(), "it is not its turn");
        drop(first);
        drop(soon(&mut large).await);
        drop(large);
        soon(later).await;
        // A caller that does not wait any more delays no other.
        let _first = budget.reserve(50).await;
        must_wait(&budget, usize::MAX).await;
        soon(budget.reserve(50)).await;
    }

    #[tokio::test]
    async fn stalled_partial_message_is_dropped_if_others_wait() {
        let budget = MemoryBudget::new(100, SHORT);
        let (oldest, done) = (budget.reserve(50).await, budget.reserve(50).await);
        done.complete();
        assert!(timeout(2 * SHORT, oldest.revoked()).await.is_err(), "no peer waits");
        let gives_up = async move {
            oldest.revoked().await;
            drop(oldest);
        };
        let (late, ()) = soon(async { tokio::join!(budget.reserve(1), gives_up) }).await;
        must_wait(&budget, 50).await;
        assert!(timeout(2 * SHORT, done.revoked()).await.is_err(), "it is complete");
        drop(late);
    }

    #[tokio::test]
    async fn no_more_are_given_up_than_it_takes() {
        let budget = MemoryBudget::new(90, SHORT);
        let mut coming = Vec::new();
        for _ in 0..3 {
            coming.push(budget.reserve(30).await);
        }
        tokio::time::sleep(2 * SHORT).await;
        // Waiting callers retry whenever something changes.
        must_wait(&budget, 20).await;
        let looks = [budget.try_reserve(20), budget.try_reserve(30)];
        assert!(looks.iter().all(Result::is_err));
        let revoked = |of: &MemoryBudget| of.state().leaving.len();
        assert_eq!((revoked(&budget), budget.state().coming.len()), (1, 2));
        must_wait(&budget, 31).await;
        assert_eq!(revoked(&budget), 2);
        coming.clear();
        assert_eq!((revoked(&budget), budget.state().taken), (0, 0));
    }

    #[tokio::test]
    async fn deadline_of_a_partial_message_moves_with_its_progress() {
        let (patience, second) = (Duration::from_secs(2), Duration::from_secs(1));
        let since = Instant::now();
        let coming = |latest, come| Coming { since, latest: since + latest, bytes: 0, come, revoked: Arc::default() };
        let due = |coming: &Coming| coming.due(patience) - since;
        assert_eq!(due(&coming(Duration::ZERO, 0)), patience);
        // Exactly at the required rate; faster; then stalled; then too slow.
        let rate = PARTIAL_RATE as usize;
        assert_eq!(due(&coming(5 * second, 5 * rate)), 7 * second);
        assert_eq!(due(&coming(second, 5 * rate)), 3 * second);
        assert_eq!(due(&coming(60 * second, rate)), 3 * second);
    }
}

//! Admission control for unauthenticated peers: few connections, for a short time, and none at the expense of others.
//!
//! A connection that has not sent anything waits outside and costs little more than its file descriptor. One that has sent
//! something takes a place. When all places are taken, the connection that has been silent for longest loses its place to
//! the next one: among the waiting addresses with the fewest places, the latest arrival. Older ones are close to their
//! timeout anyway, and a crowd that merely waits delays no other peer. Failures are charged to the address and to all
//! unauthenticated peers together; beyond some credit, connections wait outside until time has paid off the debt.

mod debt;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

use self::debt::{Debt, Failing, source};
use super::limits::{
    FAILURE_DELAY, FAILURE_WINDOW, FAILURES_PER_S, FAILURES_PER_S_AND_ADDRESS, FREE_FAILURES, HANDSHAKE_DEADLINE,
    MAX_PENDING, MAX_PENDING_PER_ADDRESS, MAX_WAITING, PENDING_GRACE, REQUEST_GRACE,
};

/// Maximum number of addresses whose failures are recorded.
const MAX_FAILING: usize = 1024;

/// Admission control for the hub's port.
#[derive(Default)]
pub(super) struct HandshakeLimiter {
    state: Mutex<LimiterState>,
}

#[derive(Default)]
struct LimiterState {
    next: u64,
    /// By number, so that the oldest comes first.
    places: BTreeMap<u64, PeerPlace>,
    /// Connections without a place, the oldest first.
    outside: BTreeMap<u64, Outside>,
    failing: BTreeMap<IpAddr, Failing>,
    /// Failures of all unauthenticated peers together.
    debt: Debt,
}

struct PeerPlace {
    from: IpAddr,
    /// The time at which the connection last sent something.
    heard: Instant,
    /// True if it sent a request and waits for the answer.
    has_asked: bool,
    lost: Arc<Notify>,
}

impl PeerPlace {
    /// Returns when another connection may take this place.
    fn free_from(&self) -> Instant {
        self.heard + if self.has_asked { REQUEST_GRACE } else { PENDING_GRACE }
    }
}

struct Outside {
    from: IpAddr,
    has_spoken: bool,
    /// Wakes the connection, to try again or because it was rejected.
    wake: Arc<Notify>,
}

/// The place of a connection that has not authenticated yet. Dropping it frees the place.
pub(super) struct Pass {
    limiter: Arc<HandshakeLimiter>,
    number: u64,
    lost: Arc<Notify>,
    pub(super) deadline: Instant,
}

impl Pass {
    /// Returns when another connection took the place.
    pub(super) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost = self.lost.clone();
        async move { lost.notified().await }
    }

    /// Records that the connection has sent something; it has to send more soon.
    pub(super) fn record_activity(&self) {
        self.record(false);
    }

    /// Records that the connection has sent a request: the time until the answer is the hub's.
    pub(super) fn ask(&self) {
        self.record(true);
    }

    fn record(&self, has_asked: bool) {
        if let Some(place) = self.limiter.state().places.get_mut(&self.number) {
            (place.heard, place.has_asked) = (Instant::now(), has_asked);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        state.places.remove(&self.number);
        state.wake_next(None);
    }
}

/// A connection waiting outside; dropping it removes the entry.
struct WaitingConnection<'a> {
    limiter: &'a HandshakeLimiter,
    number: u64,
    from: IpAddr,
    wake: Arc<Notify>,
}

impl Drop for WaitingConnection<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        state.outside.remove(&self.number);
        state.wake_next(Some(self.from));
    }
}

/// Outcome of an attempt to enter.
enum EntryOutcome {
    In(Pass),
    /// The connection was rejected: its waiting place was needed.
    SentAway,
    /// Others come first; the connection is woken when a place is free.
    Later,
    At(Instant),
}

impl LimiterState {
    /// Returns, per address, the latest waiting connection that has sent something, with its number.
    fn last_of_addresses(&self) -> impl Iterator<Item = (u64, &Outside)> {
        let mut seen = BTreeSet::new();
        let spoken = self.outside.iter().rev().filter(|(_, outside)| outside.has_spoken);
        spoken.filter(move |(_, outside)| seen.insert(outside.from)).map(|(&number, outside)| (number, outside))
    }

    /// Returns the connection that is next, among addresses that are not delayed by failures.
    fn first(&self, now: Instant) -> Option<u64> {
        let mut places = BTreeMap::<IpAddr, usize>::new();
        self.places.values().for_each(|place| *places.entry(place.from).or_default() += 1);
        let may = |outside: &Outside| self.bearable_from(outside.from, now) <= now;
        let waiting = self.last_of_addresses().filter(|(_, outside)| may(outside));
        // Among equals, `min_by_key` returns the first, and this iterator yields the latest first.
        waiting.min_by_key(|(_, outside)| places.get(&outside.from).copied().unwrap_or(0)).map(|(number, _)| number)
    }

    fn bearable_from(&self, from: IpAddr, now: Instant) -> Instant {
        self.failing.get(&from).map_or(now, |failing| failing.debt.bearable_from(now))
    }

    /// Wakes the connections that may be next after one has left (from `from`, if it was waiting outside).
    fn wake_next(&mut self, from: Option<IpAddr>) {
        if self.outside.is_empty() {
            return;
        }
        let of_address = self.last_of_addresses().find(|(_, outside)| Some(outside.from) == from);
        let first = self.first(Instant::now()).and_then(|number| self.outside.get(&number));
        of_address.map(|(_, outside)| outside).into_iter().chain(first).for_each(|outside| outside.wake.notify_one());
    }
}

impl HandshakeLimiter {
    fn state(&self) -> MutexGuard<'_, LimiterState> {
        // No code panics while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a connection once it `speaks`, `None` if it would have to wait too long.
    pub(super) async fn enter(self: &Arc<Self>, from: IpAddr, speaks: impl Future<Output = ()>) -> Option<Pass> {
        let patience = Instant::now() + HANDSHAKE_DEADLINE;
        let waiting = self.wait(source(from));
        let enter = async {
            tokio::select! {
                () = speaks => {}
                () = waiting.wake.notified() => return None,
            }
            if let Some(outside) = self.state().outside.get_mut(&waiting.number) {
                outside.has_spoken = true;
            }
            loop {
                match self.try_enter(waiting.number, Instant::now()) {
                    EntryOutcome::In(pass) => return Some(pass),
                    EntryOutcome::SentAway => return None,
                    EntryOutcome::Later => waiting.wake.notified().await,
                    EntryOutcome::At(time) => tokio::select! {
                        () = waiting.wake.notified() => {}
                        () = sleep_until(time) => {}
                    },
                }
            }
        };
        timeout_at(patience, enter).await.ok().flatten()
    }

    /// Registers a waiting connection. Above the limit, the oldest one is rejected.
    fn wait(&self, from: IpAddr) -> WaitingConnection<'_> {
        let mut state = self.state();
        if state.outside.len() >= MAX_WAITING
            && let Some((_, oldest)) = state.outside.pop_first()
        {
            oldest.wake.notify_one();
        }
        let (number, wake) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.outside.insert(number, Outside { from, has_spoken: false, wake: wake.clone() });
        WaitingConnection { limiter: self, number, from, wake }
    }

    fn try_enter(self: &Arc<Self>, number: u64, now: Instant) -> EntryOutcome {
        let mut state = self.state();
        let Some(&Outside { from, .. }) = state.outside.get(&number) else { return EntryOutcome::SentAway };
        if state.first(now) != Some(number) {
            let is_last = state.last_of_addresses().any(|(last, _)| last == number);
            let bearable = state.bearable_from(from, now);
            return if is_last && bearable > now { EntryOutcome::At(bearable) } else { EntryOutcome::Later };
        }
        let bearable = state.debt.bearable_from(now);
        if bearable > now {
            return EntryOutcome::At(bearable);
        }
        let of_address = |address: IpAddr| state.places.values().filter(move |place| place.from == address).count();
        // If all places are taken, the address with the most places gives one up.
        let crowded = if of_address(from) >= MAX_PENDING_PER_ADDRESS {
            Some(from)
        } else if state.places.len() >= MAX_PENDING {
            state.places.values().map(|place| place.from).max_by_key(|address| of_address(*address))
        } else {
            None
        };
        if let Some(crowded) = crowded {
            let of_crowded = state.places.iter().filter(|(_, place)| place.from == crowded);
            let first = of_crowded.map(|(&number, place)| (place.free_from(), number)).min();
            match first {
                Some((free_from, number)) if free_from <= now => {
                    if let Some(place) = state.places.remove(&number) {
                        place.lost.notify_one();
                    }
                }
                Some((free_from, _)) => return EntryOutcome::At(free_from),
                None => return EntryOutcome::At(now + PENDING_GRACE),
            }
        }
        let lost = Arc::new(Notify::new());
        state.outside.remove(&number);
        state.places.insert(number, PeerPlace { from, heard: now, has_asked: false, lost: lost.clone() });
        EntryOutcome::In(Pass { limiter: self.clone(), number, lost, deadline: now + HANDSHAKE_DEADLINE })
    }

    /// Records that a peer broke the rules or was refused. Returns the delay of the answer.
    pub(super) fn fail(&self, from: IpAddr) -> Duration {
        self.fail_at(source(from), Instant::now())
    }

    fn fail_at(&self, from: IpAddr, now: Instant) -> Duration {
        let mut state = self.state();
        state.debt.add(now, FAILURES_PER_S);
        if state.failing.len() >= MAX_FAILING && !state.failing.contains_key(&from) {
            state.failing.retain(|_, failing| failing.times.back().is_some_and(|time| *time + FAILURE_WINDOW > now));
            if state.failing.len() >= MAX_FAILING {
                // This many failing addresses at the same time are a single attack.
                return FAILURE_DELAY;
            }
        }
        let Failing { times, debt } = state.failing.entry(from).or_default();
        debt.add(now, FAILURES_PER_S_AND_ADDRESS);
        while times.front().is_some_and(|time| *time + FAILURE_WINDOW <= now) {
            times.pop_front();
        }
        if times.len() < FREE_FAILURES {
            times.push_back(now);
            return Duration::ZERO;
        }
        FAILURE_DELAY
    }
}

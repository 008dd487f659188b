//! Who may wait for being let in: few connections, for a short time, and nobody at the cost of the others.
//!
//! A connection that has said nothing yet waits outside and costs little more than its file. One that has said something
//! takes a place. Where all are taken, the one that has been silent for longest gives its own to whoever comes next: of
//! those outside whose address has the fewest places, the one that came last. Old ones are about to give up in any case,
//! and a crowd that only waits delays nobody. What goes wrong is charged to its address and to all strangers together;
//! beyond some credit connections wait outside until that is paid for with time.

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

/// The most addresses whose failures are remembered.
const MAX_FAILING: usize = 1024;

/// The door to the hub.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By number, so the longest-standing one comes first.
    places: BTreeMap<u64, Place>,
    /// Those without a place, the oldest first.
    outside: BTreeMap<u64, Outside>,
    failing: BTreeMap<IpAddr, Failing>,
    /// What all strangers have got wrong.
    debt: Debt,
}

struct Place {
    from: IpAddr,
    /// When it was last heard of.
    heard: Instant,
    /// It has asked for something and waits for the answer.
    has_asked: bool,
    lost: Arc<Notify>,
}

impl Place {
    /// When somebody else may have it.
    fn free_from(&self) -> Instant {
        self.heard + if self.has_asked { REQUEST_GRACE } else { PENDING_GRACE }
    }
}

struct Outside {
    from: IpAddr,
    has_spoken: bool,
    /// It is to look whether its turn has come, or it was sent away.
    wake: Arc<Notify>,
}

/// A place of a connection that has not shown a token yet. Dropping it frees the place.
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    lost: Arc<Notify>,
    pub(super) deadline: Instant,
}

impl Pass {
    /// Returns when the place was given to somebody else.
    pub(super) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost = self.lost.clone();
        async move { lost.notified().await }
    }

    /// It has said something, and has to go on soon.
    pub(super) fn go_on(&self) {
        self.hear(false);
    }

    /// It has asked for something: whatever takes time now is the hub's affair.
    pub(super) fn ask(&self) {
        self.hear(true);
    }

    fn hear(&self, has_asked: bool) {
        if let Some(place) = self.gate.state().places.get_mut(&self.number) {
            (place.heard, place.has_asked) = (Instant::now(), has_asked);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.places.remove(&self.number);
        state.wake_next(None);
    }
}

/// Waits outside, however that ends.
struct Waiting<'a> {
    gate: &'a Gate,
    number: u64,
    from: IpAddr,
    wake: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.outside.remove(&self.number);
        state.wake_next(Some(self.from));
    }
}

/// What a look at the gate brings.
enum Turn {
    In(Pass),
    /// The place outside was needed.
    SentAway,
    /// Others come first; it is told when they are gone.
    Later,
    At(Instant),
}

impl State {
    /// Of those outside who have spoken, the last of every address, with its number.
    fn last_of_addresses(&self) -> impl Iterator<Item = (u64, &Outside)> {
        let mut seen = BTreeSet::new();
        let spoken = self.outside.iter().rev().filter(|(_, outside)| outside.has_spoken);
        spoken.filter(move |(_, outside)| seen.insert(outside.from)).map(|(&number, outside)| (number, outside))
    }

    /// Whose turn it is, if failures of its address are no reason to wait.
    fn first(&self, now: Instant) -> Option<u64> {
        let mut places = BTreeMap::<IpAddr, usize>::new();
        self.places.values().for_each(|place| *places.entry(place.from).or_default() += 1);
        let may = |outside: &Outside| self.bearable_from(outside.from, now) <= now;
        let waiting = self.last_of_addresses().filter(|(_, outside)| may(outside));
        // Of equal ones the last came first in this order.
        waiting.min_by_key(|(_, outside)| places.get(&outside.from).copied().unwrap_or(0)).map(|(number, _)| number)
    }

    fn bearable_from(&self, from: IpAddr, now: Instant) -> Instant {
        self.failing.get(&from).map_or(now, |failing| failing.debt.bearable_from(now))
    }

    /// Tells those to look again whose turn it may be: somebody has gone, from this address if from outside.
    fn wake_next(&mut self, from: Option<IpAddr>) {
        if self.outside.is_empty() {
            return;
        }
        let of_address = self.last_of_addresses().find(|(_, outside)| Some(outside.from) == from);
        let first = self.first(Instant::now()).and_then(|number| self.outside.get(&number));
        of_address.map(|(_, outside)| outside).into_iter().chain(first).for_each(|outside| outside.wake.notify_one());
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection once it `speaks`; none if it would wait for too long.
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
                    Turn::In(pass) => return Some(pass),
                    Turn::SentAway => return None,
                    Turn::Later => waiting.wake.notified().await,
                    Turn::At(time) => tokio::select! {
                        () = waiting.wake.notified() => {}
                        () = sleep_until(time) => {}
                    },
                }
            }
        };
        timeout_at(patience, enter).await.ok().flatten()
    }

    /// Somebody came. Where too many wait, the oldest one has to go.
    fn wait(&self, from: IpAddr) -> Waiting<'_> {
        let mut state = self.state();
        if state.outside.len() >= MAX_WAITING
            && let Some((_, oldest)) = state.outside.pop_first()
        {
            oldest.wake.notify_one();
        }
        let (number, wake) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.outside.insert(number, Outside { from, has_spoken: false, wake: wake.clone() });
        Waiting { gate: self, number, from, wake }
    }

    fn try_enter(self: &Arc<Self>, number: u64, now: Instant) -> Turn {
        let mut state = self.state();
        let Some(&Outside { from, .. }) = state.outside.get(&number) else { return Turn::SentAway };
        if state.first(now) != Some(number) {
            let is_last = state.last_of_addresses().any(|(last, _)| last == number);
            let bearable = state.bearable_from(from, now);
            return if is_last && bearable > now { Turn::At(bearable) } else { Turn::Later };
        }
        let bearable = state.debt.bearable_from(now);
        if bearable > now {
            return Turn::At(bearable);
        }
        let of_address = |address: IpAddr| state.places.values().filter(move |place| place.from == address).count();
        // Where all places are taken, the address with most of them gives one away.
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
                Some((free_from, _)) => return Turn::At(free_from),
                None => return Turn::At(now + PENDING_GRACE),
            }
        }
        let lost = Arc::new(Notify::new());
        state.outside.remove(&number);
        state.places.insert(number, Place { from, heard: now, has_asked: false, lost: lost.clone() });
        Turn::In(Pass { gate: self.clone(), number, lost, deadline: now + HANDSHAKE_DEADLINE })
    }

    /// Somebody broke the rules or was refused; how long to wait before telling.
    pub(super) fn fail(&self, from: IpAddr) -> Duration {
        self.fail_at(source(from), Instant::now())
    }

    fn fail_at(&self, from: IpAddr, now: Instant) -> Duration {
        let mut state = self.state();
        state.debt.add(now, FAILURES_PER_S);
        if state.failing.len() >= MAX_FAILING && !state.failing.contains_key(&from) {
            state.failing.retain(|_, failing| failing.times.back().is_some_and(|time| *time + FAILURE_WINDOW > now));
            if state.failing.len() >= MAX_FAILING {
                // So many at once are one and the same attack.
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

//! Who may wait for being let in: few connections, for a short time, and nobody at the cost of the others.
//!
//! Strangers take places. Where they take all, the one that has been silent for longest gives its place to whoever
//! comes, so that silent connections cannot keep out those that have something to say.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::limits::{
    FAILURE_DELAY, FAILURE_WINDOW, FREE_FAILURES, HANDSHAKE_DEADLINE, MAX_PENDING, MAX_PENDING_PER_ADDRESS,
    MAX_WAITING, PENDING_GRACE, REQUEST_GRACE,
};

/// The most addresses whose failures are remembered.
const MAX_FAILING: usize = 1024;

/// The door to the hub.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By number, so the longest-standing one comes first.
    places: BTreeMap<u64, Place>,
    waiting: usize,
    failures: BTreeMap<IpAddr, VecDeque<Instant>>,
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
        self.gate.state().places.remove(&self.number);
        self.gate.freed.notify_waiters();
    }
}

/// Counts whoever waits, however that ends.
struct Waiting<'a>(&'a Gate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection; none if it would wait for too long.
    pub(super) async fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Pass> {
        let (from, came) = (source(from), Instant::now());
        {
            let mut state = self.state();
            if state.waiting == MAX_WAITING {
                return None;
            }
            state.waiting += 1;
        }
        let _waiting = Waiting(self);
        loop {
            // Listens before it looks, so that nothing is missed in between.
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let now = Instant::now();
            let look_again = match self.try_enter(from, now) {
                Ok(pass) => return Some(pass),
                Err(look_again) => look_again,
            };
            if now >= came + HANDSHAKE_DEADLINE {
                return None;
            }
            tokio::select! {
                () = freed => {}
                () = sleep_until(look_again.min(came + HANDSHAKE_DEADLINE)) => {}
            }
        }
    }

    /// A place, or when to look again.
    fn try_enter(self: &Arc<Self>, from: IpAddr, now: Instant) -> Result<Pass, Instant> {
        let mut state = self.state();
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
                Some((free_from, _)) => return Err(free_from),
                None => return Err(now + PENDING_GRACE),
            }
        }
        let number = state.next;
        state.next += 1;
        let lost = Arc::new(Notify::new());
        state.places.insert(number, Place { from, heard: now, has_asked: false, lost: lost.clone() });
        Ok(Pass { gate: self.clone(), number, lost, deadline: now + HANDSHAKE_DEADLINE })
    }

    /// Somebody was refused; how long to wait before telling.
    pub(super) fn fail(&self, from: IpAddr) -> Duration {
        self.fail_at(source(from), Instant::now())
    }

    fn fail_at(&self, from: IpAddr, now: Instant) -> Duration {
        let mut state = self.state();
        if state.failures.len() >= MAX_FAILING && !state.failures.contains_key(&from) {
            state.failures.retain(|_, times| times.back().is_some_and(|time| *time + FAILURE_WINDOW > now));
            if state.failures.len() >= MAX_FAILING {
                // So many at once are one and the same attack.
                return FAILURE_DELAY;
            }
        }
        let times = state.failures.entry(from).or_default();
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

/// What counts as one address: of IPv6 a network, since everybody has as many addresses of one as they like.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_longest_silent_one_of_the_most_crowded_address_goes_first() {
        let (gate, now) = (Arc::new(Gate::default()), Instant::now());
        let mut passes: Vec<Pass> = (0..MAX_PENDING_PER_ADDRESS).map(|_| gate.try_enter(ip(1), now).unwrap()).collect();
        assert_eq!(gate.try_enter(ip(1), now).err(), Some(now + PENDING_GRACE), "they are not silent yet");
        passes[0].ask();
        passes.push(gate.try_enter(ip(1), now + PENDING_GRACE).unwrap());
        assert!(gate.state().places.contains_key(&0) && !gate.state().places.contains_key(&1));
        drop(passes.remove(1));
        assert_eq!(gate.state().places.len(), MAX_PENDING_PER_ADDRESS, "a lost place is not freed twice");

        for other in 2..=4 {
            passes.extend((0..MAX_PENDING_PER_ADDRESS).map(|_| gate.try_enter(ip(other), now).unwrap()));
        }
        assert_eq!(gate.state().places.len(), MAX_PENDING);
        assert!(gate.try_enter(ip(5), now).is_err());
        passes.push(gate.try_enter(ip(5), now + PENDING_GRACE).unwrap());
        assert_eq!(gate.state().places.len(), MAX_PENDING);
        drop(passes);
        assert!(gate.state().places.is_empty());
    }

    #[test]
    fn more_failures_than_a_person_makes_are_answered_late() {
        let (gate, now) = (Gate::default(), Instant::now());
        for _ in 0..FREE_FAILURES {
            assert_eq!(gate.fail_at(ip(1), now), Duration::ZERO);
        }
        assert_eq!(gate.fail_at(ip(1), now), FAILURE_DELAY);
        assert_eq!(gate.fail_at(ip(2), now), Duration::ZERO, "others have nothing to do with it");
        assert_eq!(gate.fail_at(ip(1), now + FAILURE_WINDOW), Duration::ZERO);
    }

    #[test]
    fn many_failing_addresses_take_no_more_memory() {
        let (gate, now) = (Gate::default(), Instant::now());
        for i in 0..2 * MAX_FAILING as u32 {
            gate.fail_at(IpAddr::from(i.to_be_bytes()), now);
        }
        assert_eq!(gate.state().failures.len(), MAX_FAILING);
        assert_eq!(gate.fail_at(ip(1), now), FAILURE_DELAY);
        assert_eq!(gate.fail_at(ip(1), now + FAILURE_WINDOW), Duration::ZERO);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), ip(1));
        assert_eq!(of("::1"), "::1".parse::<IpAddr>().unwrap());
    }
}

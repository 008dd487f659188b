//! Who may wait for being let in: few connections, for a short time, and nobody at the cost of the others.
//!
//! A connection that has said nothing yet waits outside and costs little more than its file. One that has said something
//! takes a place. Where all are taken, the one that has been silent for longest gives its own to whoever comes next: of
//! those outside whose address has the fewest places, the one that came last. Old ones are about to give up in any case,
//! and a crowd that only waits delays nobody. What goes wrong is charged to its address and to all strangers together;
//! beyond some credit connections wait outside until that is paid for with time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

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

/// What an address has got wrong lately.
#[derive(Default)]
struct Failing {
    times: VecDeque<Instant>,
    debt: Debt,
}

/// Failures, each of which takes its share of a second to be paid for.
#[derive(Default)]
struct Debt(Option<Instant>);

impl Debt {
    fn add(&mut self, now: Instant, per_s: u32) {
        self.0 = Some(self.0.map_or(now, |paid| paid.max(now)) + Duration::from_secs(1) / per_s);
    }

    /// When no more than a second of it is left.
    fn bearable_from(&self, now: Instant) -> Instant {
        self.0.and_then(|paid| paid.checked_sub(Duration::from_secs(1))).map_or(now, |bearable| bearable.max(now))
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
    use std::task::Poll;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Somebody comes and speaks.
    fn come(gate: &Gate, from: IpAddr) -> Waiting<'_> {
        let waiting = gate.wait(from);
        gate.state().outside.get_mut(&waiting.number).expect("it waits").has_spoken = true;
        waiting
    }

    /// Whether somebody who comes and speaks now gets in, or when to look again.
    fn enter(gate: &Arc<Gate>, from: IpAddr, now: Instant) -> Result<Pass, Option<Instant>> {
        let waiting = come(gate, from);
        match gate.try_enter(waiting.number, now) {
            Turn::In(pass) => Ok(pass),
            Turn::At(time) => Err(Some(time)),
            Turn::Later | Turn::SentAway => Err(None),
        }
    }

    fn when(result: Result<Pass, Option<Instant>>) -> Option<Instant> {
        result.err().flatten()
    }

    #[test]
    fn the_longest_silent_one_of_the_most_crowded_address_goes_first() {
        let (gate, now) = (Arc::new(Gate::default()), Instant::now());
        let room = |from: u8, at: Instant| enter(&gate, ip(from), at).unwrap();
        let mut passes: Vec<Pass> = (0..MAX_PENDING_PER_ADDRESS).map(|_| room(1, now)).collect();
        assert_eq!(when(enter(&gate, ip(1), now)), Some(now + PENDING_GRACE), "they are not silent yet");
        let numbers: Vec<u64> = passes.iter().map(|pass| pass.number).collect();
        passes[0].ask();
        // The second one's place.
        passes.push(room(1, now + PENDING_GRACE));
        let has = |number: usize| gate.state().places.contains_key(&numbers[number]);
        assert!(has(0) && !has(1));
        drop(passes.remove(1));
        assert_eq!(gate.state().places.len(), MAX_PENDING_PER_ADDRESS, "a lost place is not freed twice");

        for other in 2..=4 {
            passes.extend((0..MAX_PENDING_PER_ADDRESS).map(|_| room(other, now)));
        }
        assert_eq!(gate.state().places.len(), MAX_PENDING);
        assert!(enter(&gate, ip(5), now).is_err());
        passes.push(room(5, now + PENDING_GRACE));
        assert_eq!(gate.state().places.len(), MAX_PENDING);
        drop(passes);
        assert!(gate.state().places.is_empty());
    }

    #[test]
    fn a_crowd_that_waits_delays_nobody() {
        let (gate, now) = (Arc::new(Gate::default()), Instant::now());
        let silent = gate.wait(ip(1));
        let crowd: Vec<Waiting<'_>> = (0..5).map(|_| come(&gate, ip(1))).collect();
        assert!(matches!(gate.try_enter(crowd[0].number, now), Turn::Later), "the last one comes first");
        let place = enter(&gate, ip(1), now);
        assert!(place.is_ok());
        // An address with fewer places comes first, whoever came last.
        let other = come(&gate, ip(2));
        let last = come(&gate, ip(1));
        assert!(matches!(gate.try_enter(last.number, now), Turn::Later));
        assert!(matches!(gate.try_enter(other.number, now), Turn::In(_)));
        // Where too many wait, the oldest one goes.
        let more: Vec<Waiting<'_>> = (crowd.len() + 2..=MAX_WAITING).map(|_| gate.wait(ip(3))).collect();
        assert!(matches!(gate.try_enter(silent.number, now), Turn::SentAway), "{} wait", more.len());
        assert_eq!(gate.state().outside.len(), MAX_WAITING);
        drop((silent, crowd, other, last, more, place));
        assert!(gate.state().outside.is_empty() && gate.state().places.is_empty());
    }

    #[test]
    fn failures_have_to_be_paid_for_with_time() {
        let (gate, now) = (Arc::new(Gate::default()), Instant::now());
        for _ in 0..FAILURES_PER_S_AND_ADDRESS {
            gate.fail_at(ip(1), now);
        }
        assert!(enter(&gate, ip(1), now).is_ok());
        gate.fail_at(ip(1), now);
        let again = when(enter(&gate, ip(1), now)).expect("a time");
        assert!(again > now && again <= now + Duration::from_secs(1));
        assert!(enter(&gate, ip(2), now).is_ok(), "others have nothing to do with it");
        assert!(enter(&gate, ip(1), again).is_ok());
        // Whoever has many addresses finds that all of them together have a limit.
        for i in 0..=FAILURES_PER_S {
            gate.fail_at(IpAddr::from((0x0b00_0000 + i).to_be_bytes()), now);
        }
        assert!(when(enter(&gate, ip(2), now)).is_some_and(|again| again > now));
        assert!(enter(&gate, ip(2), now + Duration::from_secs(2)).is_ok());
    }

    #[tokio::test]
    async fn whoever_says_nothing_takes_no_place() {
        let gate = Arc::new(Gate::default());
        let mut silent = std::pin::pin!(gate.enter(ip(1), std::future::pending()));
        let is_waiting = std::future::poll_fn(|context| Poll::Ready(silent.as_mut().poll(context).is_pending())).await;
        assert!(is_waiting);
        let counts = |state: MutexGuard<'_, State>| (state.outside.len(), state.places.len());
        assert_eq!(counts(gate.state()), (1, 0));
        let pass = gate.enter(ip(1), std::future::ready(())).await;
        assert!(pass.is_some() && gate.state().places.len() == 1);
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
        assert_eq!(gate.state().failing.len(), MAX_FAILING);
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

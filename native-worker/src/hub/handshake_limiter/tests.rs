use std::task::Poll;

use super::*;

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// Adds a waiting connection that has sent something.
fn come(limiter: &HandshakeLimiter, from: IpAddr) -> WaitingConnection<'_> {
    let waiting = limiter.wait(from);
    limiter.state().outside.get_mut(&waiting.number).expect("it waits").has_spoken = true;
    waiting
}

/// Lets such a connection try to enter; returns its pass, or when to try again.
fn enter(limiter: &Arc<HandshakeLimiter>, from: IpAddr, now: Instant) -> Result<Pass, Option<Instant>> {
    let waiting = come(limiter, from);
    match limiter.try_enter(waiting.number, now) {
        EntryOutcome::In(pass) => Ok(pass),
        EntryOutcome::At(time) => Err(Some(time)),
        EntryOutcome::Later | EntryOutcome::SentAway => Err(None),
    }
}

fn when(result: Result<Pass, Option<Instant>>) -> Option<Instant> {
    result.err().flatten()
}

#[test]
fn the_longest_silent_one_of_the_most_crowded_address_goes_first() {
    let (limiter, now) = (Arc::new(HandshakeLimiter::default()), Instant::now());
    let budget = |from: u8, at: Instant| enter(&limiter, ip(from), at).unwrap();
    let mut passes: Vec<Pass> = (0..MAX_PENDING_PER_ADDRESS).map(|_| budget(1, now)).collect();
    assert_eq!(when(enter(&limiter, ip(1), now)), Some(now + PENDING_GRACE), "they are not silent yet");
    let numbers: Vec<u64> = passes.iter().map(|pass| pass.number).collect();
    passes[0].ask();
    // Takes the place of the second connection.
    passes.push(budget(1, now + PENDING_GRACE));
    let has = |number: usize| limiter.state().places.contains_key(&numbers[number]);
    assert!(has(0) && !has(1));
    drop(passes.remove(1));
    assert_eq!(limiter.state().places.len(), MAX_PENDING_PER_ADDRESS, "a lost place is not freed twice");

    for other in 2..=4 {
        passes.extend((0..MAX_PENDING_PER_ADDRESS).map(|_| budget(other, now)));
    }
    assert_eq!(limiter.state().places.len(), MAX_PENDING);
    assert!(enter(&limiter, ip(5), now).is_err());
    passes.push(budget(5, now + PENDING_GRACE));
    assert_eq!(limiter.state().places.len(), MAX_PENDING);
    drop(passes);
    assert!(limiter.state().places.is_empty());
}

#[test]
fn waiting_crowd_delays_no_peer() {
    let (limiter, now) = (Arc::new(HandshakeLimiter::default()), Instant::now());
    let silent = limiter.wait(ip(1));
    let crowd: Vec<WaitingConnection<'_>> = (0..5).map(|_| come(&limiter, ip(1))).collect();
    assert!(matches!(limiter.try_enter(crowd[0].number, now), EntryOutcome::Later), "the last one comes first");
    let place = enter(&limiter, ip(1), now);
    assert!(place.is_ok());
    // An address with fewer places comes first, regardless of the order of arrival.
    let other = come(&limiter, ip(2));
    let last = come(&limiter, ip(1));
    assert!(matches!(limiter.try_enter(last.number, now), EntryOutcome::Later));
    assert!(matches!(limiter.try_enter(other.number, now), EntryOutcome::In(_)));
    // Above the limit, the oldest waiting connection is rejected.
    let more: Vec<WaitingConnection<'_>> = (crowd.len() + 2..=MAX_WAITING).map(|_| limiter.wait(ip(3))).collect();
    assert!(matches!(limiter.try_enter(silent.number, now), EntryOutcome::SentAway), "{} wait", more.len());
    assert_eq!(limiter.state().outside.len(), MAX_WAITING);
    drop((silent, crowd, other, last, more, place));
    assert!(limiter.state().outside.is_empty() && limiter.state().places.is_empty());
}

#[test]
fn failures_have_to_be_paid_for_with_time() {
    let (limiter, now) = (Arc::new(HandshakeLimiter::default()), Instant::now());
    for _ in 0..FAILURES_PER_S_AND_ADDRESS {
        limiter.fail_at(ip(1), now);
    }
    assert!(enter(&limiter, ip(1), now).is_ok());
    limiter.fail_at(ip(1), now);
    let again = when(enter(&limiter, ip(1), now)).expect("a time");
    assert!(again > now && again <= now + Duration::from_secs(1));
    assert!(enter(&limiter, ip(2), now).is_ok(), "others have nothing to do with it");
    assert!(enter(&limiter, ip(1), again).is_ok());
    // An attacker with many addresses reaches the limit for all addresses together.
    for i in 0..=FAILURES_PER_S {
        limiter.fail_at(IpAddr::from((0x0b00_0000 + i).to_be_bytes()), now);
    }
    assert!(when(enter(&limiter, ip(2), now)).is_some_and(|again| again > now));
    assert!(enter(&limiter, ip(2), now + Duration::from_secs(2)).is_ok());
}

#[tokio::test]
async fn silent_peer_takes_no_slot() {
    let limiter = Arc::new(HandshakeLimiter::default());
    let mut silent = std::pin::pin!(limiter.enter(ip(1), std::future::pending()));
    let is_waiting = std::future::poll_fn(|context| Poll::Ready(silent.as_mut().poll(context).is_pending())).await;
    assert!(is_waiting);
    let counts = |state: MutexGuard<'_, LimiterState>| (state.outside.len(), state.places.len());
    assert_eq!(counts(limiter.state()), (1, 0));
    let pass = limiter.enter(ip(1), std::future::ready(())).await;
    assert!(pass.is_some() && limiter.state().places.len() == 1);
}

#[test]
fn more_failures_than_a_person_makes_are_answered_late() {
    let (limiter, now) = (HandshakeLimiter::default(), Instant::now());
    for _ in 0..FREE_FAILURES {
        assert_eq!(limiter.fail_at(ip(1), now), Duration::ZERO);
    }
    assert_eq!(limiter.fail_at(ip(1), now), FAILURE_DELAY);
    assert_eq!(limiter.fail_at(ip(2), now), Duration::ZERO, "others have nothing to do with it");
    assert_eq!(limiter.fail_at(ip(1), now + FAILURE_WINDOW), Duration::ZERO);
}

#[test]
fn many_failing_addresses_take_no_more_memory() {
    let (limiter, now) = (HandshakeLimiter::default(), Instant::now());
    for i in 0..2 * MAX_FAILING as u32 {
        limiter.fail_at(IpAddr::from(i.to_be_bytes()), now);
    }
    assert_eq!(limiter.state().failing.len(), MAX_FAILING);
    assert_eq!(limiter.fail_at(ip(1), now), FAILURE_DELAY);
    assert_eq!(limiter.fail_at(ip(1), now + FAILURE_WINDOW), Duration::ZERO);
}

#[test]
fn an_ipv6_network_is_one_address() {
    let of = |text: &str| source(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:10.0.0.1"), ip(1));
    assert_eq!(of("::1"), "::1".parse::<IpAddr>().unwrap());
}

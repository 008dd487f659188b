use super::*;

const AT_ONCE: LocalEnd = LocalEnd::Replace(Micros(0));

/// Local workers, and the time.
#[derive(Default)]
struct Fixture {
    local: LocalWorkers,
    now: Micros,
}

impl Fixture {
    fn start(&mut self) -> u32 {
        let number = self.local.next_number();
        self.local.handle_started(number, TokenId(0), false, self.now);
        number
    }

    fn exit(&mut self, number: u32) -> LocalEnd {
        self.local.handle_exit(number, self.now).expect("it was running").1
    }

    /// Starts and ends a worker, useful or not, and returns what follows.
    fn end(&mut self, is_useful: bool) -> LocalEnd {
        let number = self.start();
        if is_useful {
            self.local.handle_useful(number);
        }
        self.exit(number)
    }

    fn crash(&mut self) -> LocalEnd {
        let number = self.start();
        self.local.handle_crash_at_work(number);
        self.exit(number)
    }
}

fn pause(millis: u64) -> LocalEnd {
    LocalEnd::Replace(Micros::from_millis(millis))
}

#[test]
fn useless_workers_are_replaced_with_growing_delays_and_then_given_up() {
    let mut fixture = Fixture::default();
    assert_eq!(fixture.local.pause_without_place(), NOT_YET);
    let ends = [(); 7].map(|()| fixture.end(false));
    assert_eq!(ends, [AT_ONCE, AT_ONCE, pause(800), pause(1600), pause(3200), LocalEnd::GiveUp, LocalEnd::GiveUp]);
    // One success resets the count of failed starts.
    assert_eq!([true, false].map(|is_useful| fixture.end(is_useful)), [AT_ONCE; 2]);
}

#[test]
fn worker_that_connected_and_lives_ends_the_failures_in_a_row() {
    let mut fixture = Fixture::default();
    (0..MAX_FAILED_STARTS).for_each(|_| _ = fixture.end(false));
    // Without a run no worker is useful; one that has connected and lives shows that others may.
    let elsewhere = fixture.start();
    fixture.local.handle_connected(elsewhere, 1);
    fixture.now = fixture.now + SHORT_LIFE;
    assert_eq!(fixture.end(false), AT_ONCE);
    let last = (0..MAX_FAILED_STARTS).map(|_| fixture.end(false)).last();
    assert_eq!(last, Some(LocalEnd::GiveUp), "it is one success, not one for each failure");
    fixture.local.forget_failed_starts();
    assert_eq!(fixture.end(false), AT_ONCE);
}

#[test]
fn crashes_at_work_are_replaced_for_ever_with_delays_and_counted_apart_from_failed_starts() {
    let mut fixture = Fixture::default();
    let ends = [(); 7].map(|()| fixture.crash());
    assert_eq!(ends, [AT_ONCE, AT_ONCE, pause(800), pause(1600), pause(3200), pause(3200), pause(3200)]);
    assert_eq!([(); 3].map(|()| fixture.end(false)), [AT_ONCE, AT_ONCE, pause(800)]);
    assert_eq!(fixture.crash(), pause(3200));
    assert_eq!([(); 3].map(|()| fixture.end(false)), [pause(1600), pause(3200), LocalEnd::GiveUp]);
    assert_eq!(fixture.crash(), pause(3200), "a crash is never one too many");
}

#[test]
fn restarted_worker_is_replaced_immediately_whatever_its_run_allows() {
    let mut fixture = Fixture::default();
    fixture.local.replace_as(Replacement { max: 0, ..Replacement::default() });
    assert_eq!(fixture.end(true), LocalEnd::NotReplaced);
    for _ in 0..2 * MAX_FAILED_STARTS {
        let number = fixture.start();
        assert!(fixture.local.restart(number));
        assert_eq!(fixture.exit(number), AT_ONCE);
    }
    let leaving = fixture.start();
    fixture.local.dismiss(leaving);
    assert!(!fixture.local.restart(leaving));
    assert_eq!(fixture.exit(leaving), LocalEnd::AsWished);
}

#[test]
fn failed_starts_are_retried_with_growing_delays_and_then_given_up() {
    let mut fixture = Fixture::default();
    let ends = [(); 6].map(|()| fixture.local.handle_failed_start(Micros(0)));
    assert_eq!(ends, [pause(200), pause(400), pause(800), pause(1600), pause(3200), LocalEnd::GiveUp]);
    // A scheduled replacement counts as a worker until it is cancelled.
    let (local, number) = (&mut fixture.local, 1);
    local.replace_at(number, Micros(10));
    assert_eq!((local.count(), local.staying().len(), local.awaits_any()), (1, 0, true));
    assert_eq!((local.poll_timeout(), local.poll_due(Micros(9))), (Some(Micros(10)), None));
    local.forget_replacements();
    assert_eq!((local.count(), local.poll_due(Micros(10))), (0, None));
    local.replace_at(number, Micros(10));
    assert_eq!([(); 2].map(|()| local.poll_due(Micros(10))), [Some(LocalDue::Replace(number)), None]);
}

#[test]
fn spare_worker_counts_once_it_has_a_place() {
    let mut fixture = Fixture::default();
    let spare = fixture.start();
    assert!(fixture.local.wants_spare());
    fixture.local.keep_as_spare(spare);
    let local = &mut fixture.local;
    assert_eq!((local.count(), local.staying().len(), local.wants_spare()), (0, 0, false));
    local.employ_spare(Micros(0));
    assert_eq!((local.count(), local.is_spare(spare)), (1, false));
    // The exit of a spare without a place is no failed start.
    for _ in 0..10 {
        let spare = fixture.start();
        fixture.local.keep_as_spare(spare);
        assert_eq!(fixture.exit(spare), LocalEnd::AsWished);
    }
    assert_eq!((fixture.exit(spare), fixture.local.wants_spare()), (AT_ONCE, true));
    fixture.local.replace_as(Replacement { max: 1, ..Replacement::default() });
    assert!(!fixture.local.wants_spare());
}

#[test]
fn worker_without_a_replacement_is_not_ended() {
    let mut fixture = Fixture::default();
    let number = fixture.start();
    assert!(fixture.local.may_end(number));
    fixture.local.replace_as(Replacement { max: 0, ..Replacement::default() });
    assert!(!fixture.local.may_end(number));
    fixture.local.dismiss(number);
    assert!(fixture.local.may_end(number) && !fixture.local.may_end(number + 1));
}

#[test]
fn deadline_of_an_earlier_disconnect_does_not_end_a_worker_that_has_reconnected() {
    let mut fixture = Fixture::default();
    let number = fixture.start();
    let local = &mut fixture.local;
    local.handle_connected(number, 3);
    local.handle_disconnected(number, 3, Micros(0));
    // It was connected again, and is not at the moment.
    local.handle_connected(number, 4);
    local.handle_disconnected(number, 4, Micros(1));
    assert_eq!((local.poll_timeout(), local.poll_due(SILENCE)), (Some(SILENCE), None));
    assert_eq!(local.poll_due(SILENCE + Micros(1)), Some(LocalDue::EndSilent(number)));
}

#[test]
fn worker_that_never_connected_has_failed_however_long_that_took() {
    let mut fixture = Fixture::default();
    let number = fixture.start();
    fixture.now = Micros::from_secs(120);
    assert_eq!((fixture.exit(number), fixture.local.failed_starts), (AT_ONCE, 1));
    let number = fixture.start();
    fixture.local.handle_connected(number, 1);
    fixture.now = Micros::from_secs(240);
    assert_eq!((fixture.exit(number), fixture.local.failed_starts), (AT_ONCE, 0));
}

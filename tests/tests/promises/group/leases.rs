//! What the group promises, one situation at a time. The simulator in `sim` mixes them.

use rollmesh_core::{
    batch::SlotFragment,
    group::{
        BeginError, FragmentOutcome, GroupCommand, GroupConfig, GroupConfigError, GroupEvent, IdleReason, LeaseGroup,
        QuarantineCause, RejectReason, TooFewSlots, WorkerProfile, WorkerState,
    },
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, SlotSource},
    protocol::{Inability, InabilityKind},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{FakeState, calm_batches, flip_a_reward_bit},
    join,
};

const LENGTH: u32 = 4;
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const C: WorkerId = WorkerId(3);

fn ms(millis: u64) -> Micros {
    Micros::from_millis(millis)
}

/// A group with these workers, and the first iteration begun at 0 ms.
fn group(num_slots: u32, workers: &[WorkerId]) -> LeaseGroup {
    let mut group = LeaseGroup::new(GroupConfig::new(num_slots, LENGTH)).unwrap();
    for &worker in workers {
        join(&mut group, worker, WorkerProfile::NATIVE, ms(0));
    }
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    group
}

/// Takes the next command, which must grant a lease to this worker.
#[track_caller]
fn grant(group: &mut LeaseGroup, to: WorkerId) -> Lease {
    match group.poll_command() {
        Some(GroupCommand::Grant { worker, lease }) if worker == to => lease,
        other => panic!("no grant to worker {to}: {other:?}"),
    }
}

fn slots(lease: &Lease) -> Vec<u32> {
    lease.slots.iter().map(|leased| leased.slot.0).collect()
}

/// What an honest worker makes of a lease of the calm run.
fn make(lease: &Lease) -> Vec<SlotFragment> {
    let calm = calm_batches(64, LENGTH, lease.fragment.0 + 1);
    lease.slots.iter().map(|leased| calm[lease.fragment.0 as usize][leased.slot.0 as usize].clone()).collect()
}

#[track_caller]
fn deliver(group: &mut LeaseGroup, worker: WorkerId, lease: &Lease, now: Micros) {
    let receipt = group.handle_fragments(worker, lease.id, make(lease), now);
    assert_eq!(receipt.count(FragmentOutcome::Committed), lease.slots.len(), "{receipt:?}");
}

fn events(group: &mut LeaseGroup) -> Vec<GroupEvent> {
    std::iter::from_fn(|| group.poll_event()).collect()
}

fn inability() -> Inability {
    Inability::new(InabilityKind::UnknownEnv, "there is no environment 'My-v0'")
}

fn idle(group: &LeaseGroup, worker: WorkerId) -> Option<IdleReason<'_>> {
    group.workers(ms(0)).find(|status| status.worker == worker).and_then(|status| status.idle)
}

fn idle_text(group: &LeaseGroup, worker: WorkerId) -> String {
    idle(group, worker).expect("it makes no rows").to_string()
}

fn state_of(group: &LeaseGroup, worker: WorkerId) -> WorkerState {
    group.workers(ms(0)).find(|status| status.worker == worker).map(|status| status.state).unwrap()
}

#[test]
fn an_iteration_is_one_lease_per_worker_and_one_batch_in_slot_order() {
    let mut group = group(4, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert_eq!((slots(&a), slots(&b)), (vec![0, 1], vec![2, 3]));
    assert!(a.slots.iter().all(|leased| leased.source == SlotSource::New));
    assert_eq!(group.poll_command(), None);
    deliver(&mut group, B, &b, ms(10));
    assert_eq!(group.poll_batch(), None);
    assert_eq!(group.begin_iteration(WeightsVersion(1), ms(10)), Err(BeginError::Unfinished(FragmentNo(0))));
    deliver(&mut group, A, &a, ms(11));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(4, LENGTH, 1)[0]);
    assert_eq!(group.poll_batch(), None, "a batch comes once");

    assert_eq!(group.begin_iteration(WeightsVersion(1), ms(20)), Ok(FragmentNo(1)));
    let next = grant(&mut group, A);
    assert_eq!((slots(&next), next.weights_version), (slots(&a), WeightsVersion(1)));
    assert!(next.slots.iter().all(|leased| leased.source == SlotSource::Held), "nothing travels: {next:?}");
}

#[test]
fn shown_weights_version_of_a_worker_never_decreases() {
    let mut group = group(1, &[A]);
    let version = |group: &LeaseGroup| group.workers(ms(0)).next().unwrap().weights_version;
    let lease = grant(&mut group, A);
    assert_eq!((lease.weights_version, version(&group)), (WeightsVersion(0), None));
    for (said, shown) in [(2, 2), (1, 2), (3, 3)] {
        group.handle_weights_applied(A, WeightsVersion(said));
        assert_eq!(version(&group), Some(WeightsVersion(shown)));
    }
    group.handle_weights_applied(B, WeightsVersion(9));
    assert_eq!(group.poll_timeout(), Some(ms(3_000)), "it is no progress");
}

#[test]
fn a_group_without_workers_waits_for_one() {
    let mut group = group(3, &[]);
    assert_eq!((group.poll_command(), group.poll_timeout()), (None, None));
    join(&mut group, A, WorkerProfile::BROWSER, ms(5_000));
    assert_eq!(slots(&grant(&mut group, A)), [0, 1, 2]);
    assert_eq!(group.poll_timeout(), Some(ms(35_000)));
}

#[test]
fn a_worker_gets_lease_after_lease_if_one_cannot_hold_all_slots() {
    let config = GroupConfig { max_slots_per_lease: 2, ..GroupConfig::new(5, LENGTH) };
    let mut group = LeaseGroup::new(config).unwrap();
    join(&mut group, A, WorkerProfile::NATIVE, ms(0));
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    for wanted in [vec![0, 1], vec![2, 3], vec![4]] {
        let lease = grant(&mut group, A);
        assert_eq!(slots(&lease), wanted);
        deliver(&mut group, A, &lease, ms(1));
    }
    assert_eq!(group.poll_batch().unwrap(), calm_batches(5, LENGTH, 1)[0]);
}

#[test]
fn a_run_without_work_is_refused() {
    assert_eq!(LeaseGroup::new(GroupConfig::new(0, 8)).unwrap_err(), GroupConfigError::NoSlots);
    assert_eq!(LeaseGroup::new(GroupConfig::new(8, 0)).unwrap_err(), GroupConfigError::EmptyFragments);
    let no_leases = GroupConfig { max_slots_per_lease: 0, ..GroupConfig::new(8, 8) };
    assert_eq!(LeaseGroup::new(no_leases).unwrap_err(), GroupConfigError::EmptyLeases);
}

#[test]
fn a_worker_killed_in_mid_lease_costs_time_but_no_data() {
    let mut group = group(4, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, A, &a, ms(10));
    deliver(&mut group, B, &b, ms(10));
    let first = group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(20)).unwrap();
    let (a, _) = (grant(&mut group, A), grant(&mut group, B));
    group.handle_progress(B, LeaseId(3), 5, ms(21));
    group.handle_left(B, ms(22));
    deliver(&mut group, A, &a, ms(30));
    let rest = grant(&mut group, A);
    let states: Vec<SlotSource> = [2, 3].map(|slot: usize| SlotSource::State(first[slot].state.clone())).into();
    assert_eq!(rest.slots.iter().map(|leased| leased.source.clone()).collect::<Vec<_>>(), states);
    deliver(&mut group, A, &rest, ms(40));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(4, LENGTH, 2)[1]);
    let ledger = group.ledger();
    assert_eq!((ledger.granted, ledger.committed, ledger.expired.left, ledger.outstanding), (40, 32, 8, 0));
}

#[test]
fn a_hung_worker_is_found_at_its_deadline_and_comes_back_when_it_speaks() {
    let mut group = group(1, &[A]);
    let lost = grant(&mut group, A);
    assert_eq!(group.poll_timeout(), Some(ms(3_000)));
    group.handle_progress(A, lost.id, 2, ms(1_000));
    group.handle_progress(A, lost.id, 2, ms(2_000));
    assert_eq!(group.poll_timeout(), Some(ms(4_000)), "the same number again is no progress");
    group.handle_timeout(ms(3_999));
    assert_eq!(state_of(&group, A), WorkerState::Sampling);
    group.handle_timeout(ms(4_000));
    assert_eq!(state_of(&group, A), WorkerState::Hung);
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: lost.id }));
    assert_eq!(group.poll_command(), None, "a hung worker gets no lease");
    let said: Vec<String> = events(&mut group).iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "worker 1 hangs: no progress for 3000.000 ms; it gets no lease until it sends something",
            "lease 0 of worker 1 expired with 1 open slots: it made no progress in time",
        ]
    );
    group.handle_timeout(ms(7_000));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: lost.id }), "asked again");

    group.handle_refused(A, lost.id, "no", ms(8_000));
    assert_eq!(events(&mut group), [GroupEvent::WorkerRecovered { worker: A }]);
    let again = grant(&mut group, A);
    assert_eq!(again.slots[0].source, SlotSource::New, "it may have lost what it held");
    assert_eq!(group.poll_timeout(), Some(ms(14_000)), "a worker that was too slow gets more time");
}

#[test]
fn nothing_late_is_accepted_even_if_the_slot_is_open() {
    let mut group = group(2, &[A]);
    let lease = grant(&mut group, A);
    group.pause();
    group.handle_timeout(ms(3_000));
    let receipt = group.handle_fragments(A, lease.id, make(&lease), ms(3_001));
    assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Late)), 2);
    assert_eq!(state_of(&group, A), WorkerState::Idle, "but it has spoken");
    let ledger = group.ledger();
    assert_eq!((ledger.expired.timed_out, ledger.committed, ledger.uninvited.rejected.late), (8, 0, 2));
    assert_eq!(group.poll_batch(), None);
}

#[test]
fn an_overdue_lease_is_hedged_and_the_first_commit_wins() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, B, &b, ms(10));
    assert_eq!(group.poll_timeout(), Some(ms(200)), "when the lease becomes overdue");
    group.handle_timeout(ms(199));
    assert_eq!(group.poll_command(), None);
    group.handle_timeout(ms(200));
    let hedge = grant(&mut group, B);
    assert_eq!(slots(&hedge), slots(&a));
    assert_eq!(group.poll_timeout(), Some(ms(3_000)), "nothing is leased a third time");
    deliver(&mut group, B, &hedge, ms(210));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: a.id }));
    assert_eq!(state_of(&group, A), WorkerState::Sampling, "as far as the group knows");
    let receipt = group.handle_fragments(A, a.id, make(&a), ms(211));
    assert_eq!(receipt.count(FragmentOutcome::Superseded), 1, "equal to what won: an audit passed");
    assert_eq!(state_of(&group, A), WorkerState::Idle);
    assert_eq!(group.poll_batch().unwrap(), calm_batches(2, LENGTH, 1)[0]);
    let ledger = group.ledger();
    assert_eq!((ledger.granted, ledger.committed, ledger.superseded), (12, 8, 4));
    assert_eq!(ledger.uninvited.superseded, 1);
}

#[test]
fn the_overdue_worker_may_still_win() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, B, &b, ms(10));
    group.handle_timeout(ms(200));
    let hedge = grant(&mut group, B);
    deliver(&mut group, A, &a, ms(201));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: B, lease: hedge.id }));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(2, LENGTH, 1)[0]);
}

/// A group of two slots, the first of which worker B has finished instead of A at 210 ms. A's lease.
fn overtaken() -> (LeaseGroup, Lease) {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, B, &b, ms(10));
    group.handle_timeout(ms(200));
    let hedge = grant(&mut group, B);
    deliver(&mut group, B, &hedge, ms(210));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: a.id }));
    assert_eq!(group.poll_batch().map(|batch| batch.len()), Some(2));
    _ = events(&mut group);
    (group, a)
}

#[test]
fn a_worker_that_hangs_while_others_finish_its_slots_is_found_out_and_costs_no_more_iterations() {
    let (mut group, lost) = overtaken();
    for iteration in 1..10 {
        let now = ms(210 + iteration);
        group.begin_iteration(WeightsVersion(iteration), now).unwrap();
        let lease = grant(&mut group, B);
        assert_eq!((slots(&lease), group.poll_command()), (vec![0, 1], None), "nothing waits for the silent one");
        deliver(&mut group, B, &lease, now);
        assert!(group.poll_batch().is_some());
    }
    assert_eq!(group.poll_timeout(), Some(ms(3_000)), "when its lease would have expired");
    group.handle_timeout(ms(2_999));
    assert_eq!((state_of(&group, A), events(&mut group)), (WorkerState::Sampling, vec![]));
    group.handle_timeout(ms(3_000));
    assert_eq!(state_of(&group, A), WorkerState::Hung);
    assert_eq!(events(&mut group), [GroupEvent::WorkerHung { worker: A, patience: ms(3_000) }]);
    assert_eq!(group.poll_timeout(), Some(ms(6_000)));
    group.handle_timeout(ms(6_000));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: lost.id }), "asked again");
    group.handle_refused(A, lost.id, "no", ms(6_001));
    assert_eq!(events(&mut group), [GroupEvent::WorkerRecovered { worker: A }]);
    assert_eq!(state_of(&group, A), WorkerState::Idle);
    let ledger = group.ledger();
    assert_eq!((ledger.granted, ledger.committed, ledger.superseded, ledger.outstanding), (84, 80, 4, 0));
}

#[test]
fn a_worker_that_was_overtaken_goes_on_as_soon_as_it_has_answered() {
    let (mut group, lost) = overtaken();
    group.begin_iteration(WeightsVersion(1), ms(211)).unwrap();
    let all = grant(&mut group, B);
    assert_eq!((slots(&all), state_of(&group, A)), (vec![0, 1], WorkerState::Sampling));
    group.handle_refused(A, lost.id, "no", ms(212));
    assert_eq!((state_of(&group, A), events(&mut group)), (WorkerState::Idle, vec![]));
    deliver(&mut group, B, &all, ms(213));
    assert!(group.poll_batch().is_some());
    group.handle_timeout(ms(3_000));
    assert_eq!((state_of(&group, A), group.poll_timeout()), (WorkerState::Idle, None), "it does not hang");
    group.begin_iteration(WeightsVersion(2), ms(3_001)).unwrap();
    group.handle_left(B, ms(3_002));
    assert_eq!(slots(&grant(&mut group, A)), [0, 1]);
}

#[test]
fn overtaken_and_removed_worker_is_not_awaited() {
    let (mut group, _) = overtaken();
    assert!(group.remove_worker(A, ms(211)));
    assert_eq!(group.poll_command(), Some(GroupCommand::Dismiss { worker: A }));
    assert_eq!((state_of(&group, A), group.poll_timeout()), (WorkerState::Leaving, None));
}

#[test]
fn a_worker_that_never_heard_of_its_second_lease_has_nothing_to_answer() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, B, &b, ms(10));
    group.handle_timeout(ms(200));
    deliver(&mut group, A, &a, ms(201));
    assert_eq!((group.poll_command(), state_of(&group, B)), (None, WorkerState::Idle));
}

#[test]
fn divergent_worker_is_caught_by_the_hedge() {
    let mut group = group(4, &[A, B, C]);
    let (a, b, c) = (grant(&mut group, A), grant(&mut group, B), grant(&mut group, C));
    deliver(&mut group, B, &b, ms(10));
    deliver(&mut group, C, &c, ms(10));
    group.handle_timeout(ms(200));
    let (hedge_b, hedge_c) = (grant(&mut group, B), grant(&mut group, C));
    assert_eq!((slots(&a), slots(&hedge_b), slots(&hedge_c)), (vec![0, 1], vec![0], vec![1]));
    deliver(&mut group, B, &hedge_b, ms(210));
    events(&mut group);
    let mut lies = make(&a);
    flip_a_reward_bit(&mut lies[0]);
    let receipt = group.handle_fragments(A, a.id, lies, ms(211));
    assert_eq!(
        receipt.count(FragmentOutcome::Rejected(RejectReason::Audit)),
        2,
        "its other slot is not believed either"
    );
    assert_eq!(
        events(&mut group),
        [
            GroupEvent::AuditMismatch { slot: SlotId(0), fragment: FragmentNo(0), first: B, second: A },
            GroupEvent::FragmentsRejected { worker: A, lease: a.id, fragments: 2, reason: RejectReason::Audit },
            GroupEvent::WorkerQuarantined { worker: A, cause: QuarantineCause::Audit },
        ]
    );
    assert_eq!((state_of(&group, A), group.ledger().rejected.audit), (WorkerState::Quarantined, 8));
    deliver(&mut group, C, &hedge_c, ms(220));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(4, LENGTH, 1)[0]);
    group.begin_iteration(WeightsVersion(1), ms(230)).unwrap();
    let leased: Vec<WorkerId> = std::iter::from_fn(|| group.poll_command()).map(|command| command.worker()).collect();
    assert_eq!(leased, [B, C]);
}

#[test]
fn a_late_loser_is_audited_even_when_the_batch_is_taken() {
    let mut group = group(2, &[A, B, C]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, B, &b, ms(10));
    group.handle_left(C, ms(10));
    group.handle_timeout(ms(200));
    let hedge = grant(&mut group, B);
    deliver(&mut group, B, &hedge, ms(210));
    group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(220)).unwrap();
    let mut lies = make(&a);
    flip_a_reward_bit(&mut lies[0]);
    group.handle_fragments(A, a.id, lies, ms(230));
    assert_eq!(state_of(&group, A), WorkerState::Quarantined);
    let ledger = group.ledger();
    assert_eq!((ledger.superseded, ledger.rejected.audit, ledger.uninvited.rejected.audit), (4, 0, 1));
}

#[test]
fn a_worker_that_contradicts_itself_in_one_upload_is_caught() {
    let mut group = group(1, &[A]);
    let lease = grant(&mut group, A);
    let mut twice = [make(&lease), make(&lease)].concat();
    flip_a_reward_bit(&mut twice[1]);
    let receipt = group.handle_fragments(A, lease.id, twice, ms(1));
    let outcomes: Vec<FragmentOutcome> = receipt.outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, [FragmentOutcome::Committed, FragmentOutcome::Rejected(RejectReason::Audit)]);
    assert_eq!(state_of(&group, A), WorkerState::Quarantined);
}

#[test]
fn uploads_count_once_however_often_they_come() {
    let mut group = group(2, &[A]);
    let lease = grant(&mut group, A);
    deliver(&mut group, A, &lease, ms(1));
    for _ in 0..2 {
        let receipt = group.handle_fragments(A, lease.id, make(&lease), ms(2));
        assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Duplicate)), 2);
        group.poll_batch();
    }
    assert_eq!((group.ledger().committed, group.ledger().uninvited.rejected.duplicate), (8, 4));
    let receipt = group.handle_fragments(B, lease.id, make(&lease), ms(3));
    assert_eq!(
        receipt.count(FragmentOutcome::Rejected(RejectReason::Late)),
        2,
        "no worker uploads for another's lease"
    );
}

#[test]
fn undecodable_uploads_are_counted() {
    let mut group = group(1, &[A]);
    let lease = grant(&mut group, A);
    group.handle_forgotten(A, LeaseId(77), ms(1));
    group.handle_forgotten(B, lease.id, ms(1));
    deliver(&mut group, A, &lease, ms(2));
    let ledger = group.ledger();
    assert_eq!((ledger.uninvited.rejected.late, ledger.committed, ledger.balances()), (2, 4, true));
}

#[test]
fn a_lease_may_come_in_parts() {
    let mut group = group(2, &[A]);
    let lease = grant(&mut group, A);
    let mut parts = make(&lease);
    let last = parts.split_off(1);
    group.handle_fragments(A, lease.id, parts, ms(1));
    assert_eq!((state_of(&group, A), group.ledger().outstanding), (WorkerState::Sampling, 4));
    group.handle_fragments(A, lease.id, last, ms(2));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(2, LENGTH, 1)[0]);
}

#[test]
fn uninvited_fragments_are_rejected_by_reason() {
    let mut group = group(3, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert_eq!((slots(&a), slots(&b)), (vec![0, 1], vec![2]));
    let old_weights = FakeState::new(SlotId(0)).fragment(WeightsVersion(9), LENGTH);
    let too_short = FakeState::new(SlotId(1)).fragment(WeightsVersion(0), LENGTH - 1);
    let not_its_own = make(&b).remove(0);
    let nowhere = FakeState::new(SlotId(77)).fragment(WeightsVersion(0), LENGTH);
    let receipt = group.handle_fragments(A, a.id, vec![old_weights, not_its_own, nowhere, too_short], ms(1));
    let reasons: Vec<FragmentOutcome> = receipt.outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let wanted =
        [RejectReason::Mismatched, RejectReason::NotLeased, RejectReason::NotLeased, RejectReason::WrongLength];
    assert_eq!(reasons, wanted.map(FragmentOutcome::Rejected));
    let ledger = group.ledger();
    assert_eq!(
        (ledger.rejected.mismatched, ledger.rejected.wrong_length, ledger.uninvited.rejected.not_leased),
        (4, 4, 2)
    );
    assert_eq!(slots(&grant(&mut group, A)), [0, 1], "the slots are leased again");
}

#[test]
fn fragments_of_different_lengths_count_as_what_they_bring() {
    let config = GroupConfig { max_fragment_steps: 3 * LENGTH, ..GroupConfig::new(3, LENGTH) };
    let mut group = LeaseGroup::new(config).unwrap();
    join(&mut group, A, WorkerProfile::NATIVE, ms(0));
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    let lease = grant(&mut group, A);
    let part = |slot, steps| vec![FakeState::new(SlotId(slot)).fragment(WeightsVersion(0), steps)];
    // Reports go beyond the steps that were granted, up to twice the most that there can be; only they move the deadline.
    let mut deadline = group.poll_timeout();
    for (steps, is_progress) in [(3 * LENGTH, true), (18 * LENGTH, true), (18 * LENGTH + 1, false)] {
        group.handle_progress(A, lease.id, steps.into(), ms(u64::from(steps)));
        assert_eq!(group.poll_timeout() > deadline, is_progress, "{steps} env steps");
        deadline = group.poll_timeout();
    }
    for (slot, steps) in [(0, 3 * LENGTH), (1, LENGTH - 1)] {
        let receipt = group.handle_fragments(A, lease.id, part(slot, steps), ms(100));
        assert_eq!(receipt.count(FragmentOutcome::Committed), 1);
    }
    let counts = |group: &LeaseGroup| {
        let ledger = group.ledger();
        assert!(ledger.balances());
        [ledger.granted, ledger.committed, ledger.queued, ledger.outstanding]
    };
    assert_eq!(counts(&group), [12 + 3 + 4, 12 + 3, 12 + 3, 4]);
    let receipt = group.handle_fragments(A, lease.id, part(2, 3 * LENGTH + 1), ms(101));
    assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::WrongLength)), 1);
    let again = grant(&mut group, A);
    let receipt = group.handle_fragments(A, again.id, part(2, 5), ms(102));
    assert_eq!((receipt.count(FragmentOutcome::Committed), counts(&group)), (1, [12 + 3 + 4 + 5, 20, 20, 0]));
    let lens: Vec<u64> = group.poll_batch().unwrap().iter().map(SlotFragment::env_steps).collect();
    assert_eq!((lens, group.ledger().consumed, group.ledger().queued), (vec![12, 3, 5], 20, 0));
}

#[test]
fn a_refused_lease_is_granted_again_with_its_state() {
    let mut group = group(1, &[A]);
    let first = grant(&mut group, A);
    deliver(&mut group, A, &first, ms(1));
    let batch = group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    let held = grant(&mut group, A);
    assert_eq!(held.slots[0].source, SlotSource::Held);
    group.handle_refused(A, held.id, "the state of slot 0 is not here", ms(3));
    let said: Vec<String> = events(&mut group).iter().map(ToString::to_string).collect();
    assert_eq!(said, ["lease 1 was refused by worker 1: the state of slot 0 is not here"]);
    let sent = grant(&mut group, A);
    assert_eq!(sent.slots[0].source, SlotSource::State(batch[0].state.clone()));
    deliver(&mut group, A, &sent, ms(4));
    assert_eq!(group.ledger().expired.refused, 4);
}

#[test]
fn worker_gets_leases_after_it_answered_able_and_not_before() {
    let mut group = group(4, &[]);
    group.handle_joined(A, WorkerProfile::NATIVE, ms(0));
    group.handle_joined(B, WorkerProfile::NATIVE, ms(0));
    assert_eq!((group.poll_command(), group.poll_timeout()), (None, None), "no answer is awaited");
    assert_eq!(idle_text(&group, A), "it has not answered whether it can run this");
    assert!(group.handle_answer(B, Ok(()), ms(1)));
    let lease = grant(&mut group, B);
    assert_eq!((slots(&lease), state_of(&group, A)), (vec![0, 1, 2, 3], WorkerState::Unanswered));
    deliver(&mut group, B, &lease, ms(2));
    group.poll_batch().unwrap();
    assert!(group.handle_answer(A, Ok(()), ms(3)));
    assert!(!group.handle_answer(A, Err(inability()), ms(3)), "the first answer counts");
    assert!(!group.handle_answer(C, Ok(()), ms(3)), "this worker was not asked");
    group.begin_iteration(WeightsVersion(1), ms(4)).unwrap();
    assert_eq!((slots(&grant(&mut group, A)), slots(&grant(&mut group, B))), (vec![2, 3], vec![0, 1]));
}

#[test]
fn unable_worker_gets_no_lease_is_not_struck_and_stays() {
    let mut group = group(2, &[A]);
    group.handle_joined(B, WorkerProfile::NATIVE, ms(0));
    assert!(group.handle_answer(B, Err(inability()), ms(0)));
    let lease = grant(&mut group, A);
    assert_eq!((slots(&lease), group.poll_command()), (vec![0, 1], None));
    let unable = "unknown environment: there is no environment 'My-v0'";
    let said: Vec<String> = events(&mut group).iter().map(ToString::to_string).collect();
    assert_eq!(said, [format!("worker 2 cannot run this, and gets no lease of it: {unable}")]);
    // Neither overdue slots nor those of a worker that hangs or left are its.
    for time in [ms(1_000), ms(3_000), ms(9_000)] {
        group.handle_refused(B, lease.id, "no", time);
        group.handle_timeout(time);
    }
    group.handle_left(A, ms(10_000));
    let to_b = |command: &GroupCommand| command.worker() == B;
    assert!(!std::iter::from_fn(|| group.poll_command()).any(|command| to_b(&command)));
    assert_eq!((state_of(&group, B), idle_text(&group, B)), (WorkerState::Unable, unable.into()));
    let all = GroupEvent::AllUnable { workers: 1 };
    assert_eq!(events(&mut group).iter().filter(|event| **event == all).count(), 1);
    // It is said once, until some worker is able.
    group.handle_joined(C, WorkerProfile::NATIVE, ms(10_001));
    group.handle_answer(C, Err(inability()), ms(10_001));
    assert!(!events(&mut group).iter().any(|event| matches!(event, GroupEvent::AllUnable { .. })));
    join(&mut group, A, WorkerProfile::NATIVE, ms(10_002));
    assert_eq!(slots(&grant(&mut group, A)), [0, 1]);
}

#[test]
fn slots_are_spread_over_all_workers_and_the_rest_hear_that_there_are_too_few() {
    let workers: Vec<WorkerId> = (1..=9).map(WorkerId).collect();
    let shares = |group: &mut LeaseGroup, workers: &[WorkerId]| -> Vec<usize> {
        workers.iter().map(|&worker| grant(group, worker).slots.len()).collect()
    };
    let mut six = group(8, &[]);
    workers[..6].iter().for_each(|&worker| join(&mut six, worker, WorkerProfile::NATIVE, ms(0)));
    // The first one got all slots, since the iteration was open.
    let all = grant(&mut six, A);
    deliver(&mut six, A, &all, ms(1));
    six.poll_batch().unwrap();
    six.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    assert_eq!(shares(&mut six, &workers[..6]), [2, 2, 1, 1, 1, 1]);
    assert_eq!(events(&mut six), []);

    // Workers that act for eight environments together are no faster with one or two of them.
    let mut six = LeaseGroup::new(GroupConfig { slots_per_worker: 8, ..GroupConfig::new(8, LENGTH) }).unwrap();
    workers[..6].iter().for_each(|&worker| join(&mut six, worker, WorkerProfile::NATIVE, ms(0)));
    let few = TooFewSlots { slots: 8, workers: 2, slots_per_worker: 8 };
    assert_eq!(events(&mut six), [GroupEvent::TooFewSlots(few)], "once");
    assert_eq!(idle_text(&six, A), "waiting for the learner", "each will have a slot");

    let mut nine = LeaseGroup::new(GroupConfig::new(8, LENGTH)).unwrap();
    workers.iter().for_each(|&worker| join(&mut nine, worker, WorkerProfile::NATIVE, ms(0)));
    assert_eq!(idle_text(&nine, A), "waiting for the learner");
    nine.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    assert_eq!(shares(&mut nine, &workers[..8]), [1; 8]);
    let few = TooFewSlots { slots: 8, workers: 9, slots_per_worker: 1 };
    assert_eq!(events(&mut nine), [GroupEvent::TooFewSlots(few)], "once");
    let text = "no free slot: the run has 8 slots for 9 workers that could have 1 each; raise num_slots to 9, or use fewer workers";
    assert_eq!((idle_text(&nine, workers[8]), idle(&nine, A)), (text.into(), None));
    nine.pause();
    assert_eq!(idle_text(&nine, workers[8]), "the run is paused");
    nine.stop(ms(1));
    assert_eq!(idle_text(&nine, workers[8]), "the run is over");
}

#[test]
fn idle_worker_says_what_it_waits_for() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    deliver(&mut group, A, &a, ms(1));
    assert_eq!((idle_text(&group, A), idle(&group, B)), ("waiting for other workers".into(), None));
    deliver(&mut group, B, &b, ms(2));
    assert_eq!(idle_text(&group, A), "waiting for the learner");
    group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(3)).unwrap();
    assert_eq!((state_of(&group, A), idle_text(&group, A)), (WorkerState::Sampling, "waiting for weights".into()));
    group.handle_weights_applied(A, WeightsVersion(1));
    assert_eq!(idle(&group, A), None);
    group.handle_timeout(ms(3_003));
    assert_eq!((state_of(&group, B), idle_text(&group, B)), (WorkerState::Hung, "no progress for 3000.000 ms".into()));
    for number in 0..3 {
        group.handle_invalid(A, LeaseId(number), ms(3_004));
    }
    assert_eq!(idle_text(&group, A), "it failed three times in a row");
}

#[test]
fn three_failures_in_a_row_are_enough() {
    let mut group = group(1, &[A]);
    for round in 0..2 {
        let lease = grant(&mut group, A);
        group.handle_refused(A, lease.id, "no", ms(round));
    }
    let good = grant(&mut group, A);
    deliver(&mut group, A, &good, ms(5));
    group.poll_batch();
    group.begin_iteration(WeightsVersion(1), ms(6)).unwrap();
    let lease = grant(&mut group, A);
    group.handle_refused(A, lease.id, "no", ms(7));
    let lease = grant(&mut group, A);
    group.handle_invalid(A, lease.id, ms(8));
    let lease = grant(&mut group, A);
    events(&mut group);
    group.handle_refused(A, lease.id, "no", ms(9));
    assert_eq!(group.poll_command(), None);
    assert_eq!(
        events(&mut group).pop(),
        Some(GroupEvent::WorkerQuarantined { worker: A, cause: QuarantineCause::Failures })
    );
    assert_eq!((group.ledger().rejected.corrupt, group.ledger().expired.refused), (4, 16));
    assert_eq!(group.poll_timeout(), None);
}

#[test]
fn a_worker_that_comes_back_under_its_old_id_holds_nothing() {
    let mut group = group(1, &[A]);
    let first = grant(&mut group, A);
    deliver(&mut group, A, &first, ms(1));
    let batch = group.poll_batch().unwrap();
    join(&mut group, A, WorkerProfile::NATIVE, ms(2));
    group.begin_iteration(WeightsVersion(1), ms(3)).unwrap();
    assert_eq!(grant(&mut group, A).slots[0].source, SlotSource::State(batch[0].state.clone()));
}

#[test]
fn lease_not_yet_sent_expires_when_its_worker_leaves() {
    let mut group = group(1, &[A]);
    group.handle_left(A, ms(1));
    assert_eq!(group.poll_command(), None);
    assert_eq!(group.ledger().expired.left, 4);
}

#[test]
fn a_worker_holds_the_states_of_its_latest_lease_only() {
    let mut group = group(2, &[A, B]);
    let a = grant(&mut group, A);
    group.handle_left(B, ms(1));
    deliver(&mut group, A, &a, ms(2));
    // The group had B's grant queued: it is gone with B.
    let rest = grant(&mut group, A);
    deliver(&mut group, A, &rest, ms(3));
    let batch = group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(4)).unwrap();
    let sources: Vec<SlotSource> = grant(&mut group, A).slots.into_iter().map(|leased| leased.source).collect();
    assert_eq!(sources, [SlotSource::State(batch[0].state.clone()), SlotSource::Held]);
}

#[test]
fn a_worker_that_joins_gets_slots_in_the_next_iteration() {
    let mut group = group(4, &[A]);
    let all = grant(&mut group, A);
    join(&mut group, B, WorkerProfile::NATIVE, ms(1));
    assert_eq!((group.poll_command(), state_of(&group, B)), (None, WorkerState::Idle));
    deliver(&mut group, A, &all, ms(10));
    let batch = group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(20)).unwrap();
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert_eq!((slots(&a), slots(&b)), (vec![0, 1], vec![2, 3]));
    assert!(a.slots.iter().all(|leased| leased.source == SlotSource::Held));
    assert_eq!(b.slots[1].source, SlotSource::State(batch[3].state.clone()));
}

#[test]
fn a_paused_group_lets_leases_finish_and_grants_nothing() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    group.pause();
    assert!(group.is_paused());
    group.handle_left(B, ms(5));
    deliver(&mut group, A, &a, ms(10));
    assert_eq!((group.poll_command(), group.poll_timeout()), (None, None));
    group.resume(ms(60_000));
    let rest = grant(&mut group, A);
    assert_eq!(slots(&rest), slots(&b));
    deliver(&mut group, A, &rest, ms(60_010));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(2, LENGTH, 1)[0]);
}

#[test]
fn a_removed_worker_finishes_its_lease_and_is_dismissed() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert!(group.remove_worker(A, ms(1)) && group.remove_worker(A, ms(1)));
    assert_eq!((state_of(&group, A), group.poll_command()), (WorkerState::Leaving, None));
    deliver(&mut group, A, &a, ms(2));
    assert_eq!(group.poll_command(), Some(GroupCommand::Dismiss { worker: A }));
    deliver(&mut group, B, &b, ms(3));
    group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(4)).unwrap();
    assert_eq!(slots(&grant(&mut group, B)), [0, 1]);
    group.handle_left(A, ms(5));
    assert_eq!((group.poll_command(), group.workers(ms(5)).count()), (None, 1));
    assert!(!group.remove_worker(A, ms(6)));
}

#[test]
fn a_removed_worker_that_hangs_is_dismissed_at_its_deadline() {
    let mut group = group(1, &[A]);
    let lease = grant(&mut group, A);
    group.remove_worker(A, ms(1));
    group.handle_timeout(ms(3_000));
    assert_eq!(group.poll_command(), Some(GroupCommand::Revoke { worker: A, lease: lease.id }));
    assert_eq!(group.poll_command(), Some(GroupCommand::Dismiss { worker: A }));
    assert_eq!(group.poll_timeout(), None);
}

#[test]
fn a_stopped_group_takes_everything_back() {
    let mut group = group(2, &[A, B]);
    let (a, _) = (grant(&mut group, A), grant(&mut group, B));
    group.stop(ms(1));
    let revoked: Vec<GroupCommand> = std::iter::from_fn(|| group.poll_command()).collect();
    assert_eq!(revoked.len(), 2);
    assert_eq!(revoked[0], GroupCommand::Revoke { worker: A, lease: a.id });
    let receipt = group.handle_fragments(A, a.id, make(&a), ms(2));
    assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Late)), 1);
    group.resume(ms(3));
    assert_eq!((group.poll_command(), group.poll_timeout(), group.poll_batch()), (None, None, None));
    assert_eq!(group.begin_iteration(WeightsVersion(1), ms(4)), Err(BeginError::Stopped));
    assert_eq!((group.ledger().expired.revoked, group.ledger().outstanding), (8, 0));
}

#[test]
fn a_lease_that_was_never_sent_is_never_revoked() {
    let mut group = group(1, &[A]);
    group.stop(ms(0));
    assert_eq!(group.poll_command(), None);
}

#[test]
fn a_later_run_goes_on_with_the_lease_ids() {
    let mut first = group(1, &[A]);
    let used = grant(&mut first, A).id;
    let config = GroupConfig { first_lease: first.next_lease_id(), ..GroupConfig::new(1, LENGTH) };
    let mut second = LeaseGroup::new(config).unwrap();
    join(&mut second, A, WorkerProfile::NATIVE, ms(0));
    second.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    assert!(grant(&mut second, A).id > used);
}

#[test]
fn shares_follow_measured_speed_and_the_slowest_is_tried_again_now_and_then() {
    let mut group = group(8, &[A, B]);
    let mut shares = Vec::new();
    for iteration in 0..12u64 {
        let start = ms(iteration * 1_000);
        let (mut share_a, mut share_b) = (0, 0);
        let mut leases: Vec<(WorkerId, Lease)> = Vec::new();
        while let Some(GroupCommand::Grant { worker, lease }) = group.poll_command() {
            *if worker == A { &mut share_a } else { &mut share_b } = lease.slots.len();
            leases.push((worker, lease));
        }
        for (worker, lease) in leases {
            let per_slot = if worker == A { 1 } else { 20 };
            deliver(&mut group, worker, &lease, start + ms(per_slot * lease.slots.len() as u64));
        }
        shares.push((share_a, share_b));
        group.poll_batch().unwrap();
        group.begin_iteration(WeightsVersion(iteration + 1), start + ms(1_000)).unwrap();
    }
    assert_eq!(shares[0], (4, 4));
    assert_eq!(shares[1..8], [(8, 0); 7]);
    assert_eq!(shares[8], (7, 1), "measured again after eight iterations");
    assert_eq!(shares[9], (8, 0));
}

#[test]
fn getters_tell_what_people_want_to_see() {
    let mut group = group(2, &[A]);
    let lease = grant(&mut group, A);
    let status = group.workers(ms(0)).next().unwrap();
    assert_eq!((status.state, status.slots, status.env_steps), (WorkerState::Sampling, 2, 0));
    assert_eq!(status.weights_version, None, "it has not said so");
    assert_eq!(group.fragment(), Some(FragmentNo(0)));
    deliver(&mut group, A, &lease, ms(500));
    let status = group.workers(ms(1_000)).next().unwrap();
    assert_eq!((status.state, status.slots, status.env_steps), (WorkerState::Idle, 0, 8));
    assert_eq!(status.env_steps_per_s, 8.0);
}

//! The group's guarantees while two iterations are open, one situation at a time.

use rollmesh_core::{
    batch::SlotFragment,
    group::{
        BeginError, FragmentOutcome, GroupCommand, GroupConfig, LeaseGroup, RejectReason, WorkerProfile, WorkerState,
    },
    ids::{FragmentNo, LeaseId, WeightsVersion, WorkerId},
    lease::{Lease, SlotSource},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{calm_batches_of, flip_a_reward_bit},
    join,
};

const LENGTH: u32 = 4;
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const FIRST: WeightsVersion = WeightsVersion(0);

fn ms(millis: u64) -> Micros {
    Micros::from_millis(millis)
}

/// Returns a group with these workers, whose first two iterations began at 0 ms, and its leases: those of the first
/// iteration first, in slot order.
fn group(num_slots: u32, workers: &[WorkerId]) -> (LeaseGroup, Vec<Lease>) {
    let mut group = LeaseGroup::new(GroupConfig::new(num_slots, LENGTH)).unwrap();
    for &worker in workers {
        join(&mut group, worker, WorkerProfile::NATIVE, ms(0));
    }
    group.begin_iteration(FIRST, ms(0)).unwrap();
    group.begin_iteration(FIRST, ms(0)).unwrap();
    let leases = grants(&mut group);
    assert_eq!(leases.len(), 2 * workers.len());
    (group, leases)
}

/// Returns the leases that the group grants now.
#[track_caller]
fn grants(group: &mut LeaseGroup) -> Vec<Lease> {
    let lease = |command| match command {
        GroupCommand::Grant { lease, .. } => lease,
        other => panic!("no grant: {other:?}"),
    };
    commands(group).into_iter().map(lease).collect()
}

fn commands(group: &mut LeaseGroup) -> Vec<GroupCommand> {
    std::iter::from_fn(|| group.poll_command()).collect()
}

fn revoke(worker: WorkerId, lease: &Lease) -> GroupCommand {
    GroupCommand::Revoke { worker, lease: lease.id }
}

fn slots(lease: &Lease) -> Vec<u32> {
    lease.slots.iter().map(|leased| leased.slot.0).collect()
}

fn is_held(lease: &Lease) -> bool {
    lease.slots.iter().all(|leased| leased.source == SlotSource::Held)
}

fn calm(num_slots: u32, iterations: u64) -> Vec<Vec<SlotFragment>> {
    calm_batches_of(num_slots, LENGTH, iterations, u64::MAX)
}

/// Returns the fragments of an honest worker for a lease.
fn make(lease: &Lease) -> Vec<SlotFragment> {
    let calm = calm(64, lease.fragment.0 + 1);
    lease.slots.iter().map(|leased| calm[lease.fragment.0 as usize][leased.slot.0 as usize].clone()).collect()
}

#[track_caller]
fn deliver(group: &mut LeaseGroup, worker: WorkerId, lease: &Lease, now: Micros) {
    let receipt = group.handle_fragments(worker, lease.id, make(lease), now);
    assert_eq!(receipt.count(FragmentOutcome::Committed), lease.slots.len(), "{receipt:?}");
}

#[test]
fn behind_a_lease_waits_the_next_fragment_of_its_slots() {
    let (mut group, leases) = group(4, &[A, B]);
    let [a0, b0, a1, b1] = &leases[..] else { panic!("{leases:?}") };
    assert_eq!((slots(a1), slots(b1)), (slots(a0), slots(b0)));
    assert!(a1.is_follow_up_of(a0) && b1.is_follow_up_of(b0) && is_held(a1));
    assert_eq!(group.ledger().outstanding, 2 * 4 * u64::from(LENGTH));
    assert_eq!(group.open_iterations(), 2);
    assert_eq!(group.begin_iteration(FIRST, ms(0)), Err(BeginError::Unfinished(FragmentNo(0))), "a third one");

    deliver(&mut group, A, a0, ms(1));
    deliver(&mut group, A, a1, ms(2));
    assert_eq!((group.poll_batch(), commands(&mut group)), (None, vec![]), "A waits: it is two ahead");
    deliver(&mut group, B, b0, ms(3));
    assert_eq!(group.poll_batch().unwrap(), calm(4, 2)[0]);
    assert_eq!(group.poll_batch(), None);
    assert_eq!(group.fragment(), Some(FragmentNo(1)));

    assert_eq!(group.begin_iteration(FIRST, ms(4)), Ok(FragmentNo(2)));
    let third = grants(&mut group);
    let [a2, b2] = &third[..] else { panic!("{third:?}") };
    assert_eq!((slots(a2), slots(b2)), (slots(a0), slots(b0)));
    assert!(is_held(a2) && b2.is_follow_up_of(b1), "A begins immediately, B continues with it");
    deliver(&mut group, B, b1, ms(5));
    assert_eq!(group.poll_batch().unwrap(), calm(4, 2)[1]);
    deliver(&mut group, B, b2, ms(6));
    deliver(&mut group, A, a2, ms(6));
    assert_eq!(group.poll_batch().unwrap(), calm(4, 3)[2]);
    assert_eq!((group.open_iterations(), group.ledger().granted), (0, group.ledger().committed));
}

#[test]
fn iterations_with_other_weights_wait_for_each_other() {
    let (mut group, leases) = group(2, &[A]);
    deliver(&mut group, A, &leases[0], ms(10));
    assert!(group.poll_batch().is_some());
    assert!(group.may_begin(FIRST) && !group.may_begin(WeightsVersion(1)));
    assert_eq!(group.begin_iteration(WeightsVersion(1), ms(10)), Err(BeginError::Unfinished(FragmentNo(1))));
    deliver(&mut group, A, &leases[1], ms(20));
    assert_eq!(group.fragment(), None, "all that is open waits to be taken");
    assert!(group.poll_batch().is_some() && group.may_begin(WeightsVersion(1)));
}

#[test]
fn batches_come_in_order_even_if_both_are_complete() {
    let (mut group, leases) = group(2, &[A]);
    deliver(&mut group, A, &leases[0], ms(10));
    deliver(&mut group, A, &leases[1], ms(20));
    assert_eq!([group.poll_batch().unwrap(), group.poll_batch().unwrap()], calm(2, 2)[..]);
}

#[test]
fn the_time_of_a_follow_up_runs_from_the_end_of_the_lease_before() {
    let (mut group, leases) = group(1, &[A]);
    assert_eq!(group.poll_timeout(), Some(ms(3_000)));
    group.handle_progress(A, leases[0].id, 2, ms(2_000));
    deliver(&mut group, A, &leases[0], ms(4_000));
    assert_eq!(group.poll_timeout(), Some(ms(7_000)));
    group.handle_timeout(ms(7_000));
    assert_eq!(group.ledger().expired.timed_out, u64::from(LENGTH));
    assert_eq!(commands(&mut group), [revoke(A, &leases[1])]);
}

#[test]
fn a_follow_up_ends_with_a_lease_that_times_out() {
    let (mut group, leases) = group(1, &[A]);
    group.handle_timeout(ms(3_000));
    assert_eq!(commands(&mut group), [revoke(A, &leases[0]), revoke(A, &leases[1])]);
    let expired = group.ledger().expired;
    assert_eq!((expired.timed_out, expired.revoked), (4, 4));
    let late = group.handle_fragments(A, leases[1].id, make(&leases[1]), ms(3_001));
    assert_eq!(late.count(FragmentOutcome::Rejected(RejectReason::Late)), 1);
    let again = grants(&mut group);
    let [first, second] = &again[..] else { panic!("{again:?}") };
    assert_eq!((first.fragment, first.slots[0].source.clone()), (FragmentNo(0), SlotSource::New));
    assert!(second.is_follow_up_of(first));
}

#[test]
fn a_follow_up_ends_with_its_worker() {
    let (mut group, leases) = group(2, &[A]);
    group.handle_left(A, ms(5));
    assert_eq!((commands(&mut group), group.ledger().expired.left), (vec![], 16));
    join(&mut group, B, WorkerProfile::NATIVE, ms(6));
    for lease in grants(&mut group) {
        assert!(lease.id > leases[1].id);
        deliver(&mut group, B, &lease, ms(9));
    }
    assert_eq!([group.poll_batch().unwrap(), group.poll_batch().unwrap()], calm(2, 2)[..]);
}

#[test]
fn a_follow_up_ends_with_a_lease_that_is_refused_or_cannot_be_read() {
    for is_refused in [true, false] {
        let (mut group, leases) = group(1, &[A]);
        match is_refused {
            true => group.handle_refused(A, leases[0].id, "no", ms(1)),
            false => group.handle_invalid(A, leases[0].id, ms(1)),
        }
        let ledger = group.ledger();
        let first = if is_refused { ledger.expired.refused } else { ledger.rejected.corrupt };
        assert_eq!((first, ledger.expired.revoked), (4, 4));
        let said = commands(&mut group);
        let [taken_back, GroupCommand::Grant { lease: first, .. }, GroupCommand::Grant { lease: second, .. }] =
            &said[..]
        else {
            panic!("{said:?}")
        };
        assert_eq!(*taken_back, revoke(A, &leases[1]));
        assert!(second.is_follow_up_of(first) && first.slots[0].source == SlotSource::New);
    }
}

#[test]
fn a_follow_up_ends_with_a_lease_that_another_worker_was_faster_with() {
    let (mut group, leases) = group(2, &[A]);
    join(&mut group, B, WorkerProfile::NATIVE, ms(100));
    group.handle_timeout(ms(200));
    let hedge = grants(&mut group).remove(0);
    assert_eq!((slots(&hedge), hedge.fragment), (vec![0, 1], FragmentNo(0)));
    deliver(&mut group, B, &hedge, ms(250));
    let said = commands(&mut group);
    assert_eq!(said[..2], [revoke(A, &leases[0]), revoke(A, &leases[1])]);
    let ledger = group.ledger();
    assert_eq!((ledger.superseded, ledger.expired.revoked), (8, 8));
    assert_eq!(group.poll_batch().unwrap(), calm(2, 1)[0]);
    // A's slots are free for every worker.
    for command in said.into_iter().skip(2) {
        let GroupCommand::Grant { worker, lease } = command else { panic!("{command:?}") };
        deliver(&mut group, worker, &lease, ms(300));
    }
    assert_eq!(group.poll_batch().unwrap(), calm(2, 2)[1]);
}

#[test]
fn follow_up_continues_if_its_lease_beats_the_hedge() {
    let (mut group, leases) = group(2, &[A]);
    join(&mut group, B, WorkerProfile::NATIVE, ms(100));
    group.handle_timeout(ms(200));
    let hedge = grants(&mut group).remove(0);
    deliver(&mut group, A, &leases[0], ms(250));
    assert_eq!(commands(&mut group), [revoke(B, &hedge)]);
    assert!(group.poll_batch().is_some());
    let mut odd = make(&hedge);
    flip_a_reward_bit(&mut odd[1]);
    group.handle_fragments(B, hedge.id, odd, ms(255));
    let state = group.workers(ms(255)).find(|status| status.worker == B).map(|status| status.state);
    assert_eq!(state, Some(WorkerState::Quarantined), "a late loser is compared as long as it can be");
    deliver(&mut group, A, &leases[1], ms(260));
    assert_eq!(group.poll_batch().unwrap(), calm(2, 2)[1]);
}

#[test]
fn upload_before_its_turn_is_refused_and_recomputed() {
    let (mut group, leases) = group(1, &[A]);
    let early = group.handle_fragments(A, leases[1].id, make(&leases[1]), ms(5));
    assert_eq!(early.count(FragmentOutcome::Rejected(RejectReason::Early)), 1);
    assert_eq!(group.ledger().rejected.early, u64::from(LENGTH));
    assert_eq!(commands(&mut group), [], "its state is unknown: no other lease waits behind this one");
    deliver(&mut group, A, &leases[0], ms(6));
    let again = grants(&mut group);
    assert_eq!(again[0].slots[0].source, SlotSource::State(make(&leases[0])[0].state.clone()));
    deliver(&mut group, A, &again[0], ms(7));
    assert_eq!([group.poll_batch().unwrap(), group.poll_batch().unwrap()], calm(1, 2)[..]);
}

#[test]
fn refused_follow_up_is_re_granted_with_its_state() {
    let (mut group, leases) = group(1, &[A]);
    group.handle_refused(A, leases[1].id, "no", ms(5));
    assert_eq!((commands(&mut group), group.ledger().expired.refused), (vec![], 4));
    deliver(&mut group, A, &leases[0], ms(6));
    let again = grants(&mut group).remove(0);
    assert_eq!((again.fragment, is_held(&again)), (FragmentNo(1), false));
}

#[test]
fn a_lease_that_comes_only_in_part_has_no_follow_up() {
    let (mut group, leases) = group(2, &[A]);
    let mut part = make(&leases[0]);
    part.pop();
    group.handle_fragments(A, leases[0].id, part, ms(5));
    assert_eq!(commands(&mut group), []);
    group.handle_refused(A, leases[0].id, "no", ms(6));
    assert_eq!(group.ledger().expired.revoked, 8);
    let said = commands(&mut group);
    assert_eq!(said[0], revoke(A, &leases[1]));
    assert!(matches!(&said[1..], [GroupCommand::Grant { lease, .. }] if slots(lease) == [1]), "{said:?}");
}

#[test]
fn a_pause_lets_follow_ups_finish_and_a_stop_takes_them_back() {
    let (mut group, leases) = group(1, &[A]);
    group.pause();
    deliver(&mut group, A, &leases[0], ms(5));
    assert!(group.poll_batch().is_some());
    group.begin_iteration(FIRST, ms(6)).unwrap();
    assert_eq!(commands(&mut group), []);
    group.resume(ms(7));
    let third = grants(&mut group).remove(0);
    assert!(third.is_follow_up_of(&leases[1]));
    group.stop(ms(8));
    assert_eq!(commands(&mut group), [revoke(A, &leases[1]), revoke(A, &third)]);
    assert_eq!((group.ledger().outstanding, group.ledger().expired.revoked), (0, 8));
    assert!(!group.may_begin(FIRST));
}

#[test]
fn a_removed_worker_finishes_its_lease_but_not_the_one_behind_it() {
    let (mut group, leases) = group(1, &[A]);
    group.remove_worker(A, ms(5));
    assert_eq!(commands(&mut group), [revoke(A, &leases[1])]);
    group.handle_refused(A, leases[1].id, "no", ms(6));
    deliver(&mut group, A, &leases[0], ms(7));
    assert_eq!(commands(&mut group), [GroupCommand::Dismiss { worker: A }]);
    assert!(group.poll_batch().is_some());
}

#[test]
fn divergent_worker_loses_its_follow_up() {
    let (mut group, leases) = group(2, &[A]);
    let mut twice = make(&leases[0]);
    let mut other = twice[0].clone();
    flip_a_reward_bit(&mut other);
    twice.push(other);
    group.handle_fragments(A, leases[0].id, twice, ms(5));
    assert!(group.workers(ms(5)).all(|status| status.state == WorkerState::Quarantined));
    assert_eq!(commands(&mut group), [revoke(A, &leases[1])]);
    assert_eq!((group.ledger().outstanding, group.ledger().expired.revoked), (0, 8));
}

#[test]
fn a_newcomer_gets_its_share_with_the_next_iteration() {
    let (mut group, leases) = group(4, &[A]);
    deliver(&mut group, A, &leases[0], ms(10));
    assert!(group.poll_batch().is_some());
    join(&mut group, B, WorkerProfile::NATIVE, ms(11));
    group.begin_iteration(FIRST, ms(12)).unwrap();
    assert_eq!(commands(&mut group), [], "the split changes, so nothing waits behind A's lease");
    deliver(&mut group, A, &leases[1], ms(20));
    let third = grants(&mut group);
    let split: Vec<Vec<u32>> = third.iter().map(slots).collect();
    assert_eq!(split, [vec![0, 1], vec![2, 3]]);
    assert_eq!(third[0].id, LeaseId(2));
}

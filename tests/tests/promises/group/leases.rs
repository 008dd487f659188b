//! The group's guarantees, one situation at a time. The simulator in `sim` mixes them.

mod ends;
mod hedges;
mod idle;

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

/// Returns a group with these workers, whose first iteration began at 0 ms.
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

/// Returns the fragments of an honest worker for a lease of the calm run.
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
fn hung_worker_is_detected_at_its_deadline_and_recovers_with_its_next_message() {
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
    // Reports may exceed the granted steps, up to twice their maximum; only reports within this limit move the
    // deadline.
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
fn refused_lease_is_re_granted_with_its_state() {
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
fn a_worker_holds_the_states_of_its_latest_lease_only() {
    let mut group = group(2, &[A, B]);
    let a = grant(&mut group, A);
    group.handle_left(B, ms(1));
    deliver(&mut group, A, &a, ms(2));
    // The queued grant for B was dropped with B.
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
fn a_lease_that_was_never_sent_is_never_revoked() {
    let mut group = group(1, &[A]);
    group.stop(ms(0));
    assert_eq!(group.poll_command(), None);
}

#[test]
fn later_run_continues_the_lease_ids() {
    let mut first = group(1, &[A]);
    let used = grant(&mut first, A).id;
    let config = GroupConfig { first_lease: first.next_lease_id(), ..GroupConfig::new(1, LENGTH) };
    let mut second = LeaseGroup::new(config).unwrap();
    join(&mut second, A, WorkerProfile::NATIVE, ms(0));
    second.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    assert!(grant(&mut second, A).id > used);
}

#[test]
fn shares_follow_measured_speed_and_the_slowest_worker_is_remeasured_periodically() {
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
fn getters_report_worker_state_and_progress() {
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

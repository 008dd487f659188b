//! The group's handling of failed fragments, one situation at a time.

use rollmesh_core::{
    batch::SlotFragment,
    group::{
        AuditPolicy, FragmentOutcome, GroupCommand, GroupConfig, GroupEvent, LeaseGroup, Principal, RejectReason,
        SamplingMode, WorkerProfile, WorkerState,
    },
    ids::{SlotId, WeightsVersion, WorkerId},
    lease::{FailedStep, Lease, SlotSource},
    protocol::{FailureKind, FragmentFailure},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{calm_batches, flip_a_reward_bit},
    join,
};

const LENGTH: u32 = 4;
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn ms(millis: u64) -> Micros {
    Micros::from_millis(millis)
}

/// Returns a group with these workers, whose first iteration began at 0 ms.
fn group(num_slots: u32, workers: &[WorkerId]) -> LeaseGroup {
    let mut group = LeaseGroup::new(GroupConfig::new(num_slots, LENGTH)).unwrap();
    begin(&mut group, workers);
    group
}

fn begin(group: &mut LeaseGroup, workers: &[WorkerId]) {
    for &worker in workers {
        join(group, worker, WorkerProfile::NATIVE, ms(0));
    }
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
}

/// Takes the next command, which must grant a lease of these slots to this worker.
#[track_caller]
fn grant(group: &mut LeaseGroup, to: WorkerId, slots: &[u32]) -> Lease {
    match group.poll_command() {
        Some(GroupCommand::Grant { worker, lease }) => {
            let granted: Vec<u32> = lease.slots.iter().map(|leased| leased.slot.0).collect();
            assert_eq!((worker, &granted[..]), (to, slots));
            lease
        }
        other => panic!("no grant to worker {to}: {other:?}"),
    }
}

/// Uploads the fragments of some slots of a lease.
fn deliver(group: &mut LeaseGroup, worker: WorkerId, lease: &Lease, slots: &[u32], now: Micros) {
    let calm = calm_batches(16, LENGTH, lease.fragment.0 + 1);
    let made = |slot: &u32| calm[lease.fragment.0 as usize][*slot as usize].clone();
    let made: Vec<SlotFragment> = slots.iter().map(made).collect();
    let receipt = group.handle_fragments(worker, lease.id, made, now);
    assert_eq!(receipt.count(FragmentOutcome::Committed), slots.len(), "{receipt:?}");
}

fn failure(slot: u32, t: u32) -> FragmentFailure {
    FragmentFailure::new(FailureKind::Env, Some(SlotId(slot)), (3, t), "the environment failed: no fuel")
}

fn fatal(group: &LeaseGroup) -> Option<String> {
    assert!(group.ledger().balances(), "{:?}", group.ledger());
    group.fatal_failure().map(ToString::to_string)
}

#[test]
fn failed_fragment_is_re_granted_to_another_worker_while_other_slots_continue() {
    let mut group = group(4, &[A, B]);
    let (a, b) = (grant(&mut group, A, &[0, 1]), grant(&mut group, B, &[2, 3]));
    group.handle_failed(A, a.id, failure(1, 7), ms(1));
    assert_eq!(group.poll_command(), None, "B works, and A has failed");
    deliver(&mut group, A, &a, &[0], ms(2));
    assert_eq!(group.poll_command(), None, "A is idle, and waits for B");
    deliver(&mut group, B, &b, &[2, 3], ms(3));
    let again = grant(&mut group, B, &[1]);
    assert_eq!(again.slots[0].source, SlotSource::New);
    deliver(&mut group, B, &again, &[1], ms(4));
    assert_eq!(group.poll_batch().unwrap(), calm_batches(4, LENGTH, 1)[0]);
    let expired = u64::from(LENGTH);
    assert_eq!((group.ledger().expired.refused, fatal(&group), group.failures().0), (expired, None, 1));
    let events: Vec<GroupEvent> = std::iter::from_fn(|| group.poll_event()).collect();
    assert_eq!(events, [GroupEvent::FragmentFailed { worker: A, failure: failure(1, 7) }]);
    // A still holds the state of the slot that it has delivered.
    group.begin_iteration(WeightsVersion(1), ms(5)).unwrap();
    let next = grant(&mut group, A, &[0, 2]);
    assert!(matches!(next.slots[0].source, SlotSource::Held), "{next:?}");
    assert!(matches!(next.slots[1].source, SlotSource::State(_)), "{next:?}");
}

#[test]
fn repeated_failure_is_fatal_and_stops_grants() {
    for workers in [&[A][..], &[A, B]] {
        let mut group = group(2, workers);
        let mut on = A;
        let mut lease = grant(&mut group, A, if workers.len() == 1 { &[0, 1] } else { &[0] });
        if let [_, other] = workers {
            let theirs = grant(&mut group, *other, &[1]);
            deliver(&mut group, *other, &theirs, &[1], ms(1));
            on = *other;
        }
        group.handle_failed(A, lease.id, failure(0, 7), ms(1));
        if workers.len() == 1 {
            deliver(&mut group, A, &lease, &[1], ms(1));
        }
        lease = grant(&mut group, on, &[0]);
        assert_eq!(fatal(&group), None);
        group.handle_failed(on, lease.id, failure(0, 7), ms(2));
        let text = "slot 0, episode 3, step 7: the environment failed: no fuel; it failed again in the same way when it was \
                    tried again";
        assert_eq!(fatal(&group).as_deref(), Some(text));
        assert_eq!((group.poll_command(), group.failures().0), (None, 2));
        let is_idle = |state| state == WorkerState::Idle;
        assert!(group.workers(ms(2)).all(|worker| is_idle(worker.state)), "no strikes");
    }
}

#[test]
fn five_failures_of_one_fragment_in_a_row_are_fatal_and_a_commit_ends_the_row() {
    let mut group = group(1, &[A]);
    for iteration in 0..2 {
        for t in 0..4 {
            let lease = grant(&mut group, A, &[0]);
            group.handle_failed(A, lease.id, failure(0, t), ms(1));
            assert_eq!(fatal(&group), None);
        }
        if iteration == 0 {
            let lease = grant(&mut group, A, &[0]);
            deliver(&mut group, A, &lease, &[0], ms(2));
            assert!(group.poll_batch().is_some());
            group.begin_iteration(WeightsVersion(1), ms(3)).unwrap();
        }
    }
    let lease = grant(&mut group, A, &[0]);
    group.handle_failed(A, lease.id, failure(0, 9), ms(4));
    let text = fatal(&group).unwrap();
    assert!(
        text.ends_with("step 9: the environment failed: no fuel; 5 attempts at this fragment have failed in a row"),
        "{text}"
    );
    assert_eq!((group.failures().0, group.failures().1.count()), (9, 9));
}

const C: WorkerId = WorkerId(3);

/// A group of one slot whose failed environments are restarted.
fn restarting(workers: &[WorkerId]) -> LeaseGroup {
    let config = GroupConfig { restart_failed: true, ..GroupConfig::new(1, LENGTH) };
    let mut group = LeaseGroup::new(config).unwrap();
    begin(&mut group, workers);
    group
}

/// The steps of episode 3 at which a lease restarts the environment of its slot.
fn restarts(lease: &Lease) -> Vec<u32> {
    lease.slots[0].restarts.iter().map(|&FailedStep { episode, t }| (episode == 3).then_some(t).unwrap()).collect()
}

#[test]
fn environment_is_restarted_where_it_has_failed_twice_and_nowhere_else() {
    let mut group = restarting(&[A, B]);
    let mut granted = Vec::new();
    // Two steps fail for themselves, the later one first, and one by chance.
    for (worker, t) in [(A, 7), (B, 7), (A, 2), (B, 5), (A, 2), (B, 2)] {
        let lease = grant(&mut group, worker, &[0]);
        granted.push(restarts(&lease));
        group.handle_failed(worker, lease.id, failure(0, t), ms(1));
        assert_eq!(fatal(&group), None);
    }
    assert_eq!(granted, [vec![], vec![], vec![7], vec![7], vec![7], vec![7]]);
    let lease = grant(&mut group, A, &[0]);
    assert_eq!(restarts(&lease), [2, 7]);
    let (count, latest) = group.failures();
    let messages: Vec<String> = latest.map(|(worker, failure)| format!("{worker}, {failure}")).collect();
    let expected = [
        "2, slot 0, episode 3, step 7: restarted, since it has failed twice here: the environment failed: no fuel",
        "1, slot 0, episode 3, step 2: the environment failed: no fuel",
        "2, slot 0, episode 3, step 5: the environment failed: no fuel",
        "2, slot 0, episode 3, step 2: restarted, since it has failed twice here: the environment failed: no fuel",
    ];
    assert_eq!((count, &messages[..]), (4, &expected.map(String::from)[..]));
    deliver(&mut group, A, &lease, &[0], ms(2));
    assert!(group.poll_batch().is_some());
    group.begin_iteration(WeightsVersion(1), ms(3)).unwrap();
    assert!(restarts(&grant(&mut group, A, &[0])).is_empty(), "another fragment");
}

#[test]
fn failure_that_a_restart_does_not_end_or_that_is_not_the_environments_is_fatal() {
    let mut group = restarting(&[A]);
    for attempt in 1..=3 {
        let lease = grant(&mut group, A, &[0]);
        group.handle_failed(A, lease.id, failure(0, 7), ms(1));
        assert_eq!(fatal(&group).is_some(), attempt == 3, "{attempt}");
    }
    for kind in [FailureKind::Policy, FailureKind::Callback, FailureKind::Restore, FailureKind::Fragment] {
        let mut group = restarting(&[A]);
        for attempt in 1..=2 {
            let lease = grant(&mut group, A, &[0]);
            let failure = FragmentFailure::new(kind, Some(SlotId(0)), (3, 7), "no");
            group.handle_failed(A, lease.id, failure, ms(1));
            assert_eq!(fatal(&group).is_some(), attempt == 2, "{kind:?}, {attempt}");
        }
    }
    // Five in a row are fatal, counted from the last restart.
    let mut group = restarting(&[A]);
    for t in [1, 2, 3, 3, 4, 5, 6, 7, 8] {
        assert_eq!(fatal(&group), None);
        let lease = grant(&mut group, A, &[0]);
        group.handle_failed(A, lease.id, failure(0, t), ms(1));
    }
    assert!(fatal(&group).unwrap().contains("step 8"), "{:?}", fatal(&group));
}

#[test]
fn lease_that_was_granted_before_a_restart_is_no_evidence_and_is_not_compared() {
    for fails in [true, false] {
        let mut group = restarting(&[A, B, C]);
        let first = grant(&mut group, A, &[0]);
        group.handle_failed(A, first.id, failure(0, 7), ms(1));
        let second = grant(&mut group, B, &[0]);
        // The lease is overdue, and the slot is granted to another worker than the one on which it failed.
        group.handle_timeout(ms(1_000));
        let third = grant(&mut group, C, &[0]);
        group.handle_failed(B, second.id, failure(0, 7), ms(1_001));
        group.handle_timeout(ms(2_500));
        assert_eq!(group.poll_command(), None, "two workers would make different fragments");
        if fails {
            group.handle_failed(C, third.id, failure(0, 7), ms(2_501));
        } else {
            group.handle_timeout(ms(4_500));
        }
        let (worker, fourth) = loop {
            match group.poll_command() {
                Some(GroupCommand::Grant { worker, lease }) => break (worker, lease),
                Some(_) => {}
                None => panic!("the slot is not granted"),
            }
        };
        assert_eq!((restarts(&fourth), group.failures().0, fatal(&group)), (vec![7], 1, None));
        let mut calm = calm_batches(1, LENGTH, 1).remove(0);
        flip_a_reward_bit(&mut calm[0]);
        group.handle_fragments(worker, fourth.id, calm, ms(4_501));
        // The late fragment of a worker that was lucky differs, and that is no forgery.
        if !fails {
            let receipt = group.handle_fragments(C, third.id, calm_batches(1, LENGTH, 1).remove(0), ms(4_502));
            assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Audit)), 0, "{receipt:?}");
        }
        assert!(group.workers(ms(4_503)).all(|worker| worker.state != WorkerState::Quarantined));
    }
}

#[test]
fn audit_restarts_the_environment_where_the_fragments_worker_did() {
    let mut group = restarting(&[B]);
    group.set_audits(AuditPolicy::default(), 1).unwrap();
    for attempt in 1..=2 {
        let lease = grant(&mut group, B, &[0]);
        if attempt == 2 {
            join(&mut group, A, WorkerProfile::NATIVE, ms(0));
            group.distrust(A, Principal(7));
        }
        group.handle_failed(B, lease.id, failure(0, 7), ms(1));
    }
    let lease = grant(&mut group, A, &[0]);
    deliver(&mut group, A, &lease, &[0], ms(2));
    assert!(group.poll_batch().is_some(), "the audit is independent of the batch");
    let audited = group.poll_audit().unwrap().lease();
    assert_eq!((restarts(&audited), restarts(&lease)), (vec![7], vec![7]));
}

#[test]
fn slots_that_do_not_keep_step_fail_alone_too() {
    for mode in [
        SamplingMode::Asynchronous { batch_env_steps: u64::from(LENGTH), max_staleness: 4 },
        SamplingMode::Deadline { after: ms(50), max_staleness: 4 },
    ] {
        let mut group = LeaseGroup::new(GroupConfig { mode, ..GroupConfig::new(2, LENGTH) }).unwrap();
        begin(&mut group, &[A]);
        let lease = grant(&mut group, A, &[0, 1]);
        group.handle_failed(A, lease.id, failure(1, 2), ms(1));
        deliver(&mut group, A, &lease, &[0], ms(2));
        if group.poll_batch().is_some() {
            group.begin_iteration(WeightsVersion(1), ms(3)).unwrap();
        }
        let again = grant(&mut group, A, &[1]);
        assert_eq!(fatal(&group), None);
        group.handle_failed(A, again.id, failure(1, 2), ms(4));
        assert!(fatal(&group).is_some(), "{mode:?}");
    }
}

#[test]
fn slot_whose_leases_hang_is_found_and_is_fatal_after_five() {
    let mut group = group(3, &[A]);
    grant(&mut group, A, &[0, 1, 2]);
    let mut worker = A;
    for tries in 1..=5 {
        let now = ms(3_000 * tries);
        group.handle_timeout(now);
        assert_eq!(fatal(&group).is_some(), tries == 5, "{tries}");
        if tries == 5 {
            break;
        }
        // The worker is ended, and another one takes its place.
        group.handle_left(worker, now);
        worker = WorkerId(worker.0 + 1);
        join(&mut group, worker, WorkerProfile::NATIVE, now);
        match tries {
            1 => _ = grant(&mut group, worker, &[0, 1, 2]),
            2 => {
                for slot in [0, 1] {
                    let alone = grant(&mut group, worker, &[slot]);
                    deliver(&mut group, worker, &alone, &[slot], now);
                }
                grant(&mut group, worker, &[2]);
            }
            _ => _ = grant(&mut group, worker, &[2]),
        }
    }
    assert!(fatal(&group).unwrap().starts_with("slot 2, episode 0, step 0: no progress for 3"), "{:?}", fatal(&group));
}

#[test]
fn slot_whose_worker_crashes_is_found_and_is_fatal_after_five() {
    for is_told_first in [false, true] {
        let mut group = group(2, &[A]);
        grant(&mut group, A, &[0, 1]);
        let mut worker = A;
        for crashes in 1..=5 {
            let now = ms(crashes);
            if is_told_first {
                assert!(group.handle_crashed(worker, "signal: 6", now));
            }
            group.handle_left(worker, now);
            assert!(is_told_first || group.handle_crashed(worker, "signal: 6", now));
            assert_eq!(fatal(&group).is_some(), crashes == 5, "{crashes}");
            if crashes == 5 {
                break;
            }
            worker = WorkerId(worker.0 + 1);
            join(&mut group, worker, WorkerProfile::NATIVE, now);
            match crashes {
                1 => _ = grant(&mut group, worker, &[0, 1]),
                2 => {
                    let alone = grant(&mut group, worker, &[0]);
                    deliver(&mut group, worker, &alone, &[0], now);
                    grant(&mut group, worker, &[1]);
                }
                _ => _ = grant(&mut group, worker, &[1]),
            }
        }
        let text = "slot 1, episode 0, step 0: the worker's process ended (signal: 6) in the fragment that begins here; \
                    5 attempts at this fragment have failed in a row";
        assert_eq!(fatal(&group).unwrap(), text);
    }
}

#[test]
fn worker_that_crashes_without_lease_is_no_evidence() {
    let mut group = group(1, &[A, B]);
    grant(&mut group, A, &[0]);
    group.handle_left(B, ms(1));
    assert!(!group.handle_crashed(B, "signal: 6", ms(1)));
    group.handle_left(A, ms(2));
    assert!(group.handle_crashed(A, "signal: 6", ms(2)));
    assert!(!group.handle_crashed(A, "signal: 6", ms(2)), "it is reported once");
}

#[test]
fn failures_of_untrusted_workers_are_strikes_and_end_no_run() {
    let mut group = group(1, &[]);
    group.set_audits(AuditPolicy::default(), 1).unwrap();
    join(&mut group, A, WorkerProfile::NATIVE, ms(0));
    group.distrust(A, Principal(7));
    for strikes in 1..=3 {
        let lease = grant(&mut group, A, &[0]);
        group.handle_failed(A, lease.id, failure(0, 7), ms(1));
        assert_eq!(fatal(&group), None);
        let state = group.workers(ms(1)).next().unwrap().state;
        assert_eq!(state == WorkerState::Quarantined, strikes == 3);
    }
    join(&mut group, B, WorkerProfile::NATIVE, ms(2));
    while !matches!(group.poll_command(), Some(GroupCommand::Grant { worker: B, .. })) {}
}

#[test]
fn failures_that_concern_no_open_slot_change_nothing() {
    let mut group = group(2, &[A, B]);
    let (a, b) = (grant(&mut group, A, &[0]), grant(&mut group, B, &[1]));
    group.handle_failed(B, a.id, failure(0, 7), ms(1));
    group.handle_failed(A, a.id, failure(1, 7), ms(1));
    for place in [None, Some((SlotId(0), (3, 7)))] {
        let together = FragmentFailure::of_slots(FailureKind::Env, place, "the environment failed: no fuel");
        group.handle_failed(A, a.id, together, ms(1));
    }
    deliver(&mut group, A, &a, &[0], ms(2));
    deliver(&mut group, B, &b, &[1], ms(2));
    assert_eq!((group.failures().0, group.ledger().expired.total(), fatal(&group)), (2, 0, None));
    assert!(group.poll_batch().is_some());
}

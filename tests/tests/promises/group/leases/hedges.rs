//! Overdue leases, which the group hedges with another worker.

use super::*;

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

/// Returns a group of two slots, the first of which worker B has finished instead of A at 210 ms, and A's lease.
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
fn worker_that_hangs_while_others_finish_its_slots_is_detected_and_delays_no_later_iteration() {
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
fn overtaken_worker_is_idle_once_it_has_answered() {
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
    let mut false_fragments = make(&a);
    flip_a_reward_bit(&mut false_fragments[0]);
    let receipt = group.handle_fragments(A, a.id, false_fragments, ms(211));
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
    let mut false_fragments = make(&a);
    flip_a_reward_bit(&mut false_fragments[0]);
    group.handle_fragments(A, a.id, false_fragments, ms(230));
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

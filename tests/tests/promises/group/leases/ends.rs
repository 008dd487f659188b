//! Workers that disconnect, and groups that pause or stop.

use super::*;

#[test]
fn worker_that_reconnects_under_its_old_id_holds_no_states() {
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

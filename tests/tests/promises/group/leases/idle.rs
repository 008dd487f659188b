//! Workers without a lease, and the reasons.

use super::*;

fn inability() -> Inability {
    Inability::new(InabilityKind::UnknownEnv, "there is no environment 'My-v0'")
}

fn idle(group: &LeaseGroup, worker: WorkerId) -> Option<IdleReason<'_>> {
    group.workers(ms(0)).find(|status| status.worker == worker).and_then(|status| status.idle)
}

fn idle_text(group: &LeaseGroup, worker: WorkerId) -> String {
    idle(group, worker).expect("it makes no rows").to_string()
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
    // The worker gets neither overdue slots nor those of a worker that hangs or has disconnected.
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
    // The event is emitted once, until some worker is able.
    group.handle_joined(C, WorkerProfile::NATIVE, ms(10_001));
    group.handle_answer(C, Err(inability()), ms(10_001));
    assert!(!events(&mut group).iter().any(|event| matches!(event, GroupEvent::AllUnable { .. })));
    join(&mut group, A, WorkerProfile::NATIVE, ms(10_002));
    assert_eq!(slots(&grant(&mut group, A)), [0, 1]);
}

#[test]
fn slots_are_spread_over_all_workers_and_surplus_workers_are_notified() {
    let workers: Vec<WorkerId> = (1..=9).map(WorkerId).collect();
    let shares = |group: &mut LeaseGroup, workers: &[WorkerId]| -> Vec<usize> {
        workers.iter().map(|&worker| grant(group, worker).slots.len()).collect()
    };
    let mut six = group(8, &[]);
    workers[..6].iter().for_each(|&worker| join(&mut six, worker, WorkerProfile::NATIVE, ms(0)));
    // The first worker got all slots, since the iteration was open.
    let all = grant(&mut six, A);
    deliver(&mut six, A, &all, ms(1));
    six.poll_batch().unwrap();
    six.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    assert_eq!(shares(&mut six, &workers[..6]), [2, 2, 1, 1, 1, 1]);
    assert_eq!(events(&mut six), []);

    // Workers that batch eight environments are not faster with one or two of them.
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

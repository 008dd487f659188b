//! Health of workers, and how the calls of unhealthy ones end.

use super::*;

const MINUTE: Micros = Micros::from_secs(60);

/// Returns what a caller that waits for workers 1 and 2 sees when something happens to worker 1.
fn when(happens: impl FnOnce(&mut Workers)) -> (Workers, Outcomes) {
    let mut workers = Workers::new(2);
    let set = workers.calls.foreach(ask(), Micros(0)).unwrap();
    assert_eq!(workers.calls.foreach_async(ask().workers(ids(&[1])), Some("tag"), Micros(0)), Ok(1));
    happens(&mut workers);
    workers.work();
    let results = outcomes(workers.calls.poll_results(set).unwrap());
    (workers, results)
}

#[test]
fn call_of_a_removed_worker_answers_with_an_error() {
    let (mut workers, results) = when(|workers| workers.calls.handle_left(WorkerId(1)));
    let lost = CallError::Lost(UnhealthyCause::Left);
    assert_eq!(results, [(1, Err(lost.clone())), (2, Ok(1))]);
    let fetched = workers.calls.fetch_ready_async(&["tag"], true);
    assert_eq!(outcomes(fetched), [(1, Err(lost))]);
    assert_eq!((workers.healthy(), workers.calls.counters().lost), (vec![2], 2));
    assert_eq!(workers.events(), ["worker 1 is unhealthy: it has disconnected"]);

    // A disconnected worker can neither be called nor be healthy.
    let not_there = [(1, Err(CallError::NotThere)), (2, Ok(2))];
    assert_eq!(workers.foreach(ask().healthy_only(false)), not_there);
    assert_eq!(workers.calls.foreach_async(ask().healthy_only(false), None, Micros(0)), Ok(1));
    assert_eq!(workers.calls.set_worker_state(WorkerId(1), true), Err(ForEachError::NotThere(WorkerId(1))));
}

/// Creates two workers, of which the first has made one sample, is asked for another, and is silent from then on.
fn sampling() -> (Workers, CallSetId) {
    let mut workers = Workers::new(2);
    workers.now = Micros(1);
    workers.foreach(ForEach::new(Ask::Sample));
    workers.silent.insert(WorkerId(1));
    let set = workers.calls.foreach(ForEach::new(Ask::Sample), workers.now).unwrap();
    workers.work();
    (workers, set)
}

const LEASE: Micros = Micros::from_secs(3);

#[test]
fn worker_without_progress_on_its_lease_is_unhealthy() {
    let (mut workers, set) = sampling();
    assert_eq!(workers.calls.poll_timeout(), Some(Micros(1) + LEASE));
    for _ in 0..5 {
        workers.wait(Micros(LEASE.0 - 1));
        workers.calls.handle_progress(WorkerId(1), workers.now);
    }
    // Earlier progress changes nothing, and an idle worker need not make any.
    workers.wait(Micros(LEASE.0 - 1));
    workers.calls.handle_progress(WorkerId(1), Micros(2));
    assert_eq!(workers.healthy(), [1, 2]);
    workers.wait(Micros(1));
    let results = outcomes(workers.calls.poll_results(set).unwrap());
    assert_eq!(results, [(1, Err(CallError::Lost(UnhealthyCause::LeaseExpired))), (2, Ok(2))]);
    assert_eq!((workers.healthy(), workers.calls.poll_timeout()), (vec![2], None));
    assert_eq!(workers.events(), ["worker 1 is unhealthy: its lease expired without progress"]);
}

#[test]
fn progress_timeout_applies_to_samples_in_progress_only() {
    let mut workers = Workers::new(1);
    workers.silent.insert(WorkerId(1));
    workers.calls.foreach(ask(), Micros(0)).unwrap();
    workers.calls.foreach(ForEach::new(Ask::Sample), Micros(0)).unwrap();
    workers.calls.handle_progress(WorkerId(1), Micros(1));
    assert_eq!(workers.calls.poll_timeout(), Some(Micros::from_secs(300)), "the sample has not had its turn");
    let mut patient = Workers::with(1, CallConfig { progress_timeout: None, ..CallConfig::default() });
    patient.calls.foreach(ForEach::new(Ask::Sample), Micros(0)).unwrap();
    assert_eq!(patient.calls.poll_timeout(), Some(Micros::from_secs(300)));
}

#[test]
fn worker_that_warms_up_or_is_throttled_has_ten_times_as_long() {
    let end = |workers: &mut Workers| {
        workers.silent.insert(WorkerId(1));
        workers.calls.foreach(ForEach::new(Ask::Sample).workers(ids(&[1])).healthy_only(false), workers.now).unwrap();
        workers.calls.poll_timeout().unwrap().since(workers.now)
    };
    let mut fresh = Workers::new(1);
    assert_eq!(end(&mut fresh), LEASE.times(10));
    fresh.now = Micros(5);
    fresh.calls.handle_progress(WorkerId(1), fresh.now);
    assert_eq!(fresh.calls.poll_timeout(), Some(fresh.now + LEASE));

    // A worker that reconnects, or its replacement, warms up again.
    fresh.calls.handle_joined(WorkerId(1));
    assert_eq!(end(&mut fresh), LEASE.times(10));

    let (mut warm, _) = sampling();
    assert_eq!(warm.calls.poll_timeout(), Some(warm.now + LEASE));
    warm.calls.set_throttled(WorkerId(1), true).unwrap();
    assert_eq!(warm.calls.poll_timeout(), Some(warm.now + LEASE.times(10)));
    assert_eq!(warm.calls.set_throttled(WorkerId(9), true), Err(ForEachError::UnknownWorker(WorkerId(9))));
}

#[test]
fn lease_that_expired_while_the_caller_was_away_is_renewed_once() {
    let (mut workers, _) = sampling();
    workers.wait(MINUTE);
    assert_eq!(workers.healthy(), [1, 2], "no progress could be reported");
    assert_eq!(workers.calls.poll_timeout(), Some(workers.now + LEASE));
    workers.calls.handle_progress(WorkerId(1), workers.now);
    workers.wait(MINUTE);
    assert_eq!(workers.healthy(), [1, 2], "it has got on since");
    // A caller that polls only now and then finds it, too.
    workers.wait(MINUTE);
    assert_eq!(workers.healthy(), [2]);
}

#[test]
fn worker_marked_as_unhealthy_is_not_awaited() {
    let (mut workers, results) = when(|workers| workers.calls.set_worker_state(WorkerId(1), false).unwrap());
    assert_eq!(results, ok(&[(2, 1)]));
    assert_eq!(workers.calls.fetch_ready_async(&[], false), []);
    // It has no calls in flight.
    assert_eq!((workers.calls.num_in_flight_async(), workers.calls.counters().dropped), (0, 2));
    let again = ask().healthy_only(false).workers(ids(&[1, 1]));
    assert_eq!(workers.calls.foreach_async(again, None, Micros(0)), Ok(2));
    assert_eq!(workers.healthy(), [2]);
}

#[test]
fn unsent_calls_are_not_sent_to_unhealthy_workers() {
    let (mut workers, _) = when(|workers| workers.calls.handle_left(WorkerId(1)));
    workers.calls.handle_joined(WorkerId(1));
    assert_eq!((workers.done.get(&WorkerId(1)), workers.calls.poll_command()), (None, None));
}

#[test]
fn late_result_is_counted() {
    let mut workers = Workers::new(1);
    workers.calls.foreach(ask(), Micros(0)).unwrap();
    let sent = workers.calls.poll_command().unwrap();
    workers.calls.handle_left(WorkerId(1));
    workers.calls.handle_result(WorkerId(1), sent.call, Ok(1), Micros(0));
    assert_eq!((workers.calls.counters().late, workers.calls.counters().returned), (1, 0));
}

#[test]
fn a_call_that_takes_too_long_makes_its_worker_unhealthy() {
    let mut workers = Workers::with(2, CallConfig { call_timeout: Some(MINUTE), ..CallConfig::default() });
    workers.silent.insert(WorkerId(1));
    // A call without a timeout, or without a waiting caller, still makes its worker unhealthy.
    workers.foreach(ask().timeout(Micros(0)));
    assert_eq!(workers.calls.poll_timeout(), Some(MINUTE));
    workers.wait(Micros(MINUTE.0 - 1));
    assert_eq!(workers.healthy(), [1, 2]);
    workers.wait(Micros(1));
    assert_eq!((workers.healthy(), workers.calls.poll_timeout()), (vec![2], None));
    assert_eq!(workers.events(), ["worker 1 is unhealthy: a call took longer than 60000.000 ms"]);
}

#[test]
fn a_calls_time_begins_when_the_one_before_it_is_done() {
    let mut workers = Workers::with(1, CallConfig { call_timeout: Some(MINUTE), ..CallConfig::default() });
    let sets: Vec<_> = (0..3).map(|_| workers.calls.foreach(ask(), Micros(0)).unwrap()).collect();
    let sent: Vec<_> = core::iter::from_fn(|| workers.calls.poll_command()).collect();
    for command in sent {
        workers.wait(Micros(MINUTE.0 - 1));
        workers.calls.handle_result(command.worker, command.call, Ok(0), workers.now);
    }
    assert!(sets.into_iter().all(|set| workers.calls.poll_results(set).unwrap()[0].result == Ok(0)));
    assert_eq!(workers.healthy(), [1]);
}

#[test]
fn a_call_that_is_refused_says_nothing_of_the_one_that_hangs() {
    let mut workers = Workers::with(1, CallConfig { call_timeout: Some(MINUTE), ..CallConfig::default() });
    (0..2).for_each(|_| _ = workers.calls.foreach(ask(), Micros(0)).unwrap());
    let second = [workers.calls.poll_command(), workers.calls.poll_command()][1].clone().unwrap();
    workers.wait(Micros(MINUTE.0 - 1));
    workers.calls.handle_result(WorkerId(1), second.call, Err(broken()), workers.now);
    workers.wait(Micros(1));
    assert!(workers.healthy().is_empty());
}

#[test]
fn repeatedly_failing_samples_make_their_worker_unhealthy() {
    let mut workers = Workers::new(2);
    workers.failing.insert(WorkerId(2));
    for round in 1..=2 {
        let results = workers.foreach(ForEach::new(Ask::Sample));
        assert_eq!(results, [(1, Ok(round)), (2, Err(CallError::Failed(broken())))]);
        // Other failures do not count.
        workers.foreach(ask().workers(ids(&[2])));
    }
    assert_eq!(workers.healthy(), [1, 2]);
    workers.failing.clear();
    workers.foreach(ForEach::new(Ask::Sample));
    workers.failing.insert(WorkerId(2));
    for _ in 0..3 {
        assert_eq!(workers.healthy(), [1, 2]);
        workers.foreach(ForEach::new(Ask::Sample));
    }
    assert_eq!(workers.healthy(), [1]);
    assert_eq!(workers.events(), ["worker 2 is unhealthy: 3 samples in a row have failed"]);
    // The others continue.
    assert_eq!(workers.foreach(ForEach::new(Ask::Sample)).len(), 1);
}

#[test]
fn without_a_threshold_samples_may_fail_for_ever() {
    let mut workers = Workers::with(1, CallConfig { max_sample_failures: 0, ..CallConfig::default() });
    workers.failing.insert(WorkerId(1));
    (0..100).for_each(|_| _ = workers.foreach(ForEach::new(Ask::Sample)));
    assert_eq!(workers.healthy(), [1]);
}

/// One worker fails, then both; then both are restored, as their counters show.
#[test]
fn healthy_workers_continue_until_none_is_left_and_restored_ones_rejoin() {
    let mut workers = Workers::with(2, CallConfig { max_sample_failures: 1, ..CallConfig::default() });
    let sample = || ForEach::new(Ask::Sample);
    workers.failing.insert(WorkerId(1));
    assert_eq!(workers.foreach(sample()).len(), 2);
    assert_eq!((workers.foreach(sample()), workers.healthy()), (ok(&[(2, 2)]), vec![2]));
    workers.failing.insert(WorkerId(2));
    assert_eq!(workers.foreach(sample()), [(2, Err(CallError::Failed(broken())))]);
    assert_eq!((workers.foreach(sample()), workers.calls.num_healthy_workers()), (vec![], 0));

    workers.failing.clear();
    for id in [1, 2] {
        workers.calls.handle_left(WorkerId(id));
        workers.calls.handle_joined(WorkerId(id));
    }
    let probe = workers.calls.probe_unhealthy(Ask::Number(0), None, false, Micros(0));
    workers.work();
    let restored: Vec<_> = workers.calls.poll_results(probe).unwrap().iter().map(|result| result.worker).collect();
    assert_eq!((restored.len(), workers.calls.num_healthy_workers()), (2, 0));
    restored.into_iter().for_each(|worker| workers.calls.set_worker_state(worker, true).unwrap());
    assert_eq!((workers.healthy(), workers.calls.num_restarts()), (vec![1, 2], 2));
    assert_eq!(workers.foreach(sample()).len(), 2);
}

#[test]
fn only_the_unhealthy_ones_are_probed() {
    let mut workers = Workers::new(4);
    for id in [1, 3, 4] {
        workers.calls.set_worker_state(WorkerId(id), false).unwrap();
    }
    workers.silent.insert(WorkerId(4));
    let probe = workers.calls.probe_unhealthy(Ask::Number(0), Some(MINUTE), true, Micros(0));
    workers.work();
    workers.wait(MINUTE);
    let probed: Vec<u32> = workers.calls.poll_results(probe).unwrap().iter().map(|result| result.worker.0).collect();
    assert_eq!((probed, workers.healthy()), (vec![1, 3], vec![1, 2, 3]));
    assert_eq!(workers.done.get(&WorkerId(2)), None);
    let restarts: Vec<u64> = workers.calls.workers().map(|worker| worker.restarts).collect();
    assert_eq!((restarts, workers.calls.num_restarts()), (vec![1, 0, 1, 0], 2));
}

#[test]
fn an_answer_can_be_a_sign_of_health() {
    let mut workers = Workers::new(2);
    workers.calls.set_worker_state(WorkerId(1), false).unwrap();
    workers.foreach(ask().healthy_only(false));
    assert_eq!(workers.healthy(), [2]);
    workers.foreach(ask().healthy_only(false).mark_healthy(true));
    assert_eq!(workers.healthy(), [1, 2]);
    assert_eq!(workers.events(), ["worker 1 is unhealthy: it was marked as unhealthy", "worker 1 is healthy again"]);

    workers.calls.set_worker_state(WorkerId(1), false).unwrap();
    workers.calls.foreach_async(ask().healthy_only(false), None, Micros(0)).unwrap();
    workers.work();
    assert_eq!(workers.calls.fetch_ready_async(&[], true).len(), 2);
    assert_eq!((workers.healthy(), workers.calls.num_restarts()), (vec![1, 2], 2));
}

#[test]
fn stale_answer_does_not_concern_a_later_worker() {
    let happens: [fn(&mut Workers, WorkerId); 3] = [
        |workers, id| workers.calls.handle_joined(id),
        |workers, id| {
            workers.calls.foreach(ForEach::new(Ask::Sample).workers([id]), workers.now).unwrap();
            workers.wait(LEASE.times(10));
        },
        |workers, id| workers.calls.set_worker_state(id, false).unwrap(),
    ];
    for happens in happens {
        let mut workers = Workers::new(1);
        let id = ids(&[1])[0];
        workers.calls.foreach_async(ask(), None, workers.now).unwrap();
        workers.work();
        happens(&mut workers, id);
        let fetched = workers.calls.fetch_ready_async(&[], true);
        assert_eq!((outcomes(fetched), workers.healthy()), (ok(&[(1, 1)]), vec![]), "it was another one, or before");
        workers.calls.foreach_async(ask().healthy_only(false), None, workers.now).unwrap();
        workers.work();
        workers.calls.fetch_ready_async(&[], true);
        assert_eq!(workers.healthy(), [1]);
    }
}

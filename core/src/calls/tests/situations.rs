//! Calls, synchronous and asynchronous.

use super::*;

const SECOND: Micros = Micros::from_secs(1);

#[test]
fn workers_are_called_in_the_order_of_ids() {
    let mut workers = Workers::new(2);
    assert_eq!(workers.foreach(ask()), ok(&[(1, 1), (2, 1)]));
    assert_eq!(workers.foreach(ask().workers(ids(&[2, 1]))), ok(&[(1, 2), (2, 2)]));
    assert_eq!(workers.calls.foreach_async(ask(), None, Micros(0)), Ok(2));
    workers.work();
    let fetched: Vec<u32> = workers.calls.fetch_ready_async(&[], false).iter().map(|result| result.worker.0).collect();
    assert_eq!(fetched, [1, 2]);
}

#[test]
fn id_listed_twice_is_called_twice() {
    let mut workers = Workers::new(1);
    assert_eq!(workers.foreach(ask().workers(ids(&[1, 1]))), ok(&[(1, 1), (1, 2)]));
}

#[test]
fn foreach_without_ids_calls_no_worker() {
    let mut workers = Workers::new(2);
    assert_eq!(workers.foreach(ask().workers([])), []);
    assert_eq!(workers.calls.foreach_async(ask().workers([]), None, Micros(0)), Ok(0));
    assert_eq!(workers.calls.counters().started, 0);
    assert_eq!(Workers::new(0).foreach(ask()), []);
}

#[test]
fn asynchronous_calls_above_the_limit_do_not_begin() {
    let mut workers = Workers::new(4);
    assert_eq!(workers.calls.foreach_async(ask().workers(ids(&[1, 1])), None, Micros(0)), Ok(2));
    assert_eq!(workers.calls.foreach_async(ask().workers(ids(&[1])), None, Micros(0)), Ok(0));
    workers.work();
    // An answered call counts as in flight until it is fetched.
    assert_eq!(workers.calls.foreach_async(ask().workers(ids(&[1])), None, Micros(0)), Ok(0));
    assert_eq!(workers.calls.fetch_ready_async(&[], false).len(), 2);
    assert_eq!(workers.calls.counters().not_begun, 2);

    let begun: Vec<_> = (0..3).map(|_| workers.calls.foreach_async(ask(), None, Micros(0)).unwrap()).collect();
    assert_eq!(begun, [4, 4, 0]);
    assert_eq!((workers.calls.num_in_flight_async(), workers.calls.num_pending_async(&[])), (8, 8));
    workers.work();
    assert_eq!((workers.calls.num_in_flight_async(), workers.calls.num_pending_async(&[])), (8, 0));
    assert_eq!(workers.calls.fetch_ready_async(&[], false).len(), 8);
    assert_eq!(workers.calls.num_in_flight_async(), 0);
}

#[test]
fn requests_of_unhealthy_workers_are_skipped() {
    let mut workers = Workers::new(4);
    for id in [2, 3] {
        workers.calls.set_worker_state(WorkerId(id), false).unwrap();
    }
    let each = |count| ForEach::each((0..count).map(Ask::Number));
    let set = workers.calls.foreach(each(4), Micros(0)).unwrap();
    let sent: Vec<_> = core::iter::from_fn(|| workers.calls.poll_command()).collect();
    assert_eq!(
        sent.iter().map(|sent| (sent.worker.0, *sent.request)).collect::<Vec<_>>(),
        [(1, Ask::Number(0)), (4, Ask::Number(3))]
    );
    for CallCommand { worker, call, .. } in sent {
        workers.calls.handle_result(worker, call, Ok(worker.0), Micros(0));
    }
    assert_eq!(outcomes(workers.calls.poll_results(set).unwrap()), ok(&[(1, 1), (4, 4)]));

    let error = workers.calls.foreach(each(3), Micros(0)).unwrap_err();
    assert_eq!(error.to_string(), "3 requests were given for 4 workers: give one for all, or one for each");
    let error = workers.calls.foreach_async(each(5), None, Micros(0)).unwrap_err();
    assert_eq!(error, ForEachError::Requests { requests: 5, workers: 4 });
    assert!(workers.calls.poll_command().is_none());
}

#[test]
fn call_without_a_waiting_caller_is_executed_before_later_calls() {
    let mut workers = Workers::new(4);
    for _ in 0..10 {
        let set = workers.calls.foreach(ask().timeout(Micros(0)), Micros(0)).unwrap();
        assert_eq!(workers.calls.poll_results(set), Some(vec![]));
    }
    assert_eq!(workers.foreach(ask()), ok(&[(1, 11), (2, 11), (3, 11), (4, 11)]));
    let counters = workers.calls.counters();
    assert_eq!((counters.forgotten, counters.returned, counters.late), (40, 4, 0));
}

#[test]
fn failure_of_a_call_without_a_waiting_caller_is_an_event() {
    let mut workers = Workers::new(1);
    workers.failing.insert(WorkerId(1));
    assert_eq!(workers.foreach(ask().timeout(Micros(0))), []);
    let expected = "a call of worker 1, for which no caller waits, has failed: the environment is broken";
    assert_eq!(workers.events(), [expected]);
}

#[test]
fn worker_that_misses_the_deadline_is_skipped_and_stays_healthy() {
    let mut workers = Workers::new(3);
    workers.silent.insert(WorkerId(2));
    let set = workers.calls.foreach(ask().timeout(SECOND), Micros(5)).unwrap();
    let sent: Vec<_> = core::iter::from_fn(|| workers.calls.poll_command()).collect();
    for command in sent.iter().filter(|command| command.worker != WorkerId(2)) {
        workers.calls.handle_result(command.worker, command.call, Ok(7), Micros(6));
    }
    assert_eq!(workers.calls.poll_results(set), None);
    assert_eq!(workers.calls.poll_timeout(), Some(Micros(1_000_005)));
    workers.calls.handle_timeout(Micros(1_000_004));
    assert_eq!(workers.calls.poll_results(set), None);
    workers.calls.handle_timeout(Micros(1_000_005));
    assert_eq!(outcomes(workers.calls.poll_results(set).unwrap()), ok(&[(1, 7), (3, 7)]));
    assert_eq!(workers.healthy(), [1, 2, 3]);

    workers.calls.handle_result(WorkerId(2), sent[1].call, Ok(7), Micros(1_000_006));
    let counters = workers.calls.counters();
    assert_eq!((counters.returned, counters.timed_out, counters.late), (2, 1, 1));
    assert_eq!(workers.calls.poll_results(set), Some(vec![]));
}

#[test]
fn caller_may_stop_waiting() {
    let mut workers = Workers::new(2);
    workers.silent.insert(WorkerId(1));
    let set = workers.calls.foreach(ask(), Micros(0)).unwrap();
    workers.work();
    assert_eq!(outcomes(workers.calls.give_up(set)), ok(&[(2, 1)]));
    assert_eq!((workers.calls.counters().timed_out, workers.calls.give_up(set)), (1, vec![]));
}

#[test]
fn asynchronous_answers_are_fetched_by_tag() {
    let mut workers = Workers::new(2);
    for tag in [Some("rollouts"), None] {
        assert_eq!(workers.calls.foreach_async(ask(), tag, Micros(0)), Ok(2));
    }
    assert_eq!(workers.calls.num_pending_async(&["rollouts"]), 2);
    workers.work();
    assert_eq!(workers.calls.fetch_ready_async(&["metrics"], false), []);
    let rollouts = workers.calls.fetch_ready_async(&["metrics", "rollouts"], false);
    assert!(rollouts.iter().all(|result| result.tag.as_deref() == Some("rollouts")));
    let rest = workers.calls.fetch_ready_async(&[], false);
    assert_eq!((rollouts.len(), rest.len(), rest[0].tag.as_deref()), (2, 2, None));
}

#[test]
fn errors_are_results() {
    let mut workers = Workers::new(2);
    workers.failing.insert(WorkerId(2));
    let results = workers.foreach(ask());
    assert_eq!(results, [(1, Ok(1)), (2, Err(CallError::Failed(broken())))]);
    assert!(results[1].1.as_ref().unwrap_err().is_answer());
    assert_eq!((workers.healthy(), workers.events()), (vec![1, 2], vec![]));
}

#[test]
fn ids_of_removed_workers_are_not_reused() {
    let mut workers = Workers::new(2);
    workers.calls.remove_worker(WorkerId(2)).unwrap();
    assert_eq!(workers.calls.add_worker(), WorkerId(3));
    workers.calls.clear();
    assert_eq!((workers.calls.num_workers(), workers.calls.add_worker()), (0, WorkerId(4)));
    let unknown = ForEachError::UnknownWorker(WorkerId(2));
    assert_eq!(workers.calls.remove_worker(WorkerId(2)), Err(unknown.clone()));
    assert_eq!(workers.calls.set_worker_state(WorkerId(2), true), Err(unknown.clone()));
    assert_eq!(workers.calls.foreach(ask().workers(ids(&[4, 2])), Micros(0)), Err(unknown.clone()));
    assert_eq!(workers.calls.foreach_async(ask().workers(ids(&[4, 2])), None, Micros(0)), Err(unknown));
    assert_eq!((workers.calls.counters().started, workers.calls.is_healthy(WorkerId(2))), (0, None));
}

#[test]
fn removed_worker_is_not_awaited() {
    let mut workers = Workers::new(2);
    let set = workers.calls.foreach(ask(), Micros(0)).unwrap();
    workers.calls.foreach_async(ask(), None, Micros(0)).unwrap();
    workers.calls.remove_worker(WorkerId(1)).unwrap();
    workers.work();
    assert_eq!(outcomes(workers.calls.poll_results(set).unwrap()), ok(&[(2, 1)]));
    assert_eq!(outcomes(workers.calls.fetch_ready_async(&[], false)), ok(&[(2, 2)]));
    assert_eq!((workers.calls.counters().dropped, workers.calls.num_in_flight_async()), (2, 0));
}

#[test]
fn worker_cannot_answer_for_another() {
    let mut workers = Workers::new(2);
    let set = workers.calls.foreach(ask(), Micros(0)).unwrap();
    let first = workers.calls.poll_command().unwrap();
    workers.calls.handle_result(WorkerId(2), first.call, Ok(666), Micros(0));
    workers.calls.handle_result(WorkerId(9), first.call, Ok(666), Micros(0));
    workers.calls.handle_result(WorkerId(1), CallId(99), Ok(666), Micros(0));
    assert_eq!(workers.calls.counters().late, 3);
    workers.calls.handle_result(WorkerId(1), first.call, Ok(1), Micros(0));
    workers.work();
    assert_eq!(outcomes(workers.calls.poll_results(set).unwrap()), ok(&[(1, 1), (2, 1)]));
}

#[test]
fn a_worker_has_a_limited_number_of_calls_before_it() {
    let mut workers = Workers::new(2);
    let most = CallManager::<Ask, u32>::MAX_WAITING;
    for _ in 0..most {
        workers.calls.foreach(ask().workers(ids(&[1])).timeout(Micros(0)), Micros(0)).unwrap();
    }
    assert_eq!(workers.calls.foreach_async(ask(), None, Micros(0)), Ok(1));
    let results = workers.foreach(ask());
    assert_eq!(results, [(1, Err(CallError::Busy(most))), (2, Ok(2))]);
    assert_eq!(workers.calls.workers().next().unwrap().waiting, 0);
}

#[test]
fn results_that_are_never_taken_are_dropped() {
    let mut workers = Workers::new(1);
    let first = workers.calls.foreach(ask(), Micros(0)).unwrap();
    for _ in 0..CallManager::<Ask, u32>::MAX_COMPLETE {
        workers.calls.foreach(ask(), Micros(0)).unwrap();
        workers.work();
    }
    assert_eq!(workers.calls.poll_results(first), Some(vec![]));
    assert_eq!(workers.foreach(ask()).len(), 1);
}

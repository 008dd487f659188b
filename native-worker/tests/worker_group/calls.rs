//! The called workers, their order, and the calls that wait.

use std::{net::TcpListener, time::Duration};

use rollmesh::{
    WorkerGroup,
    worker_group::{
        Fetch, ForEachWorker, GroupError, NamedFn, Placement, in_env, in_policy, in_process, in_process_with_id,
    },
};
use rollmesh_core::{
    calls::ForEachError,
    config::Config,
    ids::{PolicyId, WorkerId},
    worker::{PolicyConfig, PolicyRoles, TrainedPolicies, WorkerAnswer, WorkerCommand},
};

use super::rig::{cart_pole, everywhere, group, named, number, placements, processes, waiting_at};

const SOON: Duration = Duration::from_secs(60);

fn ids(ids: &[u32]) -> Vec<WorkerId> {
    ids.iter().copied().map(WorkerId).collect()
}

pub(crate) fn the_local_worker_is_asked_first() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let answers = group.foreach_worker(named("place")).unwrap();
        assert_eq!(answers.iter().map(|place| number(place, "index")).collect::<Vec<_>>(), [0, 1, 2]);
        let remote = ForEachWorker::remote();
        assert_eq!(group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap().len(), 2);
        assert_eq!(group.foreach_worker_async(&remote, WorkerCommand::Ping, None).unwrap(), 2);
        let fetch = Fetch { timeout: SOON, ..Fetch::default() };
        let mut from: Vec<u32> =
            group.fetch_ready_async_reqs(&fetch).unwrap().into_iter().map(|(worker, _)| worker.0).collect();
        from.sort_unstable();
        assert_eq!(from, [1, 2]);
        // Results that are taken later are those of others.
        let error = group.foreach_worker_refs(&ForEachWorker::default(), WorkerCommand::Ping).unwrap_err();
        assert!(matches!(error, GroupError::LocalRefs), "{error}");
        let refs = group.foreach_worker_refs(&remote, named("place")).unwrap();
        let taken = group.take_results::<NamedFn>(refs).unwrap();
        assert_eq!(taken.iter().map(|(worker, _)| worker.0).collect::<Vec<_>>(), [1, 2]);
    }
}

pub(crate) fn calls_in_flight_are_limited() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 4);
        let twice = ForEachWorker::remote().remote_workers(ids(&[1, 1]));
        let once = ForEachWorker::remote().remote_workers(ids(&[1]));
        assert_eq!(group.foreach_worker_async(&twice, named("count"), None).unwrap(), 2);
        assert_eq!(group.foreach_worker_async(&once, named("count"), None).unwrap(), 0);
        assert_eq!(group.num_in_flight_async_reqs(), 2);
        let fetch = Fetch { timeout: SOON, ..Fetch::default() };
        assert_eq!(group.fetch_ready_async_reqs(&fetch).unwrap().len(), 2);
        let all = ForEachWorker::remote();
        assert_eq!(group.foreach_worker_async(&all, named("count"), None).unwrap(), 4);
        assert_eq!(group.foreach_worker_async(&all, named("count"), None).unwrap(), 4);
        assert_eq!(group.foreach_worker_async(&all, named("count"), None).unwrap(), 0);
        assert_eq!(group.fetch_ready_async_reqs(&fetch).unwrap().len(), 8);
        assert_eq!(group.num_in_flight_async_reqs(), 0);
    }
}

pub(crate) fn worker_listed_twice_is_called_twice() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let twice = ForEachWorker::remote().remote_workers(ids(&[1, 1]));
        let counts = group.foreach_worker_with(&twice, named("count")).unwrap();
        assert_eq!(counts.iter().map(|count| number(count, "count")).collect::<Vec<_>>(), [1, 2]);
        let unknown = ForEachWorker::remote().remote_workers(ids(&[7]));
        let error = group.foreach_worker_with(&unknown, named("count")).unwrap_err();
        assert!(matches!(error, GroupError::ForEach(ForEachError::UnknownWorker(WorkerId(7)))), "{error}");
    }
}

pub(crate) fn only_healthy_workers_are_asked_and_need_a_task_each() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 4);
        group.set_worker_state(WorkerId(2), false).unwrap();
        group.set_worker_state(WorkerId(3), false).unwrap();
        assert_eq!((group.num_healthy_workers(), group.num_healthy_remote_workers()), (3, 2));
        let tasks = vec![named("place"), named("fail"), named("fail"), named("place")];
        let answers = group.foreach_worker_each(&ForEachWorker::remote(), tasks).unwrap();
        assert_eq!(answers.iter().map(|(worker, _)| worker.0).collect::<Vec<_>>(), [1, 4]);
        let error = group.foreach_worker_each(&ForEachWorker::remote(), vec![named("place"); 3]).unwrap_err();
        assert!(matches!(error, GroupError::ForEach(ForEachError::Requests { requests: 3, workers: 4 })), "{error}");
        assert_eq!(group.probe_unhealthy_workers().unwrap(), ids(&[2, 3]));
        assert_eq!(group.healthy_worker_ids(), ids(&[1, 2, 3, 4]));
        assert_eq!(group.num_remote_worker_restarts(), 2);
    }
}

pub(crate) fn calls_without_a_waiting_caller_are_executed() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 4);
        let now = ForEachWorker::remote().timeout(Duration::ZERO);
        for _ in 0..10 {
            assert_eq!(group.foreach_worker_with(&now, named("count")).unwrap(), []);
        }
        let counts = group.foreach_worker_with(&ForEachWorker::remote(), named("count")).unwrap();
        assert_eq!(counts.iter().map(|count| number(count, "count")).collect::<Vec<_>>(), [11, 11, 11, 11]);
    }
}

pub(crate) fn late_worker_is_skipped_and_stays_healthy() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = ForEachWorker::remote().remote_workers(ids(&[1])).timeout(Duration::from_millis(200));
        assert_eq!(group.foreach_worker_with(&first, waiting_at(&gate)).unwrap(), []);
        assert_eq!(group.num_healthy_remote_workers(), 2);
        // It continues, and its late answer is not taken for that of the next call.
        drop(gate.accept().unwrap());
        let answers = group.foreach_worker_with(&ForEachWorker::remote(), named("place")).unwrap();
        assert_eq!(answers.iter().map(|place| number(place, "index")).collect::<Vec<_>>(), [1, 2]);
    }
}

pub(crate) fn answers_can_be_signs_of_health() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let remote = ForEachWorker::remote();
        let ask = |group: &mut WorkerGroup, options: &ForEachWorker| {
            let answers = group.foreach_worker_with(options, WorkerCommand::Ping).unwrap().len();
            (answers, group.num_healthy_remote_workers())
        };
        group.set_worker_state(WorkerId(2), false).unwrap();
        assert_eq!(ask(&mut group, &remote), (1, 1));
        assert_eq!(ask(&mut group, &remote.clone().unhealthy_too()), (2, 1));
        assert_eq!(ask(&mut group, &remote.clone().unhealthy_too().mark_healthy()), (2, 2));

        group.set_worker_state(WorkerId(2), false).unwrap();
        for (mark_healthy, healthy) in [(false, 1), (true, 2)] {
            let begun = group.foreach_worker_async(&remote.clone().unhealthy_too(), WorkerCommand::Ping, None);
            assert_eq!(begun.unwrap(), 2);
            let fetch = Fetch { timeout: SOON, mark_healthy, ..Fetch::default() };
            assert_eq!(group.fetch_ready_async_reqs(&fetch).unwrap().len(), 2);
            assert_eq!(group.num_healthy_remote_workers(), healthy);
        }
        assert_eq!(group.num_remote_worker_restarts(), 2);
    }
}

pub(crate) fn workers_take_different_calls_without_waiting() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let task = |id| if id == WorkerId(1) { WorkerCommand::Ping } else { WorkerCommand::Apply(named("place")) };
        assert_eq!(group.foreach_worker_with_id_async(&ForEachWorker::remote(), task, None).unwrap(), 2);
        let fetch = Fetch { timeout: SOON, ..Fetch::default() };
        let answers = group.fetch_ready_async_reqs(&fetch).unwrap();
        let mut answers: Vec<_> = answers.into_iter().map(|(worker, answer)| (worker.0, answer.answer())).collect();
        answers.sort_by_key(|(worker, _)| *worker);
        assert!(
            matches!(&answers[..], [(1, Some(WorkerAnswer::Pong)), (2, Some(WorkerAnswer::Value(place)))] if number(place, "index") == 2),
            "{answers:?}"
        );
    }
}

pub(crate) fn only_policies_that_are_trained_are_asked() {
    for placement in everywhere() {
        let mut group = group(cart_pole(), &placement, 1);
        let trained = TrainedPolicies::Ids([PolicyId::DEFAULT].into());
        let roles = PolicyRoles { policies_to_train: Some(trained), ..PolicyRoles::default() };
        let (all, kind) = (ForEachWorker::default(), PolicyConfig::new("random"));
        group.add_policy(&all, PolicyId::new("second"), kind, None, roles).unwrap();
        assert_eq!(group.foreach_policy(named("id")).unwrap().len(), 4);
        let id = |answer: &Config| answer.get::<PolicyId>("id").unwrap().unwrap();
        let asked = group.foreach_policy_to_train(named("id")).unwrap();
        assert_eq!(asked.iter().map(id).collect::<Vec<_>>(), vec![PolicyId::DEFAULT; 2]);
        if matches!(placement, Placement::Threads) {
            let asked = group.foreach_policy_to_train(in_policy(|id, _policy| id.clone())).unwrap();
            assert_eq!(asked, vec![PolicyId::DEFAULT; 2]);
        }
    }
}

pub(crate) fn ids_and_names_reach_workers() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let answers = group
            .foreach_worker_with_id(&ForEachWorker::default(), |id| match id {
                WorkerId(0) => WorkerCommand::Ping,
                _ => WorkerCommand::Apply(named("place")),
            })
            .unwrap();
        assert_eq!(answers[0], (WorkerId(0), WorkerAnswer::Pong));
        match &answers[2] {
            (WorkerId(2), WorkerAnswer::Value(place)) => assert_eq!(number(place, "num_workers"), 2),
            other => panic!("{other:?}"),
        }
        // All answers, including failures.
        let said = group
            .try_foreach_worker(&ForEachWorker::remote(), |id| named(if id == WorkerId(1) { "fail" } else { "count" }));
        let said = said.unwrap();
        assert!(said[0].1.as_ref().unwrap_err().is_answer());
        assert!(said[1].1.is_ok());
    }
}

pub(crate) fn environments_and_policies_are_asked_everywhere() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let places = group.foreach_env(named("place")).unwrap();
        let at = |answer: &Config| answer.get::<[u32; 2]>("at").unwrap().unwrap();
        let places: Vec<Vec<[u32; 2]>> = places.iter().map(|answers| answers.iter().map(at).collect()).collect();
        assert_eq!(places, [vec![], vec![[1, 0], [1, 1]], vec![[2, 0], [2, 1]]]);
        let id = |answer: &Config| answer.get::<PolicyId>("id").unwrap().unwrap();
        let policies = group.foreach_policy(named("id")).unwrap();
        assert_eq!(policies.iter().map(id).collect::<Vec<_>>(), vec![PolicyId::DEFAULT; 3]);
        assert_eq!(group.foreach_policy_to_train(named("id")).unwrap().len(), 3);
    }
}

pub(crate) fn closures_stay_in_this_process() {
    let mut threads = group(cart_pole(), &Placement::Threads, 2);
    assert_eq!(threads.foreach_worker(in_process(|worker| worker.place().worker_index)).unwrap(), [0, 1, 2]);
    let ids = threads.foreach_worker(in_process_with_id(|id, worker| (id.0, worker.num_envs()))).unwrap();
    assert_eq!(ids, [(0, 0), (1, 2), (2, 2)]);
    let places = threads.foreach_env_with_context(|_env, context| context.home.vector_index).unwrap();
    assert_eq!(places, [vec![], vec![0, 1], vec![0, 1]]);
    assert_eq!(threads.foreach_env(in_env(|_env, _context| 1)).unwrap(), [vec![], vec![1, 1], vec![1, 1]]);
    let policies = threads.foreach_policy(in_policy(|id, _policy| id.clone())).unwrap();
    assert_eq!(policies, vec![PolicyId::DEFAULT; 3]);
    assert_eq!(threads.foreach_policy_to_train(in_policy(|_, _| ())).unwrap().len(), 3);

    let mut abroad = group(cart_pole(), &processes(), 1);
    let error = abroad.foreach_worker(in_process(|_| ())).unwrap_err();
    assert!(matches!(error, GroupError::NotInProcess(WorkerId(1))), "{error}");
    let local = ForEachWorker::default().remote_workers([]);
    assert_eq!(abroad.foreach_worker_with(&local, in_process(|worker| worker.num_envs())).unwrap(), [0]);
    let closures = abroad.foreach_worker_async(&ForEachWorker::remote(), in_process(|_| ()), None);
    assert!(matches!(closures, Err(GroupError::NotInProcess(_))));
}

pub(crate) fn answers_wait_until_they_are_fetched() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = waiting_at(&gate);
        let one = |id| ForEachWorker::remote().remote_workers([WorkerId(id)]);
        assert_eq!(group.foreach_worker_async(&one(1), closed, Some("slow")).unwrap(), 1);
        assert_eq!(group.foreach_worker_async(&one(2), named("place"), Some("fast")).unwrap(), 1);
        let fast = Fetch { tags: &["fast"], timeout: SOON, ..Fetch::default() };
        let answers = group.fetch_ready_async_reqs(&fast).unwrap();
        let [(WorkerId(2), answer)] = <[_; 1]>::try_from(answers).unwrap() else { panic!("another worker") };
        assert!(matches!(answer.answer(), Some(WorkerAnswer::Value(place)) if number(&place, "index") == 2));
        assert!(group.fetch_ready_async_reqs(&Fetch::default()).unwrap().is_empty());
        assert_eq!(group.num_in_flight_async_reqs(), 1);
        drop(gate.accept().unwrap());
        let slow = Fetch { tags: &["slow"], timeout: SOON, ..Fetch::default() };
        assert_eq!(group.fetch_ready_async_reqs(&slow).unwrap().len(), 1);
        // A failure is returned, without a loss of other answers.
        group.foreach_worker_async(&one(1), named("fail"), None).unwrap();
        group.foreach_worker_async(&one(2), named("place"), None).unwrap();
        let all = Fetch { timeout: SOON, ..Fetch::default() };
        assert!(matches!(group.fetch_ready_async_reqs(&all), Err(GroupError::Worker { worker: WorkerId(1), .. })));
        assert_eq!(group.fetch_ready_async_reqs(&all).unwrap().len(), 1);
    }
}

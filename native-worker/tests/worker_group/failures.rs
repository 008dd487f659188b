//! Workers that fail, panic, hang and are killed.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rollmesh::{
    WorkerGroup,
    worker_group::{
        FailureSettings, ForEachWorker, GroupError, ParallelSample, Placement, SyncFilters, SyncWeights, WeightsSource,
    },
};
use rollmesh_core::{
    config::Config,
    filter::FilterKind,
    group::SamplingMode,
    ids::WorkerId,
    time::Micros,
    worker::{CommandErrorKind, RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand},
};

use super::rig::{
    Counting, builder, cart_pole, connect, connect_with, group, kill, moody, moody_in, named, notices, placements,
    processes, waiting_at,
};

fn flag(answer: &Config, name: &str) -> bool {
    answer.get(name).unwrap().unwrap()
}

pub(crate) fn an_error_inside_a_call_leaves_the_worker_healthy() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let remote = ForEachWorker::remote();
        for (name, kind, text) in [
            ("fail", CommandErrorKind::Function, "as it should"),
            ("panic", CommandErrorKind::Panicked, "panicked: as it should"),
            ("unknown", CommandErrorKind::UnknownName, "there is no worker function 'unknown'"),
        ] {
            match group.foreach_worker_with(&remote, named(name)) {
                Err(GroupError::Worker { worker: WorkerId(1), error }) => {
                    assert_eq!(error.kind, kind);
                    assert!(error.message.contains(text), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        // The local worker's failures are the caller's.
        let error = group.foreach_worker(named("panic")).unwrap_err();
        assert!(error.to_string().starts_with("worker 0: panicked"), "{error}");
        assert_eq!(group.num_healthy_workers(), 3);
        assert_eq!(group.foreach_worker(WorkerCommand::Ping).unwrap().len(), 3);
    }
}

pub(crate) fn group_continues_with_its_healthy_workers() {
    for placement in placements() {
        let failures =
            FailureSettings { ignore_worker_failures: true, max_sample_failures: 1, ..FailureSettings::default() };
        let mut group = builder(moody(&[1]), &placement, 2).failures(failures.clone()).build().unwrap();
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 1);
        assert_eq!(group.healthy_worker_ids(), [WorkerId(2)]);
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::env_steps(20)).unwrap().len(), 2);
        assert_eq!(group.sample_counters().lost, 1);
        let notices: Vec<String> = std::iter::from_fn(|| group.next_notice()).collect();
        assert!(notices.iter().any(|notice| notice.contains("a bad mood")), "{notices:?}");

        let mut none = builder(moody(&[1, 2]), &placement, 2).failures(failures).build().unwrap();
        let error = none.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
        assert!(matches!(error, GroupError::NoHealthyWorkers { workers: 2, .. }), "{error}");
        assert!(error.to_string().contains("a bad mood"), "{error}");

        // By default a failure is an error immediately, and one is not enough to be unhealthy.
        let mut strict = builder(moody(&[1]), &placement, 2).build().unwrap();
        let error = strict.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
        assert!(matches!(error, GroupError::Worker { worker: WorkerId(1), .. }), "{error}");
        assert_eq!(strict.num_healthy_remote_workers(), 2);
    }
}

pub(crate) fn workers_that_always_fail_are_recreated() {
    for placement in placements() {
        let failures = FailureSettings {
            ignore_worker_failures: true,
            recreate_failed_workers: true,
            max_sample_failures: 1,
            ..FailureSettings::default()
        };
        let heard = Arc::new(AtomicU32::new(0));
        let hear = heard.clone();
        let mut group = builder(moody(&[1, 2]), &placement, 2)
            .failures(failures)
            .on_workers_recreated(move |ids| _ = hear.fetch_add(ids.len() as u32, Ordering::Relaxed))
            .build()
            .unwrap();
        assert!(group.synchronous_parallel_sample(ParallelSample::default()).is_err());
        assert_eq!(group.num_healthy_remote_workers(), 0);
        assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1), WorkerId(2)]);
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
        let places = group.foreach_worker_with(&ForEachWorker::remote(), named("place")).unwrap();
        assert!(places.iter().all(|place| flag(place, "recreated")), "{places:?}");
        assert_eq!((heard.load(Ordering::Relaxed), group.num_remote_worker_restarts()), (2, 2));
        assert_eq!(group.probe_unhealthy_workers().unwrap(), []);
    }
}

pub(crate) fn killed_process_is_replaced_and_restored_with_weights_and_filters() {
    let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_pole() };
    let failures = FailureSettings { recreate_failed_workers: true, ..FailureSettings::default() };
    let mut group = builder(config.clone(), &processes(), 2).failures(failures).build().unwrap();
    group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    group.sync_filters(&SyncFilters::default()).unwrap();
    let place = rollmesh_core::worker::WorkerPlace::LOCAL;
    let mut learner = RolloutWorker::from_config(config.seed(99), &rollmesh::Registry::builtin(), place).unwrap();
    group.sync_weights(SyncWeights { from: WeightsSource::Worker(&mut learner), ..SyncWeights::default() }).unwrap();

    kill(group.worker_pids()[0]);
    let remote = ForEachWorker::remote();
    while group.num_healthy_remote_workers() == 2 {
        group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap();
    }
    assert_eq!(group.num_healthy_remote_workers(), 1);
    let back = group.probe_unhealthy_workers().unwrap();
    assert_eq!((back.len(), group.num_remote_worker_restarts()), (1, 1));
    assert_eq!(group.worker_pids().len(), 2);

    let expected = WorkerAnswer::Weights(learner.weights(None).unwrap());
    let weights = group.foreach_worker(WorkerCommand::Weights { policies: None }).unwrap();
    assert_eq!(weights, vec![expected; 3]);
    let filters = group.foreach_worker(WorkerCommand::Filters { flush_after: false }).unwrap();
    assert_eq!(filters[1..], [filters[0].clone(), filters[0].clone()]);
    let replaced = ForEachWorker::remote().remote_workers(back);
    assert!(flag(&group.foreach_worker_with(&replaced, named("place")).unwrap()[0], "recreated"));
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
}

pub(crate) fn a_process_is_replaced_by_its_own_launcher() {
    let failures = FailureSettings { recreate_failed_workers: true, ..FailureSettings::default() };
    let (first, second) = (Counting::new(), Counting::new());
    let placement = Placement::Processes(Some(first.clone()));
    let mut group = builder(cart_pole(), &placement, 1).failures(failures).build().unwrap();
    group.add_workers_at(&Placement::Processes(Some(second.clone())), 1, true).unwrap();
    assert_eq!((first.launched(), second.launched()), (1, 1));
    // Both at the same time, so that a replacement could take the wrong place.
    group.worker_pids().into_iter().for_each(kill);
    let remote = ForEachWorker::remote();
    while group.num_healthy_remote_workers() > 0 {
        group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap();
    }
    assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1), WorkerId(2)]);
    assert_eq!((first.launched(), second.launched()), (2, 2));
    // A process that replaces the first one has the first one's place.
    let pids = group.worker_pids();
    assert_eq!(pids.len(), 2);
    kill(pids[0]);
    while group.num_healthy_remote_workers() == 2 {
        group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap();
    }
    let back = group.probe_unhealthy_workers().unwrap();
    let again = (first.launched() - 2, second.launched() - 2);
    assert!(
        (back == [WorkerId(1)] && again == (1, 0)) || (back == [WorkerId(2)] && again == (0, 1)),
        "{back:?} {again:?}"
    );
}

pub(crate) fn process_that_is_not_recreated_stays_removed() {
    let failures = FailureSettings { health_probe_timeout: Duration::from_secs(20), ..FailureSettings::default() };
    let mut group = builder(cart_pole(), &processes(), 2).failures(failures).build().unwrap();
    kill(group.worker_pids()[1]);
    let remote = ForEachWorker::remote();
    while group.num_healthy_remote_workers() == 2 {
        group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap();
    }
    assert_eq!(group.probe_unhealthy_workers().unwrap(), []);
    // Its socket may close before the process ends.
    while group.worker_pids().len() == 2 {
        std::thread::yield_now();
    }
    assert_eq!((group.worker_pids().len(), group.num_healthy_remote_workers()), (1, 1));
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::env_steps(60)).unwrap().len(), 3);
}

pub(crate) fn a_worker_that_hangs_is_replaced() {
    for placement in placements() {
        let failures = FailureSettings {
            recreate_failed_workers: true,
            // Longer than any other call takes on a busy machine.
            call_timeout: Some(Duration::from_secs(5)),
            ..FailureSettings::default()
        };
        let mut group = builder(cart_pole(), &placement, 2).failures(failures).build().unwrap();
        let first = ForEachWorker::remote().remote_workers([WorkerId(1)]);
        let said = group.try_foreach_worker(&first, |_| named("hang")).unwrap();
        assert!(said[0].1.as_ref().is_err_and(|error| !error.is_answer()), "{said:?}");
        assert_eq!(group.healthy_worker_ids(), [WorkerId(2)]);
        assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1)]);
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
    }
}

/// Returns a group of threads and processes.
fn mixed(config: RolloutConfig, mode: SamplingMode) -> WorkerGroup {
    let failures = FailureSettings { recreate_failed_workers: true, ..FailureSettings::default() };
    let builder = builder(config, &Placement::Threads, 2).failures(failures).sampling_mode(mode);
    let mut group = builder.build().unwrap();
    group.add_workers_at(&processes(), 2, true).unwrap();
    group
}

/// Runs a test with samplers that wait for requests and with those that run ahead, both at the same time.
fn with_and_without_a_thread(test: fn(RolloutConfig), config: &RolloutConfig) {
    std::thread::scope(|scope| {
        for sample_async in [false, true] {
            scope.spawn(move || test(RolloutConfig { sample_async, ..config.clone() }));
        }
    });
}

pub(crate) fn sample_without_progress_is_detected_by_its_lease() {
    with_and_without_a_thread(hangs_are_found, &moody_in("hangs", &[1, 3]));
}

fn hangs_are_found(config: RolloutConfig) {
    let mut group = mixed(config, SamplingMode::Synchronous);
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 4);
    let start = Instant::now();
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
    // Without a lease that would take minutes; a late check adds three seconds.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(group.healthy_worker_ids(), [WorkerId(2), WorkerId(4)]);
    assert_eq!(group.sample_counters().lost, 2);
    let notices: Vec<String> = std::iter::from_fn(|| group.next_notice()).collect();
    let found = |id: u32| format!("worker {id} is unhealthy: its lease expired without progress");
    assert!([1, 3].iter().all(|&id| notices.contains(&found(id))), "{notices:?}");

    assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1), WorkerId(3)]);
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::env_steps(80)).unwrap().len(), 8);
}

pub(crate) fn sample_with_progress_is_awaited_beyond_its_lease() {
    with_and_without_a_thread(slow_ones_are_awaited, &moody_in("slow", &[1, 3]));
}

fn slow_ones_are_awaited(config: RolloutConfig) {
    assert_eq!(FailureSettings::default().progress_timeout, Some(Duration::from_secs(3)));
    let mut group = mixed(config, SamplingMode::Synchronous);
    for _ in 0..2 {
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 4);
    }
    assert_eq!(group.num_healthy_remote_workers(), 4);
}

pub(crate) fn hung_sample_is_detected_without_a_waiting_caller() {
    let group = |mode| {
        let mut group = mixed(moody_in("hangs", &[1, 3, 5]), mode);
        group.add_workers_at(&Placement::Remote, 2, true).unwrap();
        connect(&mut group, 6);
        let start = Instant::now();
        while group.num_healthy_remote_workers() > 3 {
            group.sample().unwrap();
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", group.healthy_worker_ids());
        }
        assert_eq!(
            (group.healthy_worker_ids(), group.sample_counters().lost),
            (vec![WorkerId(2), WorkerId(4), WorkerId(6)], 3)
        );
    };
    std::thread::scope(|scope| {
        let (batch_env_steps, max_staleness) = (20, 1);
        scope.spawn(move || group(SamplingMode::Asynchronous { batch_env_steps, max_staleness }));
        scope.spawn(move || group(SamplingMode::Deadline { after: Micros::from_millis(50), max_staleness }));
    });
}

pub(crate) fn local_worker_that_samples_alone_has_a_deadline() {
    let failures = FailureSettings { progress_timeout: Some(Duration::from_secs(1)), ..FailureSettings::default() };
    let config = moody_in("hangs", &[0]).num_envs(1);
    let mut group = builder(config, &Placement::Threads, 0).failures(failures).build().unwrap();
    group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let error = group.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
    let (place, deadline) = ("worker 0 hangs: Moody-v0, slot 0, episode 2, step 2: ", "no progress for 1000.000 ms");
    assert!(error.to_string().starts_with(place) && error.to_string().contains(deadline), "{error}");
    let after = group.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
    assert!(matches!(after, GroupError::NoLocalWorker("sampling")), "{after}");
}

/// Stops workers that would otherwise hang for the minutes of their leases.
pub(crate) fn group_is_stopped_while_its_workers_hang() {
    let patience = Some(Duration::from_secs(600));
    let failures = FailureSettings { progress_timeout: patience, ..FailureSettings::default() };
    for (placement, workers) in [(processes(), 2), (Placement::Threads, 2), (Placement::Threads, 0)] {
        let directory = tempfile::tempdir().unwrap();
        let marker = directory.path().join("hangs");
        let mut config = moody_in("hangs", if workers > 0 { &[1] } else { &[0] }).num_envs(1);
        config.env_config = config.env_config.with("hang_marker", &marker).unwrap();
        let mut group = builder(config, &placement, workers).failures(failures.clone()).build().unwrap();
        group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        let (pids, stopper) = (group.worker_pids(), group.stopper());
        let stopping = std::thread::spawn(move || {
            while !marker.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            stopper.stop();
            Instant::now()
        });
        let error = group.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
        assert!(matches!(error, GroupError::NotSetUp), "{error}");
        group.stop();
        // Five seconds for the worker to stop, and four for its process to exit.
        let since = stopping.join().unwrap();
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
        let is_there = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        assert!(!pids.iter().any(is_there), "{pids:?}");
    }
}

pub(crate) fn call_that_hangs_returns_an_error_when_the_group_is_stopped() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let (gate, stopper) = (TcpListener::bind("127.0.0.1:0").unwrap(), group.stopper());
        let hanging = waiting_at(&gate);
        let stopping = std::thread::spawn(move || {
            // The calls hang while these are open.
            let connections = [gate.accept().unwrap(), gate.accept().unwrap()];
            stopper.stop();
            connections
        });
        let error = group.foreach_worker_with(&ForEachWorker::remote(), hanging).unwrap_err();
        assert!(matches!(error, GroupError::NotSetUp), "{error}");
        assert_eq!(group.num_remote_workers(), 0);
        let error = group.metrics().unwrap_err();
        assert!(matches!(error, GroupError::NotSetUp), "{error}");
        drop(stopping.join().unwrap());
    }
}

pub(crate) fn group_that_is_set_up_again_ignores_earlier_stops() {
    let mut group = group(cart_pole(), &Placement::Threads, 2);
    group.stopper().stop();
    let error = group.foreach_worker(WorkerCommand::Ping).unwrap_err();
    assert!(matches!(error, GroupError::NotSetUp), "{error}");
    group.stopper().stop();
    group.setup().unwrap();
    assert_eq!(group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap().len(), 2);
}

pub(crate) fn worker_that_cannot_be_created_reports_the_reason() {
    for placement in placements() {
        let settings = Config::new().with("refuses", [2]).unwrap();
        let error = builder(moody(&[]).env_config(settings), &placement, 2).build().unwrap_err();
        match error {
            GroupError::Worker { worker: WorkerId(2), error } => assert!(error.message.contains("not here"), "{error}"),
            other => panic!("{other}"),
        }
    }
    // One that connects says it as a notice.
    let settings = Config::new().with("refuses", [1]).unwrap();
    let mut remote = builder(moody(&[]).env_config(settings), &Placement::Remote, 1).build().unwrap();
    assert!(!connect_with(&mut remote, 1, &[]));
    let heard = notices(&mut remote);
    assert!(heard.iter().any(|notice| notice.contains("not here")), "{heard:?}");
    // The last lines of a process that ends before it is a worker are reported.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("unlicensed");
    std::fs::write(&program, "#!/bin/sh\necho there is no licence >&2\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let unlicensed = Placement::processes_of(&program);
    let error = builder(cart_pole(), &unlicensed, 1).start_timeout(Duration::from_secs(5)).build().unwrap_err();
    assert!(error.to_string().contains("there is no licence"), "{error}");
    let missing = Placement::processes_of("/no/such/program");
    let error = builder(cart_pole(), &missing, 1).build().unwrap_err();
    assert!(error.to_string().contains("/no/such/program cannot be started as a worker"), "{error}");
}

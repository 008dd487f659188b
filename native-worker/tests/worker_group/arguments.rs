//! Arguments of the constructor and settings of failures, one by one.

use std::time::{Duration, Instant};

use rollmesh::{
    WorkerGroup,
    hub::{Distrust, SecurityConfig, TlsConfig},
    worker_group::{FailureSettings, ForEachWorker, GroupError, ParallelSample, Placement},
};
use rollmesh_core::{
    env::EnvContext,
    ids::WorkerId,
    worker::{CommandErrorKind, PolicyConfig, RolloutConfig, WorkerAnswer, WorkerCommand},
};

use super::rig::{Moody, builder, cart_pole, group, kill, moody, moody_in, named, notices, placements, processes};

pub(crate) fn environments_can_be_made_by_a_closure() {
    let config = RolloutConfig::default().rollout_fragment_length(7).fcnet_hiddens(&[8]);
    let made = |context: &EnvContext| Moody::new(context);
    let mut group = WorkerGroup::builder(config.clone()).env_creator(made).num_workers(2).build().unwrap();
    let batches = group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let mut named = super::rig::group(moody(&[]).rollout_fragment_length(7), &Placement::Threads, 2);
    assert!(batches == named.synchronous_parallel_sample(ParallelSample::default()).unwrap());
    let abroad = builder(config, &processes(), 1).env_creator(made).build().unwrap_err();
    assert!(matches!(abroad, GroupError::ClosuresNeedThreads), "{abroad}");
}

pub(crate) fn workers_are_validated_by_default() {
    for placement in placements() {
        // There is nothing to sample from, but the policy's observation space is given.
        let spaces = group(cart_pole(), &Placement::Threads, 0).spaces().unwrap().into_values().next().unwrap();
        let policy = PolicyConfig::default().with_spaces(spaces.observation, spaces.action);
        let config = RolloutConfig::default().policy(rollmesh_core::ids::PolicyId::DEFAULT, policy);
        let refused = builder(config.clone(), &placement, 1).build().unwrap_err();
        match refused {
            GroupError::Worker { worker: WorkerId(1), error } => {
                assert!(error.message.contains("it has neither environments nor input"), "{error}");
            }
            other => panic!("{other}"),
        }
        let mut group = builder(config, &placement, 1).validate_workers(false).build().unwrap();
        group.add_workers(1, false).unwrap();
        assert_eq!(group.num_healthy_remote_workers(), 2);
        assert!(matches!(group.add_workers(1, true), Err(GroupError::Worker { worker: WorkerId(3), .. })));
        assert_eq!(group.num_remote_workers(), 2);
    }
}

pub(crate) fn joining_workers_has_a_timeout() {
    let wait = Duration::from_millis(300);
    let stalling = builder(moody_in("stalls", &[1]), &Placement::Threads, 1).start_timeout(wait);
    match stalling.build().unwrap_err() {
        GroupError::NotJoined { missing: 1, waited, .. } => assert_eq!(waited, wait),
        other => panic!("{other}"),
    }
}

pub(crate) fn calls_in_flight_have_the_configured_limit() {
    let failures = FailureSettings { max_in_flight: 3, ..FailureSettings::default() };
    let mut group = builder(cart_pole(), &Placement::Threads, 1).failures(failures).build().unwrap();
    let many = ForEachWorker::remote().remote_workers(vec![WorkerId(1); 5]);
    assert_eq!(group.foreach_worker_async(&many, named("count"), None).unwrap(), 3);
}

pub(crate) fn limited_number_of_samples_may_fail_in_a_row() {
    for placement in placements() {
        let failures =
            FailureSettings { ignore_worker_failures: true, max_sample_failures: 2, ..FailureSettings::default() };
        let mut group = builder(moody(&[1]), &placement, 2).failures(failures).build().unwrap();
        group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        assert_eq!(group.num_healthy_remote_workers(), 2);
        group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        assert_eq!(group.healthy_worker_ids(), [WorkerId(2)]);
    }
}

/// Kills the process, and waits until the group has detected that.
fn lose_the_process(group: &mut WorkerGroup) {
    kill(group.worker_pids()[0]);
    while group.num_healthy_remote_workers() == 1 {
        group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap();
    }
}

pub(crate) fn processes_are_replaced_after_a_delay_up_to_a_limit() {
    let delay = Duration::from_millis(700);
    let failures = FailureSettings {
        recreate_failed_workers: true,
        restart_delay: delay,
        max_worker_restarts: 1,
        ..FailureSettings::default()
    };
    let mut group = builder(cart_pole(), &processes(), 1).failures(failures).build().unwrap();
    let killed = Instant::now();
    lose_the_process(&mut group);
    assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1)]);
    assert!(killed.elapsed() >= delay, "{:?}", killed.elapsed());

    lose_the_process(&mut group);
    assert_eq!(group.probe_unhealthy_workers().unwrap(), []);
    assert_eq!((group.num_remote_worker_restarts(), group.num_healthy_remote_workers()), (1, 0));
    assert!(group.worker_pids().is_empty());
}

pub(crate) fn thread_is_replaced_up_to_a_limit() {
    let failures = FailureSettings {
        recreate_failed_workers: true,
        max_worker_restarts: 1,
        call_timeout: Some(Duration::from_secs(2)),
        health_probe_timeout: Duration::from_secs(2),
        ..FailureSettings::default()
    };
    let mut group = builder(cart_pole(), &Placement::Threads, 1).failures(failures).build().unwrap();
    for back in [vec![WorkerId(1)], vec![]] {
        let said = group.try_foreach_worker(&ForEachWorker::remote(), |_| named("hang")).unwrap();
        assert!(said[0].1.as_ref().is_err_and(|error| !error.is_answer()), "{said:?}");
        let asked = Instant::now();
        assert_eq!(group.probe_unhealthy_workers().unwrap(), back);
        if back.is_empty() {
            assert!(asked.elapsed() >= Duration::from_secs(2), "it gives no sign of life: {:?}", asked.elapsed());
        }
    }
}

pub(crate) fn restoring_workers_has_a_timeout() {
    let wait = Duration::from_millis(300);
    let failures =
        FailureSettings { recreate_failed_workers: true, restore_timeout: wait, ..FailureSettings::default() };
    let mut group = builder(moody_in("stalls_anew", &[1]), &Placement::Threads, 2).failures(failures).build().unwrap();
    group.set_worker_state(WorkerId(1), false).unwrap();
    assert_eq!(group.probe_unhealthy_workers().unwrap(), []);
    let notices = notices(&mut group);
    let says = |notice: &String| notice.contains("worker 1 could not be brought back") && notice.contains("300ms");
    assert!(notices.iter().any(says), "{notices:?}");
    assert_eq!(group.healthy_worker_ids(), [WorkerId(2)]);
}

pub(crate) fn group_trusts_the_workers_that_it_admits() {
    let distrust = Distrust { distrust_remote: true, ..Distrust::default() };
    let security = SecurityConfig { distrust, ..SecurityConfig::default() };
    let refused = builder(cart_pole(), &Placement::Remote, 1).security(security).build().unwrap_err();
    assert!(matches!(refused, GroupError::Distrust), "{refused}");
}

pub(crate) fn group_without_encryption_warns() {
    let security = SecurityConfig { allow_unencrypted: true, ..SecurityConfig::default() };
    let group = builder(cart_pole(), &Placement::Remote, 0).security(security).listen(([0, 0, 0, 0], 0).into());
    let mut group = group.build().unwrap();
    group.add_workers_at(&processes(), 1, true).unwrap();
    let notices = notices(&mut group);
    assert!(notices.iter().any(|notice| notice.contains("not encrypted")), "{notices:?}");
}

pub(crate) fn workers_of_all_kinds_are_one_group() {
    let directory = tempfile::tempdir().unwrap();
    let security =
        SecurityConfig { tls: Some(TlsConfig::SelfSigned(directory.path().into())), ..SecurityConfig::default() };
    let mut mixed = builder(cart_pole(), &Placement::Threads, 1).security(security).build().unwrap();
    mixed.add_workers_at(&processes(), 1, true).unwrap();
    mixed.add_workers_at(&Placement::Remote, 1, true).unwrap();
    let (url, token) = (mixed.worker_url().unwrap(), mixed.worker_token().unwrap().to_hex());
    assert!(url.starts_with("wss://"), "{url}");
    let fingerprint = mixed.worker_fingerprint().unwrap();
    let mut remote = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--hub", &url, "--tls-fingerprint", &fingerprint])
        .env("ROLLMESH_TOKEN", &token)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(mixed.wait_for_workers(3, Duration::from_secs(60)).unwrap());
    assert_eq!(mixed.healthy_worker_ids(), [WorkerId(1), WorkerId(2), WorkerId(3)]);
    // All bits are those of threads alone, whose places are the same.
    let mut threads = group(cart_pole(), &Placement::Threads, 3);
    let sample = |group: &mut WorkerGroup| group.synchronous_parallel_sample(ParallelSample::env_steps(120)).unwrap();
    assert!(sample(&mut mixed) == sample(&mut threads));
    // Closures stay here.
    let ask =
        |ids: &[u32]| ForEachWorker::remote().remote_workers(ids.iter().copied().map(WorkerId).collect::<Vec<_>>());
    let closure = || rollmesh::worker_group::in_process(|worker| worker.num_envs());
    assert_eq!(mixed.foreach_worker_with(&ask(&[1]), closure()).unwrap(), [2]);
    for abroad in [2, 3] {
        let error = mixed.foreach_worker_with(&ask(&[1, abroad]), closure()).unwrap_err();
        assert!(matches!(error, GroupError::NotInProcess(WorkerId(worker)) if worker == abroad), "{error}");
    }
    let same = mixed.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap();
    assert_eq!(same, vec![WorkerAnswer::Pong; 3]);
    let failed = mixed.try_foreach_worker(&ForEachWorker::remote(), |_| named("panic")).unwrap();
    let panicked = |error: &rollmesh_core::calls::CallError| match error {
        rollmesh_core::calls::CallError::Failed(error) => error.kind == CommandErrorKind::Panicked,
        _ => false,
    };
    assert!(failed.iter().all(|(_, result)| result.as_ref().is_err_and(panicked)), "{failed:?}");
    mixed.stop();
    assert!(remote.wait().unwrap().success());
}

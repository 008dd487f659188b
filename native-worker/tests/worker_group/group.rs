//! Creation, growth and end of groups.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rollmesh::{
    WorkerGroup,
    launch::{Inventory, LaunchError, LocalLauncher, WorkerSpec},
    worker_group::{Evaluation, ForEachWorker, GroupError, ParallelSample, Placement, SyncWeights, in_process},
};
use rollmesh_core::{
    config::Config,
    env::{EnvError, EnvRegistry},
    ids::{PolicyId, WorkerId},
    policy::RandomPolicy,
    worker::{CommandErrorKind, NewPolicy, PolicyConfig, PolicyRoles, RolloutConfig, WorkerCommand},
};

use super::rig::{
    builder, cart_pole, connect, everywhere, group, launcher, moody, named, number, placements, processes,
};

pub(crate) fn new_workers_have_ids_that_are_never_reused() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 1);
        group.add_workers(2, true).unwrap();
        assert_eq!(group.remote_workers(), [WorkerId(1), WorkerId(2), WorkerId(3)]);
        let counts = |group: &WorkerGroup| (group.num_remote_workers(), group.num_healthy_workers());
        assert_eq!(counts(&group), (3, 4));
        let places = group.foreach_worker_with(&ForEachWorker::remote(), named("place")).unwrap();
        // The first one keeps the number from its set-up.
        assert_eq!(places.iter().map(|place| number(place, "num_workers")).collect::<Vec<_>>(), [1, 3, 3]);
        group.reset(2).unwrap();
        assert_eq!(group.remote_workers(), [WorkerId(4), WorkerId(5)]);
        assert_eq!(counts(&group), (2, 3));
        assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
    }
}

pub(crate) fn a_group_can_be_set_up_later_and_stopped_twice() {
    for placement in placements() {
        let mut group = builder(cart_pole(), &placement, 2).setup(false).build().unwrap();
        assert!(group.local_worker().is_none());
        assert_eq!(group.num_remote_workers(), 0);
        group.setup().unwrap();
        assert_eq!(group.num_healthy_workers(), 3);
        let pids = group.worker_pids();
        group.stop();
        group.stop();
        assert!(group.local_worker().unwrap().is_stopped());
        assert_eq!(group.num_remote_workers(), 0);
        assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
        assert!(matches!(group.add_workers(1, true), Err(GroupError::NotSetUp)));
        let notices: Vec<String> = std::iter::from_fn(|| group.next_notice()).collect();
        assert!(!notices.iter().any(|notice| notice.contains("did not stop well")), "{notices:?}");
    }
}

pub(crate) fn the_arguments_of_the_constructor_reach_workers() {
    let lake = EnvRegistry::builtin().spec("FrozenLake-v1").unwrap();
    let mut group = WorkerGroup::builder(RolloutConfig::default().rollout_fragment_length(10))
        .env_spec(lake.clone())
        .validate_env(|_env, context| match context.home.worker_index {
            9 => Err(EnvError::Failed("nine".into())),
            _ => Ok(()),
        })
        .default_policy_class("random")
        .num_workers(2)
        .logdir("/tmp/nowhere")
        .tune_trial_id("trial-1")
        .build()
        .unwrap();
    assert_eq!(group.tune_trial_id(), Some("trial-1"));
    let config = |group: &mut WorkerGroup| group.foreach_worker(in_process(|w| w.creation_args().clone())).unwrap();
    assert!(config(&mut group).iter().all(|config| config.log_dir.as_deref() == Some("/tmp/nowhere")));
    assert!(config(&mut group).iter().all(|config| config.policies[&PolicyId::DEFAULT].policy == "random"));
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);

    let refused = WorkerGroup::builder(RolloutConfig::default()).env_spec(lake.clone()).num_workers(1);
    let refused = refused.validate_env(|_, _| Err(EnvError::Failed("never".into()))).build().unwrap_err();
    assert!(refused.to_string().contains("never"), "{refused}");

    // A policy that is an object, for a worker that is alone.
    let mut alone = WorkerGroup::builder(RolloutConfig::default().rollout_fragment_length(5))
        .env_spec(lake)
        .policy(PolicyId::DEFAULT, || NewPolicy::object(Box::new(RandomPolicy::new(4, 1))))
        .local_worker(false)
        .build()
        .unwrap();
    assert_eq!((alone.num_healthy_workers(), alone.num_remote_workers()), (1, 0));
    assert_eq!(alone.synchronous_parallel_sample(ParallelSample::default()).unwrap()[0].env_steps(), 5);

    // Closures are not sent to other processes.
    let code = builder(cart_pole(), &processes(), 1).validate_env(|_, _| Ok(())).build().unwrap_err();
    assert!(matches!(code, GroupError::ClosuresNeedThreads), "{code}");
}

pub(crate) fn a_group_needs_a_local_worker_only_where_it_does() {
    for placement in placements() {
        let mut group = builder(cart_pole(), &placement, 2).local_worker(false).build().unwrap();
        assert!(group.local_worker().is_none());
        assert_eq!((group.num_healthy_workers(), group.num_healthy_remote_workers()), (2, 2));
        assert_eq!(group.foreach_worker(WorkerCommand::Ping).unwrap().len(), 2);
        // Another worker knows the spaces.
        let spaces = group.spaces().unwrap();
        assert_eq!(spaces.keys().collect::<Vec<_>>(), [&PolicyId::DEFAULT]);
        let error = group.is_policy_to_train(&PolicyId::DEFAULT, None).unwrap_err();
        assert!(matches!(error, GroupError::NoLocalWorker("is_policy_to_train")), "{error}");
        let mut with = builder(cart_pole(), &placement, 1).build().unwrap();
        assert_eq!(with.spaces().unwrap(), spaces);
        assert!(with.is_policy_to_train(&PolicyId::DEFAULT, None).unwrap());
        assert!(!with.is_policy_to_train(&PolicyId::new("other"), None).unwrap());
    }
}

pub(crate) fn policies_are_added_and_removed_in_every_placement() {
    for placement in everywhere() {
        let mut group = group(cart_pole(), &placement, 2);
        let (all, id) = (ForEachWorker::default(), PolicyId::new("second"));
        let kind = PolicyConfig::new("random");
        group.add_policy(&all, id.clone(), kind.clone(), None, PolicyRoles::default()).unwrap();
        assert_eq!(group.foreach_policy(named("id")).unwrap().len(), 6);
        // A worker that is added later has it, too.
        group.add_workers(1, true).unwrap();
        connect(&mut group, 3);
        assert_eq!(group.foreach_policy(named("id")).unwrap().len(), 8);
        let again = group.add_policy(&all, id.clone(), kind.clone(), None, PolicyRoles::default()).unwrap_err();
        assert!(
            matches!(&again, GroupError::Worker { error, .. } if error.kind == CommandErrorKind::Policy),
            "{again}"
        );
        group.remove_policy(&all, id.clone(), PolicyRoles::default()).unwrap();
        assert_eq!(group.foreach_policy(named("id")).unwrap().len(), 4);
        assert!(group.remove_policy(&all, id.clone(), PolicyRoles::default()).is_err());
        // On one of them alone.
        let second = ForEachWorker::remote().remote_workers([WorkerId(2)]);
        group.add_policy(&second, id, kind, None, PolicyRoles::default()).unwrap();
        assert_eq!(group.foreach_policy(named("id")).unwrap().len(), 5);
        assert_eq!(group.num_healthy_workers(), 4);
    }
}

pub(crate) fn worker_that_connects_by_itself_is_like_any_other() {
    const SOON: Duration = Duration::from_secs(60);
    let mut group = builder(cart_pole(), &Placement::Remote, 1).build().unwrap();
    assert_eq!((group.num_remote_workers(), group.num_healthy_remote_workers()), (1, 0));
    let (url, token) = (group.worker_url().unwrap(), group.worker_token().unwrap().to_hex());
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["worker", "--hub", &url])
            .env("ROLLMESH_TOKEN", &token)
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut first = start();
    assert!(group.wait_for_workers(1, SOON).unwrap());
    let remote = ForEachWorker::remote();
    let place = |group: &mut WorkerGroup| group.foreach_worker_with(&remote, named("place")).unwrap().remove(0);
    assert_eq!(place(&mut group).get("recreated").unwrap(), Some(false));
    let batches = group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let mut threads = super::rig::group(cart_pole(), &Placement::Threads, 1);
    assert!(batches == threads.synchronous_parallel_sample(ParallelSample::default()).unwrap());
    assert_eq!(group.num_remote_worker_restarts(), 0);

    first.kill().unwrap();
    first.wait().unwrap();
    while group.num_healthy_remote_workers() == 1 {
        group.foreach_worker_with(&remote, WorkerCommand::Ping).unwrap();
    }
    let mut second = start();
    assert!(group.wait_for_workers(1, SOON).unwrap());
    assert_eq!((group.num_remote_worker_restarts(), group.healthy_worker_ids()), (1, vec![WorkerId(1)]));
    assert_eq!(place(&mut group).get("recreated").unwrap(), Some(true));
    group.stop();
    // It was dismissed.
    assert!(second.wait().unwrap().success());
}

pub(crate) fn evaluation_has_a_group_of_its_own() {
    for placement in placements() {
        let mut training = group(cart_pole(), &placement, 1);
        let evaluation = Evaluation { num_workers: 1, ..Evaluation::default() };
        let mut evaluating = builder(cart_pole(), &placement, 0).evaluation(evaluation).build().unwrap();
        let place = evaluating.foreach_worker_with(&ForEachWorker::remote(), named("place")).unwrap().remove(0);
        assert_eq!(place.get("in_evaluation").unwrap(), Some(true));
        let weights = training.weights(None).unwrap();
        evaluating.sync_weights(SyncWeights::from_weights(&weights)).unwrap();
        let sample = |group: &mut WorkerGroup| group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        // Other episodes, and the most likely actions.
        assert!(sample(&mut evaluating) != sample(&mut training));
        let explores = evaluating.foreach_worker(WorkerCommand::CreationArgs).unwrap();
        assert!(explores.iter().all(
            |answer| matches!(answer, rollmesh_core::worker::WorkerAnswer::CreationArgs(config) if !config.explore)
        ));

        // It has environments of its own, and explores if the settings say so.
        let mut training = super::rig::group(moody(&[]), &placement, 1);
        let bad = Config::new().with("bad", [1]).unwrap();
        let evaluation = Evaluation { num_workers: 1, env_config: Some(bad), explore: true };
        let mut evaluating = builder(moody(&[]), &placement, 0).evaluation(evaluation).build().unwrap();
        let explores = evaluating.foreach_worker(WorkerCommand::CreationArgs).unwrap();
        assert!(explores.iter().all(
            |answer| matches!(answer, rollmesh_core::worker::WorkerAnswer::CreationArgs(config) if config.explore)
        ));
        let error = evaluating.synchronous_parallel_sample(ParallelSample::default()).unwrap_err();
        assert!(error.to_string().contains("a bad mood"), "{error}");
        sample(&mut training);
    }
}

pub(crate) fn processes_get_what_they_need() {
    let inventory = Inventory::new([0, 1]).with_resource("simulator", 2);
    let launcher = LocalLauncher::new(std::env::current_exe().unwrap()).with_inventory(inventory);
    let spec = WorkerSpec { cpus: 1, ..WorkerSpec::default() }.with_resource("simulator", 1);
    let mut group =
        builder(cart_pole(), &Placement::Processes(Some(Arc::new(launcher))), 2).worker_spec(spec).build().unwrap();
    let mut cpus: Vec<String> = group
        .worker_pids()
        .into_iter()
        .map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
        })
        .collect();
    cpus.sort();
    assert_eq!(cpus, ["0", "1"]);
    let error = group.add_workers(1, true).unwrap_err();
    assert!(matches!(error, GroupError::Launch(LaunchError::Short { what: "CPUs", .. })), "{error}");
    // Nothing has changed by that.
    assert_eq!((group.num_remote_workers(), group.worker_pids().len()), (2, 2));
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
}

pub(crate) fn resources_of_removed_workers_are_free() {
    let inventory = Inventory::new([0, 1]);
    let placement =
        |launcher: LocalLauncher| Placement::Processes(Some(Arc::new(launcher.with_inventory(inventory.clone()))));
    let spec = WorkerSpec { cpus: 1, ..WorkerSpec::default() };
    let mut group = builder(cart_pole(), &placement(launcher()), 1).worker_spec(spec).build().unwrap();
    let mut other = builder(cart_pole(), &placement(launcher()), 0)
        .worker_spec(WorkerSpec { cpus: 1, ..WorkerSpec::default() })
        .start_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    // A program that runs and never connects.
    let directory = tempfile::tempdir().unwrap();
    let (program, pid) = (directory.path().join("silent"), directory.path().join("pid"));
    std::fs::write(&program, format!("#!/bin/sh\necho $$ > {}\nexec sleep 1000\n", pid.display())).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let silent = placement(LocalLauncher::new(&program));
    let error = other.add_workers_at(&silent, 1, true).unwrap_err();
    assert!(matches!(error, GroupError::NotJoined { missing: 1, .. }), "{error}");
    let pid = std::fs::read_to_string(&pid).unwrap();
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "it has ended");
    // Its CPU is the next one's, and so are those of workers that had joined.
    group.add_workers(1, true).unwrap();
    group.reset(2).unwrap();
    assert_eq!((group.remote_workers(), group.worker_pids().len()), (vec![WorkerId(3), WorkerId(4)], 2));
    assert_eq!(group.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 2);
}

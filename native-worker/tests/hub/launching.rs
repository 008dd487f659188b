//! Local workers with exclusive resources.

use std::sync::Arc;

use rollmesh::{
    Registry,
    hub::Hub,
    launch::{Inventory, LocalLauncher, WorkerSpec},
    train::{RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::protocol::{
    Message,
    message::{Request, Scale, WorkerRequest},
};

use super::{TestHub, end, small, undisturbed};
use crate::support::{Process, soon};

/// Returns a line of the system's information about a process.
fn fact(pid: u32, file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.split(['\n', '\0']).find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().into()
}

#[tokio::test]
async fn workers_get_their_resources_and_the_operator_is_notified_of_refusals() {
    let inventory = Inventory::new([0, 1]).with_gpus(["GPU-a", "GPU-b"]).with_resource("simulator", 2);
    let launcher = LocalLauncher::new(env!("CARGO_BIN_EXE_rollmesh")).with_inventory(inventory);
    let mut hub = TestHub::start_with(Arc::new(launcher), WorkerSpec::default()).await;
    let mut operator = hub.operator().await;
    let worker = WorkerSpec { cpus: 1, gpus: Some(1), memory: Some(256 << 20), ..WorkerSpec::default() };
    let worker = Some(worker.with_resource("simulator", 1));
    let run = hub.train_with(small(2, 1_000_000_000), |config| config.host.worker = worker).await;
    hub.notice(" joined: ").await;
    hub.notice(" joined: ").await;
    let mut confined: Vec<_> = hub
        .hub
        .traffic()
        .await
        .worker_pids
        .into_iter()
        .map(|pid| {
            assert_eq!(fact(pid, "limits", "Max data size").split_whitespace().next(), Some("268435456"));
            (fact(pid, "status", "Cpus_allowed_list:"), fact(pid, "environ", "CUDA_VISIBLE_DEVICES="))
        })
        .collect();
    confined.sort();
    assert_eq!(confined, [("0".into(), "GPU-a".into()), ("1".into(), "GPU-b".into())]);
    let plus = |request| Message::AddWorker(Request { request });
    let refused = operator.ask(plus).await;
    assert_eq!(refused, "a worker needs 1 CPUs, of which 0 of 2 are free; start fewer workers or ask for less");
    // The next worker gets the resources of the previous one.
    assert_eq!(operator.ask(|request| Message::RemoveWorker(WorkerRequest { request, worker: 2 })).await, "");
    hub.notice("worker 2 left").await;
    hub.hub.traffic().await;
    let one_remains = || async { hub.hub.traffic().await.worker_pids.len() == 1 };
    while !one_remains().await {}
    assert_eq!(operator.ask(plus).await, "");
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_run_whose_workers_cannot_be_granted_does_not_begin() {
    let hub = TestHub::start().await;
    let worker = Some(WorkerSpec::default().with_resource("simulator", 1));
    let mut request = small(2, 2_000);
    request.config.host.worker = worker;
    let error = hub.hub.train(request).await.unwrap_err();
    assert!(error.is_usage());
    assert_eq!(
        error.to_string(),
        "a worker needs the resource 'simulator', and there is none of that name; declared are: none"
    );
    // The next one does.
    assert_eq!(end(hub.train(small(1, 2_000)).await).await.weights_hash.to_string(), undisturbed().await);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn request_for_too_many_workers_starts_none_and_leaves_no_files() {
    let launcher = LocalLauncher::new(env!("CARGO_BIN_EXE_rollmesh")).with_inventory(Inventory::new([0, 1]));
    let spec = WorkerSpec { cpus: 1, ..WorkerSpec::default() };
    let hub = TestHub::start_with(Arc::new(launcher), spec).await;
    let directory = tempfile::tempdir().unwrap();
    let run_dir = Some(directory.path().join("run"));
    let refused = "a worker needs 1 CPUs, of which 0 of 2 are free; start fewer workers or ask for less";
    let error = hub.hub.train(RunRequest { run_dir: run_dir.clone(), ..small(4, 2_000) }).await.unwrap_err();
    assert_eq!(error.to_string(), refused);
    let none_left = || async { hub.hub.traffic().await.worker_pids.is_empty() };
    soon("the end of the workers", async { while !none_left().await {} }).await;
    let mut operator = hub.operator().await;
    assert_eq!(operator.ask(|request| Message::Scale(Scale { request, num_workers: 3 })).await, refused);
    soon("the end of the workers", async { while !none_left().await {} }).await;
    // The directory is as free as the CPUs are.
    let run = hub.train(RunRequest { run_dir, ..small(2, 2_000) }).await;
    assert_eq!(end(run).await.end, RunEnd::Finished);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_program_that_is_none_is_a_notice() {
    let mut hub = TestHub::start_with(Arc::new(LocalLauncher::new("/no/such/program")), WorkerSpec::default()).await;
    let _run = hub.train(small(1, 2_000)).await;
    let line = hub.notice("could not be started").await;
    assert!(line.contains("/no/such/program cannot be started as a worker: "), "{line}");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn flags_set_the_resources_of_workers() {
    let flags = ["--worker-cpus", "1", "--worker-resource", "simulator=1", "--resources", "simulator=1"];
    let dir = tempfile::tempdir().unwrap();
    let refused = dir.path().join("refused");
    let refused = refused.to_str().unwrap();
    let train =
        ["train", "--workers", "2", "--max-env-steps", "2000", "--no-dashboard", "--json", "--run-dir", refused];
    let finished = Process::start(train.into_iter().chain(flags)).finish_with(2).await;
    assert!(finished.stderr.contains("of the resource 'simulator', of which 0 of 1 are free"), "{}", finished.stderr);
    let run_dir = dir.path().join("run");
    let run_dir = run_dir.to_str().unwrap();
    let train = ["train", "--workers", "1", "--max-env-steps", "2000", "--json", "--run-dir", run_dir];
    Process::start(train.into_iter().chain(flags)).finish_with(0).await;
    let config = std::fs::read_to_string(dir.path().join("run/config.toml")).unwrap();
    let config = RunConfig::of_settings(&toml::from_str(&config).unwrap()).unwrap();
    assert_eq!(config.host.worker, Some(WorkerSpec { cpus: 1, ..WorkerSpec::default() }.with_resource("simulator", 1)));
}

#[tokio::test]
async fn worker_killed_for_memory_is_reported_with_its_last_output_and_limit() {
    for (memory, bytes) in [("1MiB", 1_048_576), ("12MiB", 12_582_912)] {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run").display().to_string();
        let train = ["train", "--workers", "1", "--worker-memory", memory, "--no-dashboard", "--run-dir", &run_dir];
        // With a backtrace, a process that gets no memory would hang.
        let run = Process::start_with(train, |command| _ = command.env("RUST_BACKTRACE", "1"));
        let finished = run.finish_with(1).await;
        let limit = format!("; its memory is limited to {bytes} bytes, which --worker-memory sets)");
        let ended = "error: no more attempts to start local workers: they end as soon as they start (";
        let failed = |line: &str| line.starts_with(ended) && line.ends_with(&limit);
        assert!(finished.stderr.lines().any(failed), "{memory}: {}", finished.stderr);
    }
}

impl TestHub {
    async fn start_with(launcher: Arc<LocalLauncher>, worker: WorkerSpec) -> Self {
        Self::start_by("127.0.0.1:0", |config| async {
            Hub::start_with(config, &Registry::builtin(), launcher, worker).await
        })
        .await
    }
}

//! Programs that are asked to end finish what they have begun, and end immediately when they are asked again.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message, Role, Token,
    message::{LeaseGrant, Progress},
};
use serde_json::Value;

use super::{HubProcess, succeed};
use crate::support::{
    Process,
    client::Client,
    json,
    process::{Signal, children_of, has_ended},
    soon, until,
};

/// Returns the arguments of a run with a small network, so that an iteration takes milliseconds.
fn train(run_dir: &Path, workers: u32, max_env_steps: u64) -> Vec<String> {
    let numbers = [workers.to_string(), (12 / workers).to_string(), max_env_steps.to_string()];
    let [workers, num_envs_per_worker, max_env_steps] = &numbers;
    let args = ["train", "--hidden", "16,16", "--rollout-fragment-length", "16", "--seed", "1", "--run-dir"];
    let all = args.into_iter().chain([run_dir.to_str().unwrap(), "--workers", workers]);
    let all = all.chain(["--num-envs-per-worker", num_envs_per_worker, "--max-env-steps", max_env_steps]);
    all.map(String::from).collect()
}

fn summary(run_dir: &Path) -> Value {
    json(&std::fs::read_to_string(run_dir.join("summary.json")).unwrap())
}

/// Returns the hash of the weights after `env_steps` in an undisturbed run.
async fn undisturbed(env_steps: u64) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    Process::start(train(&run_dir, 1, env_steps)).finish_with(0).await;
    summary(&run_dir)["weights_hash"].clone()
}

#[tokio::test]
async fn sigterm_drains_a_run_and_saves_complete_iterations() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let mut run = Process::start(train(&run_dir, 2, u64::MAX));
    let invitation = run.invitation().await;
    let metrics = || std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap_or_default().lines().count();
    until("some iterations", || metrics() > 3).await;
    let workers = children_of(run.pid());
    let token = Token::from_hex(&invitation.operator_token).unwrap();
    let dashboard = Client::join(&invitation.address, Role::Operator, token).await;
    run.signal(Signal::TERM);
    assert_eq!(dashboard.close_code().await, Some(1001), "going away");
    let end = run.finish_with(0).await;
    assert!(end.stdout.contains(": drained\n"), "{}", end.stdout);
    assert!(workers.iter().all(|&worker| has_ended(worker)));
    let summary = summary(&run_dir);
    let env_steps = summary["env_steps"].as_u64().unwrap();
    assert_eq!(env_steps, 192 * metrics() as u64);
    assert_eq!(summary["weights_hash"], undisturbed(env_steps).await);
}

#[tokio::test]
async fn rolling_restart_of_all_workers_expires_no_lease() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let mut run = Process::start(train(&run_dir, 3, u64::MAX));
    let invitation = run.invitation().await;
    for _ in 0..3 {
        run.line(" joined: local-").await;
    }
    for (restarted, worker) in children_of(run.pid()).into_iter().enumerate() {
        rustix::process::kill_process(rustix::process::Pid::from_raw(worker as i32).unwrap(), Signal::TERM).unwrap();
        // Its socket and its process end in either order.
        let joined = format!(" joined: local-{} ", 4 + restarted);
        let mut missing = vec![" left: it was asked to leave", " takes its place", &joined];
        while !missing.is_empty() {
            let line = run.line("").await;
            missing.retain(|text| !line.contains(text));
        }
        until("the end of the worker", || has_ended(worker)).await;
    }
    succeed(&invitation, &["pause"]).await;
    let status = soon("nothing outstanding", async {
        loop {
            let status = json(&succeed(&invitation, &["status", "--json"]).await);
            if status["ledger"]["outstanding"] == 0 {
                return status;
            }
        }
    });
    let status = status.await;
    assert_eq!(status["num_worker_restarts"], 3);
    let ledger = &status["ledger"];
    assert_eq!((&ledger["balances"], &ledger["expired"]["left"]), (&true.into(), &0.into()), "{ledger}");
    assert!(super::total(&ledger["rejected"]) == 0 && super::total(&ledger["uninvited"]["rejected"]) == 0, "{ledger}");
    succeed(&invitation, &["drain"]).await;
    run.finish_with(0).await;
    let summary = summary(&run_dir);
    assert_eq!(summary["weights_hash"], undisturbed(summary["env_steps"].as_u64().unwrap()).await);
}

/// A worker that always makes progress and is never done.
struct Slow(tokio::task::JoinHandle<()>);

impl Slow {
    async fn join(hub: &HubProcess) -> Self {
        let token = Token::from_hex(&hub.invitation.worker_token).unwrap();
        let mut worker = Client::join(&hub.invitation.address, Role::Worker, token).await;
        worker.answer_able().await;
        let LeaseGrant { lease, .. } = worker
            .wait_for(|message| match message {
                Message::LeaseGrant(grant) => Some(grant.clone()),
                _ => None,
            })
            .await;
        Self(tokio::spawn(async move {
            let mut pause = tokio::time::interval(Duration::from_millis(50));
            for env_steps in 1.. {
                pause.tick().await;
                let progress = Message::Progress(Progress { lease, env_steps });
                if worker.send(crate::support::client::Frame::Binary(progress.encode().into())).await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn draining_hub_admits_no_workers_and_exits_at_the_second_request() {
    let mut hub = HubProcess::start().await;
    hub.start_run(0).await;
    let _slow = Slow::join(&hub).await;
    hub.process.signal(Signal::TERM);
    hub.process.line("the run is draining").await;
    assert_eq!(hub.status().await["phase"], "draining");
    for (command, reason) in [("pause", "the run is draining"), ("resume", "cannot be taken back")] {
        let end = hub.command(&[command]).await;
        assert!(end.status.code() == Some(1) && end.stderr.contains(reason), "{}", end.stderr);
    }
    let mut late = Process::worker(&hub.invitation.address, &hub.invitation.worker_token);
    late.line("the hub is about to end; trying again in ").await;
    hub.process.signal(Signal::TERM);
    hub.process.finish_with(143).await;
    // It tries to connect to its hub until it is asked to leave.
    late.signal(Signal::TERM);
    let end = late.finish_with(0).await;
    assert!(end.stderr.contains("it was asked to leave"), "{}", end.stderr);
}

#[tokio::test]
async fn leases_that_do_not_end_have_ten_seconds() {
    let mut hub = HubProcess::start().await;
    hub.start_run(0).await;
    let _slow = Slow::join(&hub).await;
    hub.process.signal(Signal::TERM);
    hub.process.line("the run is draining").await;
    let began = Instant::now();
    hub.process.finish_with(0).await;
    let seconds = began.elapsed().as_secs_f64();
    assert!((9.0..20.0).contains(&seconds), "{seconds} s");
}

#[tokio::test]
async fn worker_without_a_lease_leaves_immediately() {
    let mut hub = HubProcess::start().await;
    for signal in [Signal::INT, Signal::TERM] {
        let worker = Process::worker(&hub.invitation.address, &hub.invitation.worker_token);
        hub.process.line(" joined: worker").await;
        worker.signal(signal);
        worker.finish_with(0).await;
        hub.process.line(" left: it was asked to leave").await;
    }
}

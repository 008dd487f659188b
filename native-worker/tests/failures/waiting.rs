//! Runs whose only workers are remote: they wait for them, and say so.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    faulty::SLOT,
    runs::{Rig, assert_failed},
};
use crate::support::{
    self, Process,
    process::{Invitation, Signal},
};

/// A run that starts no workers.
fn remote_only(rig: &Rig, config: &Value, more: &[&str]) -> Process {
    let mut args = rig.args(0, config, &[&["--remote-only"], more].concat());
    let workers = args.iter().position(|arg| arg == "--workers").unwrap();
    args.drain(workers..workers + 2);
    Process::start_program(std::env::current_exe().unwrap(), args, |_| {})
}

fn worker(hub: &Invitation) -> Process {
    let url = format!("ws://{}", hub.address);
    Process::start_program(std::env::current_exe().unwrap(), ["worker", "--hub", &url], |command| {
        _ = command.env("ROLLMESH_TOKEN", &hub.worker_token);
    })
}

async fn status(hub: &Invitation) -> Value {
    let url = format!("ws://{}", hub.address);
    let status = Process::start_with(["status", "--json", "--hub", &url], |command| {
        _ = command.env("ROLLMESH_TOKEN", &hub.operator_token);
    });
    support::json(&status.finish_with(0).await.stdout)
}

pub(crate) async fn run_without_workers_waits_and_says_so() {
    let rig = Rig::new();
    let mut run = remote_only(&rig, &json!({}), &[]);
    let hub = run.invitation().await;
    run.line("the run is waiting for workers: none is connected").await;
    let found = status(&hub).await;
    assert_eq!(found["waiting"], "waiting for workers: none is connected", "{found}");
    let worker = worker(&hub);
    let end = run.finish_with(0).await;
    assert_eq!(end.stderr.matches("the run is waiting").count(), 1, "{}", end.stderr);
    worker.finish_with(0).await;
    rig.check_ledger();
}

pub(crate) async fn failures_are_in_the_status() {
    let rig = Rig::new();
    let config = json!({ "kind": "error", "once": rig.path("once") });
    let mut run = remote_only(&rig, &config, &["--max-env-steps", "100000000"]);
    let hub = run.invitation().await;
    let worker = worker(&hub);
    run.line("a fragment failed on worker ").await;
    let found = status(&hub).await;
    assert_eq!((&found["failures"], &found["waiting"]), (&json!(1), &Value::Null), "{found}");
    let last = found["last_failure"].as_str().unwrap();
    let place = format!("slot {SLOT}, episode 3, step 4: the environment failed: no fuel");
    assert!(last.contains(&place), "{found}");
    assert_eq!(found["ledger"]["balances"], true, "{found}");
    run.signal(Signal::TERM);
    run.finish_with(0).await;
    worker.finish_with(0).await;
    rig.check_ledger();
}

/// The worker is disconnected whenever it hangs, and comes back with another thread.
pub(crate) async fn only_remote_worker_that_hangs_ends_run_with_its_slot() {
    let rig = Rig::new();
    let mut run = remote_only(&rig, &json!({ "kind": "hang" }), &["--hung-worker-timeout", "1"]);
    let worker = worker(&run.invitation().await);
    run.line("hangs for 1000.000 ms: it is disconnected").await;
    run.line("the run is waiting for workers: none").await;
    let ended = (run.finish().await, Duration::ZERO);
    let place = format!("Faulty-v0, slot {SLOT}, episode 3, step 2: no progress for");
    assert_failed(&ended, &[&place, "5 attempts at this fragment have failed in a row"], Duration::MAX);
    rig.check_ledger();
    drop(worker);
}

//! Runs whose only workers are remote: they wait for them, with a notice.

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

/// Starts a run without local workers.
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

/// Starts a command of an operator.
fn command(hub: &Invitation, args: &[&str]) -> Process {
    let url = format!("ws://{}", hub.address);
    Process::start_with([args, &["--hub", &url]].concat(), |command| {
        _ = command.env("ROLLMESH_TOKEN", &hub.operator_token);
    })
}

async fn status(hub: &Invitation) -> Value {
    support::json(&command(hub, &["status", "--json"]).finish_with(0).await.stdout)
}

pub(crate) async fn run_without_workers_waits_and_reports_it() {
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

/// Lets all workers hang: the requested steps are not complete, although no lease is outstanding.
pub(crate) async fn hang_is_named_when_the_run_is_ended() {
    for (signal, ended) in [(Signal::INT, "stopped"), (Signal::TERM, "drained")] {
        let rig = Rig::new();
        let hangs = json!({ "kind": "hang", "all": true });
        let args = rig.args(2, &hangs, &["--no-dashboard"]);
        let mut run = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
        run.line("the run is waiting for workers: none of the 2 that are connected can continue").await;
        run.signal(signal);
        let end = run.finish_with(3).await;
        let place = ", episode 3, step 2: no progress for";
        assert!(end.stderr.contains(&format!("interrupted: Faulty-v0, slot 0{place}")), "{signal:?}: {}", end.stderr);
        let summary = rig.summary();
        assert_eq!(summary["end"], ended, "{summary}");
        assert!(summary["error"].as_str().unwrap().contains(place), "{summary}");
        assert_eq!(summary["failures"]["latest"][0]["kind"], "hang", "{summary}");
        rig.check_ledger();
    }
}

pub(crate) async fn start_that_waits_reports_the_hang_of_a_drained_run() {
    let rig = Rig::new();
    let runs_dir = rig.path("runs").display().to_string();
    let args = ["hub", "--listen", "127.0.0.1:0", "--runs-dir", &runs_dir];
    let mut process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    let hub = process.invitation().await;
    let env = ["env=Faulty-v0", "env_config.kind=hang", "env_config.all=true"];
    let size = ["num_workers=2", "num_envs=2", "num_slots=4", "rollout_fragment_length=16"];
    let settings = [&env[..], &size[..]].concat().into_iter().flat_map(|set| ["--set", set]);
    let run = command(&hub, &["start", "--wait"].into_iter().chain(settings).collect::<Vec<_>>());
    process.line("the run is waiting for workers: none of the 2 that are connected can continue").await;
    command(&hub, &["drain"]).finish_with(0).await;
    let ended = run.finish_with(3).await;
    let is_named = ended.stderr.contains("interrupted: Faulty-v0, slot ") && ended.stderr.contains(": no progress for");
    assert!(is_named, "{}", ended.stderr);
}

/// Checks the only worker, which is disconnected whenever it hangs, and reconnects with another thread.
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

/// Checks that the hub serves its peers meanwhile, and that the next run begins.
pub(crate) async fn hub_gives_up_runs_whose_environment_is_never_made() {
    let rig = Rig::new();
    let runs_dir = rig.path("runs").display().to_string();
    let args = ["hub", "--listen", "127.0.0.1:0", "--runs-dir", &runs_dir];
    let mut process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    let hub = process.invitation().await;
    let never = ["start", "--set", "env=Faulty-v0", "--set", "env_config.kind=make"];
    let start = |patience: &str| command(&hub, &[&never[..], &["--set", patience]].concat());
    let ended = start("hung_worker_timeout_s=1").finish_with(2).await;
    let reason = "the environment was not made within 1 s (hung_worker_timeout_s)";
    assert!(ended.stderr.contains(reason), "{}", ended.stderr);

    // The operator of the first run waits while others are queued.
    let waits = start("hung_worker_timeout_s=4");
    process.line("waiting for environment Faulty-v0 to be made").await;
    let queued = start("hung_worker_timeout_s=1").finish_with(0).await;
    let small = ["num_workers=0", "num_envs=2", "stop.env_steps=64"].map(|setting| ["--set", setting]).concat();
    let good = command(&hub, &[&["start", "--wait"], &small[..]].concat());
    let ended = waits.finish_with(2).await;
    assert!(ended.stderr.contains("within 4 s"), "{}", ended.stderr);
    let failed = process.line("could not begin: ").await;
    assert!(failed.contains(reason), "{failed} {}", queued.stdout);
    good.finish_with(0).await;
}

pub(crate) async fn run_whose_environment_is_being_made_is_listed_and_can_be_stopped() {
    let rig = Rig::new();
    let runs_dir = rig.path("runs").display().to_string();
    let args = ["hub", "--listen", "127.0.0.1:0", "--runs-dir", &runs_dir];
    let mut process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    let hub = process.invitation().await;
    let patient =
        ["env=Faulty-v0", "env_config.kind=make", "hung_worker_timeout_s=0"].map(|set| ["--set", set]).concat();
    let start = command(&hub, &[&["start"], &patient[..]].concat());
    process.line("waiting for environment Faulty-v0 to be made").await;
    let text = command(&hub, &["status"]).finish_with(0).await.stdout;
    assert!(text.contains("none yet · run 1 begins once environment Faulty-v0 is made"), "{text}");
    let runs = support::json(&command(&hub, &["runs", "--json"]).finish_with(0).await.stdout);
    let found = ["run", "state", "place", "env"].map(|name| &runs[0][name]);
    assert_eq!(found, [&json!(1), &json!("queued"), &json!(1), &json!("Faulty-v0")], "{runs}");
    let stopped = command(&hub, &["stop"]).finish_with(0).await.stdout;
    assert_eq!(stopped, "run 1: removed before it began\n");
    let ended = start.finish_with(2).await;
    assert!(ended.stderr.contains("the run was removed before it began"), "{}", ended.stderr);
    let small = ["num_workers=0", "num_envs=2", "stop.env_steps=64"].map(|setting| ["--set", setting]).concat();
    command(&hub, &[&["start", "--wait"], &small[..]].concat()).finish_with(0).await;
    // A hub that has had a run names the next one, too.
    let start = command(&hub, &[&["start"], &patient[..]].concat());
    process.line("waiting for environment Faulty-v0 to be made").await;
    let text = command(&hub, &["status"]).finish_with(0).await.stdout;
    assert!(text.contains(" · run 3 begins once environment Faulty-v0 is made"), "{text}");
    let found = status(&hub).await;
    assert_eq!((&found["run"], &found["starting"]), (&json!(2), &json!(3)), "{found}");
    drop(start);
}

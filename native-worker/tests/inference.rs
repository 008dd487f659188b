//! Runs in which a worker acts for the others, as processes and sockets.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig},
};
use rollmesh_core::protocol::{
    Message, Phase,
    message::{RunStatus, StartRun},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Process,
    hub::TestHub,
    json,
    process::{Invitation, kill},
};

const RUN: [&str; 9] = [
    "train",
    "--env",
    "StatelessCartPole-v1",
    "--num-slots",
    "12",
    "--rollout-fragment-length",
    "16",
    "--set",
    "preset=none",
];
const SMALL: [&str; 2] = ["--hidden", "16,16"];
const MEMORY: [&str; 6] =
    ["--hidden", "8", "--set", "model_config.use_lstm=true", "--set", "model_config.lstm_cell_size=6"];
const SERVER: [&str; 2] = ["--set", "inference=server"];

/// Begins a run in a directory of its own.
fn begin(more: &[&[&str]]) -> (Process, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("run").display().to_string();
    let more = more.iter().copied().flatten().copied();
    (Process::start(RUN.into_iter().chain(more).chain(["--run-dir", &place])), directory)
}

/// Waits for the end of a run, and returns its summary.
async fn end((run, directory): (Process, TempDir)) -> Value {
    run.finish_with(0).await;
    json(&std::fs::read_to_string(directory.path().join("run/summary.json")).unwrap())
}

fn server(Invitation { address, worker_token, .. }: &Invitation) -> Process {
    let hub = format!("ws://{address}");
    Process::start_with(["worker", "--serve-inference", "--hub", &hub], |command| {
        _ = command.env("ROLLMESH_TOKEN", worker_token)
    })
}

#[tokio::test]
async fn device_of_policies_does_not_change_the_weights() {
    for model in [&SMALL[..], &MEMORY] {
        let length = ["--max-env-steps", "1500"];
        let expected = end(begin(&[model, &length, &["--workers", "2"]])).await;
        assert!(expected["inferred_rows"].is_null(), "{expected}");
        let waits = ["--set", "inference_batch.min_rows=12", "--set", "inference_batch.wait_us=300"];
        for workers in [&["--workers", "2"][..], &["--workers", "0"], &[&["--workers", "3"], &waits[..]].concat()] {
            let found = end(begin(&[model, &length, &SERVER, workers])).await;
            assert_eq!(found["weights_hash"], expected["weights_hash"], "{workers:?}: {found}");
            assert_eq!(found["reproducible"], true, "{found}");
            // A row per env step at least, and the values after the last ones.
            assert!(found["inferred_rows"].as_u64() >= found["env_steps"].as_u64(), "{found}");
        }
    }
}

#[tokio::test]
async fn inference_worker_takes_over_and_another_one_after_it() {
    let length = ["--max-env-steps", "20000", "--workers", "2"];
    let expected = end(begin(&[&SMALL, &length])).await;
    let (mut run, directory) = begin(&[&SMALL, &length, &SERVER]);
    let invitation = run.invitation().await;
    let acts = "this worker acts for the other workers of run 1";
    for _ in 0..2 {
        let mut server = server(&invitation);
        server.line(acts).await;
        kill(server.pid());
        server.finish().await;
    }
    let mut last = server(&invitation);
    last.line(acts).await;
    let found = end((run, directory)).await;
    assert_eq!(found["weights_hash"], expected["weights_hash"]);
    assert!(found["inferred_rows"].as_u64() >= found["env_steps"].as_u64(), "{found}");
}

#[tokio::test]
async fn run_continues_while_the_inference_worker_hangs() {
    let length = ["--max-env-steps", "1500"];
    let expected = end(begin(&[&SMALL, &length, &["--workers", "2"]])).await;
    let (mut run, directory) = begin(&[&SMALL, &length, &SERVER, &["--workers", "0", "--remote-only"]]);
    let invitation = run.invitation().await;
    run.line(" joined: inference").await;
    let server = server(&invitation);
    // The hub's own worker leaves once this one is known to act.
    run.line(" left: ").await;
    server.signal(Signal::STOP);
    // It gets the first requests of these.
    let sampler = || Process::worker(&invitation.address, &invitation.worker_token);
    let _samplers = [sampler(), sampler()];
    let end = run.finish_with(0).await;
    assert!(
        end.stderr.contains("which acts for others, has answered nothing for 2 s: others act instead"),
        "{}",
        end.stderr
    );
    // Its requests are late, not the workers that wait for them.
    assert!(!end.stderr.contains("hung") && !end.stderr.contains("hangs"), "{}", end.stderr);
    let found = json(&std::fs::read_to_string(directory.path().join("run/summary.json")).unwrap());
    assert_eq!(found["weights_hash"], expected["weights_hash"], "{found}");
    server.signal(Signal::CONT);
}

#[tokio::test]
async fn worker_that_joins_late_acts_for_an_asynchronous_run() {
    let mode = ["--mode", "async", "--max-staleness", "3"];
    let (mut run, directory) = begin(&[&SMALL, &mode, &SERVER, &["--max-env-steps", "20000", "--workers", "2"]]);
    let invitation = run.invitation().await;
    for _ in 0..3 {
        let mut server = server(&invitation);
        server.line("this worker acts for the other workers of run 1").await;
        kill(server.pid());
        server.finish().await;
    }
    let found = end((run, directory)).await;
    assert!(found["failures"].is_null() && found["inferred_rows"].as_u64() > Some(0), "{found}");
}

#[tokio::test]
async fn run_that_a_page_starts_lets_one_worker_act() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::builtin();
    let in_directory = |config| HubConfig { runs_dir: Some(directory.path().into()), ..config };
    let start = |config| async { Hub::start(in_directory(config), &registry).await };
    let hub = TestHub::start_by("127.0.0.1:0", start).await;
    let mut page = hub.operator().await;
    let mut summaries = Vec::new();
    for (number, place) in (1..).zip(["local", "server"]) {
        let settings = json!({
            "env": "StatelessCartPole-v1", "num_workers": 2, "num_slots": 4, "rollout_fragment_length": 16, "preset": "none",
            "evaluation": { "episodes": 0 }, "stop": { "env_steps": 500 }, "inference": place,
        });
        let settings = settings.to_string();
        assert_eq!(page.ask(|request| Message::StartRun(StartRun { request, settings })).await, "");
        let ended = |status: &RunStatus| status.run == number && status.phase == Phase::Finished.to_wire();
        let status = hub.status("its end", ended).await;
        summaries.push(json(&std::fs::read_to_string(format!("{}/summary.json", status.run_dir)).unwrap()));
    }
    let (by_themselves, by_one) = (&summaries[0], &summaries[1]);
    assert_eq!(by_one["weights_hash"], by_themselves["weights_hash"]);
    assert!(by_themselves["inferred_rows"].is_null() && by_one["inferred_rows"].as_u64() >= Some(500), "{by_one}");
}

#[tokio::test]
async fn worker_that_acts_for_others_samples_for_no_run() {
    let (mut run, _directory) = begin(&[&SMALL, &["--workers", "0", "--remote-only"]]);
    let invitation = run.invitation().await;
    let mut server = server(&invitation);
    server.line("this worker acts for others, in runs with inference = \"server\"").await;
}

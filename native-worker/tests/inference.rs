//! Runs whose workers let another one act for them, as processes and sockets.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    Process, json,
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
async fn weights_do_not_show_where_policies_compute() {
    for model in [&SMALL[..], &MEMORY] {
        let length = ["--max-env-steps", "1500"];
        let expected = end(begin(&[model, &length, &["--workers", "2"]])).await;
        let waits = ["--set", "inference_batch.min_rows=12", "--set", "inference_batch.wait_us=300"];
        for workers in [&["--workers", "2"][..], &["--workers", "0"], &[&["--workers", "3"], &waits[..]].concat()] {
            let found = end(begin(&[model, &length, &SERVER, workers])).await;
            assert_eq!(found["weights_hash"], expected["weights_hash"], "{workers:?}: {found}");
            assert_eq!(found["reproducible"], true, "{found}");
        }
    }
}

#[tokio::test]
async fn worker_that_acts_for_others_takes_over_and_another_one_after_it() {
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
    assert_eq!(end((run, directory)).await["weights_hash"], expected["weights_hash"]);
}

#[tokio::test]
async fn worker_that_acts_for_others_samples_for_no_run() {
    let (mut run, _directory) = begin(&[&SMALL, &["--workers", "0", "--remote-only"]]);
    let invitation = run.invitation().await;
    let mut server = server(&invitation);
    server.line("this worker acts for others, in runs with inference = \"server\"").await;
}

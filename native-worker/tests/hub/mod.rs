//! The hub among peers that behave, misbehave, diverge and disconnect: real sockets, and workers as processes.

mod access;
mod checkpoints;
mod divergence_at_the_end;
mod divergence_found_later;
mod divergent;
mod evaluations;
mod evaluator_names;
mod hand_made;
mod in_process;
mod launchers;
mod launching;
mod matrix;
mod monitoring;
mod operators;
mod peers;
mod relays;
mod replacing;
mod sampling;
mod saved_runs;
mod workers;

use crate::support::{hub::TestHub, soon};
use rollmesh::{
    hub::PendingSummary,
    train::{RunConfig, RunEnd, RunRequest, Summary},
};

/// Returns a run of twelve environments and a small network, as in the tests of the command line. Without local workers
/// the run waits for those that join.
fn small(num_workers: u32, max_env_steps: u64) -> RunRequest {
    let run = RunConfig::new("CartPole-v1").num_workers(num_workers).num_envs(12 / num_workers.max(1)).seed(1);
    let run = run.fcnet_hiddens(&[16, 16]).rollout_fragment_length(16).stop_after(max_env_steps);
    RunRequest { remote_only: num_workers == 0, ..run.into() }
}

/// Returns the same, saved after every iteration.
fn saved_often(mut request: RunRequest) -> RunRequest {
    request.config.checkpoint_interval = 1;
    request
}

async fn end(summary: PendingSummary) -> Summary {
    soon("the end of the run", summary).await.expect("a summary")
}

/// Returns the weights' hash of an undisturbed run of 2,000 steps.
async fn undisturbed() -> String {
    let hub = TestHub::start().await;
    let summary = end(hub.train(small(1, 2_000)).await).await;
    hub.hub.shutdown().await;
    assert_eq!(summary.end, RunEnd::Finished);
    summary.weights_hash.to_string()
}

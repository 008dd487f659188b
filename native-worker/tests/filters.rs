//! Runs with an observation filter, as people run them.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;

use rollmesh::checkpoint::PolicyCheckpoint;
use rollmesh_core::{
    env::{EnvRegistry, Moment, RowsMut, RowsRef},
    filter::FrozenStat,
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, Policy as _},
};
use support::{
    Process, json,
    process::{Signal, children_of, kill},
    soon, until,
};

/// Twelve environments in all, whatever the number of workers.
fn args(run_dir: &Path, workers: u32, env_steps: u32) -> Vec<String> {
    let fixed = "train --env CartPole-v1 --hidden 16,16 --rollout-fragment-length 16 --seed 1 --checkpoint-interval 5 \
                 --observation-filter MeanStdFilter";
    let numbers = format!("--workers {workers} --num-envs-per-worker {} --max-env-steps {env_steps}", 12 / workers);
    let words = fixed.split_whitespace().chain(numbers.split_whitespace()).map(String::from);
    words.chain(["--run-dir".into(), run_dir.display().to_string()]).collect()
}

/// What a run has come to, whose statistics count every env step of it.
fn outcome(run_dir: &Path) -> PolicyCheckpoint {
    let found = PolicyCheckpoint::load(run_dir).unwrap();
    let frozen = FrozenStat::of_weights(&found.weights).unwrap().expect("a filter");
    assert_eq!(frozen.running().n(), found.env_steps, "every committed observation counts once");
    found
}

#[tokio::test]
async fn a_filter_counts_every_committed_observation_once_whatever_was_killed() {
    const ENV_STEPS: u32 = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let [calm, workers_killed, hub_killed] = ["calm", "workers", "hub"].map(|name| directory.path().join(name));
    Process::start(args(&calm, 1, ENV_STEPS)).finish_with(0).await;
    // The learner sees what the policy saw: else it would find other log-probabilities of its actions.
    let metrics = std::fs::read_to_string(calm.join("metrics.jsonl")).unwrap();
    let gap = |line: &str| json(line)["logp_gap"].as_f64().unwrap();
    assert!(metrics.lines().map(gap).all(|gap| gap < 1e-4), "{metrics}");
    let calm = outcome(&calm);
    assert!(calm.env_steps >= u64::from(ENV_STEPS));

    let mut run = Process::start(args(&workers_killed, 2, ENV_STEPS));
    // Whenever both are there, one dies.
    let (mut joined, mut killed) = (0, 0);
    while let Some(line) = soon("a line", run.next_line()).await {
        joined += u32::from(line.contains(" joined: "));
        if joined >= 2 && line.contains(" joined: ") && killed < 3 {
            kill(children_of(run.pid())[killed % 2]);
            killed += 1;
        }
    }
    run.finish_with(0).await;
    assert!(killed >= 2, "only {killed} died");
    assert_eq!(outcome(&workers_killed).weights, calm.weights);

    let run = Process::start(args(&hub_killed, 1, ENV_STEPS));
    let checkpoints = hub_killed.join("checkpoints");
    until("a checkpoint", || std::fs::read_dir(&checkpoints).is_ok_and(|found| found.count() > 1)).await;
    run.signal(Signal::KILL);
    run.finish().await;
    Process::start(["train".as_ref(), "--resume".as_ref(), hub_killed.as_os_str()]).finish_with(0).await;
    assert_eq!(outcome(&hub_killed).weights, calm.weights);

    // Whoever plays with the policy of a run gives it what the environment shows.
    let act = |found: &PolicyCheckpoint| {
        let mut policy = found.policy(&EnvRegistry::builtin(), Kernels::PORTABLE).unwrap();
        let (mut action, mut logp, mut value) = ([0], [0.0], [0.0]);
        let out = ActionOutput::new(RowsMut::I64(&mut action), &mut logp, &mut value);
        let moments = [Moment::default()];
        policy.compute_actions(ActionInput::new(RowsRef::F32(&[0.02, -0.4, 0.03, 0.6]), &moments), out).unwrap();
        value
    };
    let without = FrozenStat::of_weights(&calm.weights).unwrap().map(|_| {
        let weights = calm.weights.split_filter(rollmesh_core::filter::FILTER_PREFIX).unwrap().0;
        PolicyCheckpoint { weights, ..calm.clone() }
    });
    assert_ne!(act(&calm), act(&without.unwrap()));
}

#[tokio::test]
async fn late_fragments_find_the_statistics_of_their_weights() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let mode = ["--mode", "async", "--max-staleness", "3"].map(String::from);
    Process::start(args(&run_dir, 2, 10_000).into_iter().chain(mode)).finish_with(0).await;
    outcome(&run_dir);
}

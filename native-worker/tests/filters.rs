//! Runs with an observation filter, as people run them.

use std::path::Path;

use crate::support::{
    Process, json,
    process::{Signal, children_of, kill},
    soon, until,
};
use rollmesh::checkpoint::PolicyCheckpoint;
use rollmesh_core::{
    env::{EnvRegistry, Moment, RowsMut, RowsRef},
    filter::FrozenStat,
    ids::PolicyId,
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, Policy as _},
};

/// Returns the arguments of a run with twelve environments in all, whatever the number of workers.
fn args(run_dir: &Path, workers: u32, env_steps: u32) -> Vec<String> {
    let fixed = "train --env CartPole-v1 --hidden 16,16 --rollout-fragment-length 16 --seed 1 --checkpoint-interval 5 \
                 --observation-filter MeanStdFilter";
    let numbers = format!("--workers {workers} --num-envs-per-worker {} --max-env-steps {env_steps}", 12 / workers);
    let words = fixed.split_whitespace().chain(numbers.split_whitespace()).map(String::from);
    words.chain(["--run-dir".into(), run_dir.display().to_string()]).collect()
}

/// Returns the policy of a run, whose statistics must count every env step of it.
fn outcome(run_dir: &Path) -> PolicyCheckpoint {
    let found = PolicyCheckpoint::load(run_dir).unwrap();
    let frozen = FrozenStat::of_weights(&found.weights).unwrap().expect("a filter");
    assert_eq!(frozen.running().n(), found.env_steps, "every committed observation counts once");
    found
}

#[tokio::test]
async fn filter_counts_every_committed_observation_once_after_any_kill() {
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
    // Whenever both are connected, one is killed.
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

    // A program that acts with the policy of a run gives it what the environment shows.
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

/// Trains a town whose cars and lights have a filter each.
#[tokio::test]
async fn each_policy_of_a_game_has_statistics_of_its_observations() {
    let directory = tempfile::tempdir().unwrap();
    let run = |workers: u32| {
        let dir = directory.path().join(workers.to_string());
        let fixed = "train --env MultiAgentTrafficGrid-v0 --hidden 8 --num-slots 4 --rollout-fragment-length 16 --seed 1 \
                     --max-env-steps 640 --observation-filter MeanStdFilter --set env_config.size=2 --set env_config.num_cars=5";
        let args = format!("{fixed} --workers {workers} --run-dir {}", dir.display());
        (Process::start(args.split_whitespace().map(String::from)), dir)
    };
    let (calm, dir) = run(1);
    calm.finish_with(0).await;
    let found = PolicyCheckpoint::load(&dir).unwrap();
    let policies = found.weights.of_policies(&["car", "light"].map(PolicyId::new)).unwrap();
    let count = |id: &'static str| {
        FrozenStat::of_weights(&policies[&PolicyId::new(id)]).unwrap().expect("a filter").running().n()
    };
    assert_eq!(count("light"), 4 * found.env_steps, "four lights act in every step");
    let at_most = 5 * found.env_steps;
    assert!((1..=at_most).contains(&count("car")), "{} observations of five cars", count("car"));
    // The learner sees what the policies saw: else it would find other log-probabilities of their actions.
    let metrics = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    for line in metrics.lines().map(json) {
        for id in ["car", "light"] {
            let gap = line["policies"][id]["logp_gap"].as_f64();
            assert!(gap.is_some_and(|gap| gap < 1e-4), "{id}: {line}");
        }
    }
    let (two, dir) = run(2);
    two.finish_with(0).await;
    assert_eq!(PolicyCheckpoint::load(&dir).unwrap().weights, found.weights);

    Process::start([
        "train".as_ref(),
        "--resume".as_ref(),
        dir.as_os_str(),
        "--max-env-steps".as_ref(),
        "704".as_ref(),
    ])
    .finish_with(0)
    .await;
    let resumed = PolicyCheckpoint::load(&dir).unwrap();
    let policies = resumed.weights.of_policies(&["car", "light"].map(PolicyId::new)).unwrap();
    let lights = FrozenStat::of_weights(&policies[&PolicyId::new("light")]).unwrap().expect("a filter");
    assert_eq!(lights.running().n(), 4 * 704);
}

//! Environments and policies of every kind over leases: one weights hash for any number of workers, killed ones included.

use rollmesh::{
    Registry,
    train::{RunConfig, RunEnd},
};
use rollmesh_core::{
    config::Config,
    hash::{Hash128, run_weights_hash},
    ids::{PolicyId, WeightsVersion},
    weights::Weights,
    worker::RolloutWorkerBuilder,
};

use super::{TestHub, support::process::kill};

/// Updates of a run, and rows of each.
const UPDATES: u64 = 21;
const SLOTS: u32 = 6;
const LENGTH: u32 = 32;

/// Settings of a small town, whose two policies have a filter each.
const TOWN: &str = r#"{"env_config": {"size": 2, "num_cars": 5}, "observation_filter": "MeanStdFilter"}"#;
/// Its agents under the three policies of the example.
const TOWN_WITH_POLICIES: &str = r#"{
    "env_config": {"size": 2, "num_cars": 5},
    "policy_mapping_fn": "traffic",
    "policies": {
        "car_policy1": {"config": {"gamma": 0.85}},
        "car_policy2": {"config": {"gamma": 0.99}},
        "traffic_light_policy": {"policy": "a2c"}
    }
}"#;

/// Continuous actions, table and pixel observations, recurrent policies, and several agents, with the settings that make
/// them.
const CASES: [(&str, &str); 14] = [
    ("Pendulum-v1", r#"{"observation_filter": "MeanStdFilter"}"#),
    ("MountainCarContinuous-v0", r#"{"clip_rewards": true, "horizon": 50}"#),
    ("FrozenLake-v1", r#"{"env_config": {"is_slippery": false}}"#),
    ("Taxi-v4", r#"{"policies": {"default_policy": {"policy": "a2c"}}}"#),
    ("PixelBreakout-v0", r#"{"model_config": {"fcnet_hiddens": [16]}}"#),
    ("StatelessCartPole-v1", r#"{"model_config": {"use_lstm": true, "lstm_cell_size": 8, "max_seq_len": 10}}"#),
    ("RockPaperScissors-v0", "{}"),
    ("MultiAgentTrafficGrid-v0", TOWN),
    ("MultiAgentTrafficGrid-v0", TOWN_WITH_POLICIES),
    ("FrozenLake-v1", r#"{"remote_worker_envs": true}"#),
    ("MultiAgentCartPole-v1", r#"{"remote_worker_envs": true, "observation_filter": "MeanStdFilter"}"#),
    ("CartPole-v1", r#"{"batch_mode": "complete_episodes", "horizon": 50}"#),
    ("RockPaperScissors-v0", r#"{"count_steps_by": "agent_steps"}"#),
    ("CartPole-v1", r#"{"horizon": 20, "horizon_means": "legacy_soft", "no_done_at_end": true}"#),
];

fn run(env: &str, settings: &str, seed: u64, num_workers: u32) -> RunConfig {
    let usual = RunConfig::new(env).seed(seed).num_workers(num_workers).slots(SLOTS).num_envs(3);
    let steps = UPDATES * u64::from(SLOTS * LENGTH);
    let run = usual.fcnet_hiddens(&[16, 16]).rollout_fragment_length(LENGTH).stop_after(steps);
    let settings: Config = settings.parse().unwrap();
    run.merged(&settings).unwrap_or_else(|error| panic!("{env}: {error}"))
}

/// What comes of a run, and how many env steps of leases expired in it.
async fn train(config: RunConfig, kills: bool) -> (Hash128, u64) {
    let hub = TestHub::start().await;
    let has_equal_fragments = config.rollout.has_equal_fragments();
    let mut summary = hub.train(config.into()).await;
    let mut status = hub.hub.status();
    let mut expired = 0;
    let mut next = 4;
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut summary => break ended.unwrap(),
            Ok(()) = status.changed() => {
                let now = status.borrow_and_update().clone();
                expired = now.expired;
                if kills && now.iteration >= next {
                    // A worker may die between two leases: the next one follows soon until a lease was lost.
                    next = now.iteration + if expired == 0 { 1 } else { 4 };
                    if let Some(&victim) = hub.hub.traffic().await.worker_pids.first() {
                        kill(victim);
                    }
                }
            }
        }
    };
    assert_eq!(ended.end, RunEnd::Finished);
    let (steps, asked) = (ended.env_steps, UPDATES * u64::from(SLOTS * LENGTH));
    assert!(if has_equal_fragments { steps == asked } else { steps >= asked }, "{steps} env steps");
    hub.hub.shutdown().await;
    (ended.weights_hash, expired)
}

async fn has_one_result(env: &str, settings: &str) {
    // This test's program cannot be started again as the process of an environment.
    let fewest = u32::from(settings.contains("remote_worker_envs"));
    let (expected, _) = train(run(env, settings, 1, fewest), false).await;
    let (several, _) = train(run(env, settings, 1, 3), false).await;
    assert_eq!(several, expected, "{env} with three workers");
    let (killed, expired) = train(run(env, settings, 1, 2), true).await;
    assert_eq!(killed, expected, "{env} with workers that are killed");
    assert!(expired > 0, "{env}: no lease was lost");
    let (other, _) = train(run(env, settings, 2, 1), false).await;
    assert_ne!(other, expected, "{env} with another seed");
    let registry = rollmesh::native(Registry::builtin());
    let parts = RolloutWorkerBuilder::new(registry).learning_parts(&run(env, settings, 1, 1)).unwrap();
    let ids: Vec<PolicyId> = parts.policies.keys().cloned().collect();
    let policies = parts.policies.iter().map(|(id, policy)| (id, policy.weights()));
    let first = Weights::of_run(WeightsVersion(0), policies).unwrap();
    assert_ne!(run_weights_hash(&first, &ids).unwrap(), expected, "{env} has not learned");
}

#[tokio::test]
async fn continuous_actions_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[..2] {
        has_one_result(env, settings).await;
    }
}

#[tokio::test]
async fn table_observations_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[2..4] {
        has_one_result(env, settings).await;
    }
}

#[tokio::test]
async fn pictures_and_recurrent_policies_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[4..6] {
        has_one_result(env, settings).await;
    }
}

#[tokio::test]
async fn several_agents_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[6..9] {
        has_one_result(env, settings).await;
    }
}

/// Environments in processes of their own have no snapshots: a slot that moves replays its episode.
#[tokio::test]
async fn environments_in_processes_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[9..11] {
        has_one_result(env, settings).await;
    }
}

/// Fragments of different lengths, and environments that continue where an episode ends.
#[tokio::test]
async fn every_batch_mode_count_and_horizon_trains_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[11..] {
        has_one_result(env, settings).await;
    }
}

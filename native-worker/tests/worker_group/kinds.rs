//! What is sampled under which settings is the same wherever a worker is.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use rollmesh::{
    WorkerGroup,
    worker_group::{ParallelSample, Placement},
};
use rollmesh_core::{
    batch::AnyBatch,
    worker::{RolloutConfig, RolloutWorker, WorkerPlace},
};

use super::rig::{group, placements, registry};

/// Settings of a worker, over small samples of two environments.
const KINDS: [&str; 18] = [
    // Continuous actions, also transformed and not, with horizons that truncate and clipped rewards.
    r#"{"env": "Pendulum-v1", "observation_filter": "MeanStdFilter"}"#,
    r#"{"env": "MountainCarContinuous-v0", "horizon": 7, "clip_rewards": 0.5, "normalize_actions": false, "clip_actions": true}"#,
    // Tables, as they are and as vectors.
    r#"{"env": "Taxi-v4"}"#,
    r#"{"env": "FrozenLake-v1", "preprocessor_pref": "rllib"}"#,
    r#"{"env": "PixelBreakout-v0"}"#,
    r#"{"env": "PixelAsterix-v0", "compress_observations": true}"#,
    r#"{"env": "StatelessCartPole-v1", "model_config": {"use_lstm": true, "lstm_cell_size": 4, "max_seq_len": 5}}"#,
    // Several agents: under one policy, under several with a filter each, and with samples that end with episodes.
    r#"{"env": "RockPaperScissors-v0", "count_steps_by": "agent_steps"}"#,
    r#"{"env": "MultiAgentTrafficGrid-v0", "env_config": {"size": 2, "num_cars": 5}, "policy_mapping_fn": "traffic",
        "observation_filter": "MeanStdFilter",
        "policies": {"car_policy1": {}, "car_policy2": {"policy": "random"}, "traffic_light_policy": {}}}"#,
    r#"{"env": "MultiAgentCartPole-v1", "batch_mode": "complete_episodes"}"#,
    r#"{"env": "CartPole-v1", "horizon": 6, "horizon_means": "legacy_hard"}"#,
    r#"{"env": "CartPole-v1", "horizon": 6, "horizon_means": "legacy_soft"}"#,
    r#"{"env": "CartPole-v1", "horizon": 6, "horizon_means": "legacy_hard", "no_done_at_end": true}"#,
    r#"{"env": "CartPole-v1", "explore": false}"#,
    r#"{"env": "CartPole-v1", "fake_sampler": true}"#,
    // Environments of this program: the second observes a dict, which is also sampled as it is.
    r#"{"env": "Moody-v0"}"#,
    r#"{"env": "Sides-v0"}"#,
    r#"{"env": "Sides-v0", "preprocessor_pref": "none"}"#,
];

fn config(settings: &str) -> RolloutConfig {
    let config: RolloutConfig = serde_json::from_str(settings).unwrap();
    config.num_envs(2).rollout_fragment_length(12).seed(5)
}

/// A group whose one worker is a process that has connected by itself.
fn remote(config: RolloutConfig) -> (WorkerGroup, Child) {
    let mut group = group(config, &Placement::Remote, 1);
    let worker = Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--hub", &group.worker_url().unwrap()])
        .env("ROLLMESH_TOKEN", group.worker_token().unwrap().to_hex())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(group.wait_for_workers(1, Duration::from_secs(60)).unwrap());
    (group, worker)
}

fn samples(group: &mut WorkerGroup) -> Vec<AnyBatch> {
    (0..2).flat_map(|_| group.synchronous_parallel_sample(ParallelSample::default()).unwrap()).collect()
}

pub(crate) fn every_kind_is_sampled_with_the_same_bits_everywhere() {
    for settings in KINDS {
        let place = WorkerPlace::remote(1, 1);
        let mut here = RolloutWorker::from_config(config(settings), &registry(), place).unwrap();
        let expected: Vec<AnyBatch> = (0..2).map(|_| here.sample().unwrap()).collect();
        for placement in placements() {
            let found = samples(&mut group(config(settings), &placement, 1));
            assert!(found == expected, "{settings} with {placement:?}");
        }
        let (mut group, mut worker) = remote(config(settings));
        assert!(samples(&mut group) == expected, "{settings} with a worker that connects");
        group.stop();
        assert!(worker.wait().unwrap().success());
    }
}

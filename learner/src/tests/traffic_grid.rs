//! Several policies of one environment learn at the same time.

use std::collections::BTreeMap;

use rollmesh_core::{
    episode::EpisodeSummary,
    ids::PolicyId,
    kernels::Kernels,
    worker::{RolloutConfig, RolloutWorker},
};

use super::super::test_support::registry;

/// A small town, with the settings of the large one in examples/traffic_grid.
const TOWN: &str = r#"{
    "env": "MultiAgentTrafficGrid-v0", "env_config": {"num_cars": 6, "size": 2}, "seed": 1,
    "num_envs": 4, "rollout_fragment_length": 100, "policy_mapping_fn": "traffic",
    "policy_config": {
        "lr": 0.005, "anneal_to": 1, "lambda": 0.9, "entropy_coeff": 0.003, "num_epochs": 8, "minibatch_size": 256
    },
    "model_config": {"fcnet_hiddens": [32]},
    "policies": {
        "car_policy1": {"policy": "ppo", "config": {"gamma": 0.99}},
        "car_policy2": {"policy": "ppo", "config": {"gamma": 0.95}},
        "traffic_light_policy": {"policy": "ppo"}
    }
}"#;
/// Number of samples in which returns are measured.
const SAMPLES: usize = 3;

fn town() -> RolloutConfig {
    serde_json::from_str(TOWN).unwrap()
}

fn worker(config: RolloutConfig) -> RolloutWorker {
    RolloutWorker::new(config, &registry(), Kernels::PORTABLE).unwrap()
}

/// Returns the mean return of an agent under each policy, with the current weights.
fn returns(worker: &mut RolloutWorker) -> BTreeMap<PolicyId, f64> {
    worker.metrics();
    for _ in 0..SAMPLES {
        worker.sample().unwrap();
    }
    let episodes = worker.metrics().episodes;
    EpisodeSummary::of(&episodes).policy_reward.into_iter().map(|(id, spread)| (id, spread.mean)).collect()
}

#[test]
fn two_car_policies_and_one_for_the_lights_learn_together() {
    let mut config = town();
    config.policies.values_mut().for_each(|policy| policy.policy = "random".into());
    let random = returns(&mut worker(config));

    let mut worker = worker(town());
    for _ in 0..18 {
        let batch = worker.sample().unwrap();
        let infos = worker.learn_on_batch(&batch).unwrap();
        // Acting and learning agree on the policies that sampled the batch, from its first row on.
        assert!(infos.values().all(|info| info["logp_gap"] < 1e-4), "{infos:?}");
    }
    let trained = returns(&mut worker);
    for (id, margin) in [("car_policy1", 1.0), ("car_policy2", 1.0), ("traffic_light_policy", 0.5)] {
        let id = PolicyId::new(id);
        assert!(trained[&id] > random[&id] + margin, "{id}: {trained:?}, by chance {random:?}");
    }
}

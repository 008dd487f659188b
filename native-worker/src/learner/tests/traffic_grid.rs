//! Several policies of one environment learn beside each other.

use std::collections::BTreeMap;

use rollmesh_core::{
    episode::EpisodeSummary,
    ids::PolicyId,
    worker::{Registry, RolloutConfig, RolloutWorker},
};

use crate::{kernels, native};

/// A small town. Its cars see the next junction only, so that small networks do.
const TOWN: &str = r#"{
    "env": "MultiAgentTrafficGrid-v0", "env_config": {"num_cars": 6, "size": 2},
    "num_envs": 4, "rollout_fragment_length": 100, "policy_mapping_fn": "traffic",
    "policy_config": {"lr": 0.004, "entropy_coeff": 0.01, "num_epochs": 6, "minibatch_size": 256, "lambda": 0.95, "anneal_to": 1},
    "model_config": {"fcnet_hiddens": [32]},
    "policies": {
        "car_policy1": {"policy": "ppo", "config": {"gamma": 0.99}},
        "car_policy2": {"policy": "ppo", "config": {"gamma": 0.95}},
        "traffic_light_policy": {"policy": "ppo"}
    }
}"#;

fn town(seed: u64) -> RolloutWorker {
    let config = RolloutConfig { seed, ..serde_json::from_str(TOWN).unwrap() };
    RolloutWorker::new(config, &native(Registry::builtin()), kernels::AUTO).unwrap()
}

/// Mean return of an agent under each policy, of the episodes that end within so many samples.
fn returns(worker: &mut RolloutWorker, samples: usize, learn: bool) -> BTreeMap<PolicyId, f64> {
    let mut episodes = Vec::new();
    for _ in 0..samples {
        let batch = worker.sample().unwrap();
        if learn {
            worker.learn_on_batch(&batch).unwrap();
        }
        episodes.extend(worker.metrics().episodes);
    }
    EpisodeSummary::of(&episodes).policy_reward.into_iter().map(|(id, spread)| (id, spread.mean)).collect()
}

#[test]
fn car_and_light_policies_learn_together() {
    let mut worker = town(1);
    let random = returns(&mut worker, 6, false);
    for round in 0..10 {
        eprintln!("{round} {:?}", returns(&mut worker, 6, true));
    }
    let trained = returns(&mut worker, 6, false);
    assert!(false, "{random:?} {trained:?}");
}

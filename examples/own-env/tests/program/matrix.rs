//! Runs of environments and policies of this crate: one weights hash for any number of workers, including those that
//! join, leave and are killed, and for a hub that is killed.

use std::fs;

use rollmesh_example_own_env::registry;
use serde_json::{Value, json};

use crate::support::{self, Process, matrix::has_one_result, process::Signal, until};

/// The environment has a snapshot, and the policy has its own learner.
const CORRIDOR: (&str, &str) = (
    "Corridor-v0",
    r#"{"env_config": {"length": 6, "wind": 0.1}, "policies": {"default_policy": {"policy": "tally"}}}"#,
);
/// Several agents, whose slots move by replay; one of the two policies learns like those of the program.
const HUNT: (&str, &str) = (
    "Hunt-v0",
    r#"{
        "env_config": {"size": 8, "num_hunters": 3}, "policy_mapping_fn": "by_side", "callbacks": ["count_catches"],
        "policies": {"hunters": {}, "prey": {"policy": "tally"}}
    }"#,
);

#[tokio::test]
async fn an_own_environment_and_policy_train_with_one_hash_for_any_workers() {
    has_one_result(&registry(), CORRIDOR.0, CORRIDOR.1).await;
}

#[tokio::test]
async fn own_agents_and_functions_train_with_one_hash_for_any_workers() {
    has_one_result(&registry(), HUNT.0, HUNT.1).await;
}

/// The hub's workers are killed with it, in the middle of episodes.
#[tokio::test]
async fn own_environments_and_policies_end_with_same_weights_when_their_hub_is_killed() {
    for (env, settings) in [CORRIDOR, HUNT] {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut run: Value = support::json(settings);
        (run["env"], run["num_slots"], run["num_envs"]) = (env.into(), 4.into(), 2.into());
        (run["seed"], run["rollout_fragment_length"], run["stop"]) = (1.into(), 30.into(), json!({"env_steps": 8_400}));
        (run["checkpoint_interval"], run["model_config"]) = (3.into(), json!({"fcnet_hiddens": [8]}));
        fs::write(at("run.json"), run.to_string()).unwrap();
        let train = |name: &str, workers: &str| {
            let args = ["train", "--no-dashboard", "--config", &at("run.json"), "--workers", workers];
            Process::start([&args[..], &["--run-dir", &at(name)]].concat())
        };
        let summary = |name: &str| support::json(&fs::read_to_string(at(&format!("{name}/summary.json"))).unwrap());
        let iterations = || fs::read_to_string(at("killed/metrics.jsonl")).map_or(0, |text| text.lines().count());
        let resume = || Process::start(["train", "--no-dashboard", "--resume", &at("killed")]);
        train("calm", "0").finish_with(0).await;

        let mut process = train("killed", "2");
        for least in [5, 20, 35] {
            until("some iterations", || iterations() >= least).await;
            process.signal(Signal::KILL);
            let end = process.finish().await;
            assert_eq!(end.status.code(), None, "{env} ended by itself: {}", end.stderr);
            process = resume();
        }
        process.finish_with(0).await;
        let (killed, calm) = (summary("killed"), summary("calm"));
        assert_eq!((&killed["weights_hash"], &killed["iterations"]), (&calm["weights_hash"], &json!(70)), "{env}");
        assert_eq!(killed["policies"], calm["policies"], "{env}");
    }
}

//! Runs of environments and policies of this crate: one weights hash for any number of workers, those that come, go and are
//! killed included.

use rollmesh_example_own_env::registry;

use crate::support::matrix::has_one_result;

/// The environment has a snapshot, and the policy brings its learner.
#[tokio::test]
async fn an_own_environment_and_policy_train_with_one_hash_for_any_workers() {
    let settings = r#"{"env_config": {"length": 6, "wind": 0.1}, "policies": {"default_policy": {"policy": "tally"}}}"#;
    has_one_result(&registry(), "Corridor-v0", settings).await;
}

/// Several agents replay their episodes where they move; one of the two policies learns as those of the program do.
#[tokio::test]
async fn own_agents_and_functions_train_with_one_hash_for_any_workers() {
    let settings = r#"{
        "env_config": {"size": 8, "num_hunters": 3}, "policy_mapping_fn": "by_side", "callbacks": ["count_catches"],
        "policies": {"hunters": {}, "prey": {"policy": "tally"}}
    }"#;
    has_one_result(&registry(), "Hunt-v0", settings).await;
}

//! Checks that the environments follow the rules.

use rollmesh_core::env::{check_env, check_multi_agent_env};

#[test]
fn the_environments_keep_the_rules() {
    let registry = rollmesh_example_own_env::registry();
    check_env(&registry.envs.spec("Corridor-v0").unwrap(), 3).unwrap();
    check_multi_agent_env(&registry.envs.multi_agent("Hunt-v0").unwrap(), 3).unwrap();
}

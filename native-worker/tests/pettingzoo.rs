//! Games of PettingZoo itself. They need its package, so no bare `cargo test` runs them: `cargo xtask test pettingzoo` does.
#![cfg(target_os = "linux")]

use std::path::Path;

use rollmesh::{Registry, envs::PythonSettings, native};
use rollmesh_core::{
    env::{EnvContext, check_multi_agent_env},
    ids::HomeIndex,
    space::Space,
};

#[test]
fn games_of_pettingzoo_keep_the_rules_of_environments_with_several_agents() {
    let folder = std::env::var_os("VIRTUAL_ENV").expect("a virtual environment: run `cargo xtask test pettingzoo`");
    let allowed = "pettingzoo:*,pettingzoo:pettingzoo.classic.*:*".parse().unwrap();
    PythonSettings { allowed, interpreter: Some(Path::new(&folder).join("bin/python3")) }.install();
    let registry = native(Registry::builtin()).envs;
    // At once, in turn with an action mask in the observation, and in turn although they could act at once.
    let games =
        ["pettingzoo:classic/rps_v2", "pettingzoo:classic/tictactoe_v3", "pettingzoo:pettingzoo.classic.rps_v2:env"];
    for (name, n) in games.iter().zip([3, 9, 3]) {
        let spec = registry.multi_agent(name).unwrap();
        check_multi_agent_env(&spec, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        let game = spec.make(&EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 })).unwrap();
        let agents = game.agents();
        assert_eq!(agents.len(), 2, "{name}: {agents:?}");
        assert!(agents.iter().all(|agent| game.spaces(agent).unwrap().action == Space::Discrete { n }), "{name}");
    }
}

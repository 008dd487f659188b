//! Environments of PettingZoo, Box2D and the Arcade Learning Environment. They need packages that take minutes to install, so
//! no bare `cargo test` runs them: `cargo xtask test python-packages` does.

use std::path::Path;

use rollmesh::{Registry, envs::PythonSettings, native};
use rollmesh_core::{
    env::{EnvContext, check_multi_agent_env},
    ids::HomeIndex,
    space::Space,
};

use super::matrix::Run;

#[test]
fn games_of_pettingzoo_keep_the_rules_of_environments_with_several_agents() {
    let folder =
        std::env::var_os("VIRTUAL_ENV").expect("a virtual environment: run `cargo xtask test python-packages`");
    let allowed = "pettingzoo:*,pettingzoo:pettingzoo.classic.*:*".parse().unwrap();
    let interpreter = Some(Path::new(&folder).join("bin/python3"));
    PythonSettings { allowed, interpreter, ..PythonSettings::default() }.install();
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

/// The packages of `CartPole-v1` are those of the short suite.
#[tokio::test]
async fn weights_are_the_same_for_any_workers_and_whichever_dies() {
    // A reset of Breakout loads the game, which takes as long as hundreds of steps.
    let atari = r#"{"frameskip": 4, "obs_type": "ram"}"#;
    let cases: [(&str, &[&str]); 4] = [
        ("gym:LunarLander-v3", &["--max-env-steps", "3200", "--python-processes", "2"]),
        ("gym:ALE/Breakout-v5", &["--max-env-steps", "896", "--env-config", atari]),
        ("pettingzoo:classic/rps_v2", &["--max-env-steps", "1600"]),
        ("pettingzoo:classic/tictactoe_v3", &["--max-env-steps", "1600"]),
    ];
    for (env, more) in cases {
        let directory = tempfile::tempdir().unwrap();
        Run { env, more, python_path: "" }.check(directory.path()).await;
    }
}

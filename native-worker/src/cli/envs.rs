//! `rollmesh envs`: the environments that the program knows.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::{env::EnvSpec, space::Space};
use serde_json::{Value, json};

use super::exit::Failure;
use crate::Registry;

#[derive(Args)]
pub(super) struct EnvsArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EnvsArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if args.json {
        let envs: Vec<Value> = registry.envs.iter().map(describe).collect();
        println!("{}", Value::from(envs));
        return Ok(ExitCode::SUCCESS);
    }
    for env in registry.envs.iter() {
        let spaces = env.spaces();
        let limit = env.max_episode_steps.map_or_else(|| "no limit".to_owned(), |n| format!("{n} steps"));
        println!("{:<20} {:<24} {:<16} {limit}", env.name, name(&spaces.observation), name(&spaces.action));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(env: &EnvSpec) -> Value {
    let spaces = env.spaces();
    json!({
        "name": env.name,
        "observation_space": name(&spaces.observation),
        "action_space": name(&spaces.action),
        "max_episode_steps": env.max_episode_steps,
        "reward_threshold": env.reward_threshold,
    })
}

fn name(space: &Space) -> String {
    match space {
        Space::Box { shape, .. } => format!("Box{shape}"),
        Space::Discrete { n } => format!("Discrete({n})"),
    }
}

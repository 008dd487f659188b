//! `rollmesh envs`: the environments that the program knows.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::env::EnvSpec;
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
        println!("{:<20} {:<24} {:<16} {limit}", env.name, spaces.observation.to_string(), spaces.action.to_string());
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(env: &EnvSpec) -> Value {
    let spaces = env.spaces();
    json!({
        "name": env.name,
        "observation_space": spaces.observation.to_string(),
        "action_space": spaces.action.to_string(),
        "max_episode_steps": env.max_episode_steps,
        "reward_threshold": env.reward_threshold,
    })
}

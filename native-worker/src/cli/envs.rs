//! `rollmesh envs`: the environments that the program knows.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::{
    env::{EnvError, EnvSpec},
    space::Space,
};
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
        let envs: Vec<Value> = registry.envs.iter().map(describe).collect::<Result<_, _>>().map_err(Failure::other)?;
        println!("{}", Value::from(envs));
        return Ok(ExitCode::SUCCESS);
    }
    let table: Vec<[String; 4]> = registry.envs.iter().map(row).collect::<Result<_, _>>().map_err(Failure::other)?;
    let widths: [usize; 4] = std::array::from_fn(|i| table.iter().map(|row| row[i].len()).max().unwrap_or(0));
    for row in &table {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect::<Vec<_>>();
        println!("{}", cells.join("  ").trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Name, observations, actions, time limit.
fn row(env: &EnvSpec) -> Result<[String; 4], EnvError> {
    let short = |space: &Space| match space {
        Space::Box(space) => format!("{} {}", space.dtype(), space.shape()),
        other => other.to_string(),
    };
    let spaces = env.spaces()?;
    let limit = env.max_episode_steps.map_or_else(|| "no limit".to_owned(), |n| format!("{n} steps"));
    Ok([env.name.clone(), short(&spaces.observation), short(&spaces.action), limit])
}

fn describe(env: &EnvSpec) -> Result<Value, EnvError> {
    let spaces = env.spaces()?;
    Ok(json!({
        "name": env.name,
        "observation_space": spaces.observation.to_string(),
        "action_space": spaces.action.to_string(),
        "max_episode_steps": env.max_episode_steps,
        "reward_threshold": env.reward_threshold,
    }))
}

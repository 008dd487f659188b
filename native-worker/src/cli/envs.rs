//! `rollmesh envs`: lists the registered environments.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::{
    env::{EnvContext, EnvError, EnvSpaces, EnvSpec, MultiAgentSpec},
    ids::{AgentId, HomeIndex},
    space::Space,
};
use serde_json::{Value, json};

use super::exit::Failure;
use crate::Registry;

#[derive(Args)]
pub(super) struct EnvsArgs {
    /// Print one JSON array; environments with several agents have `agents`, what cannot be made without settings has `error`
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EnvsArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if args.json {
        println!("{}", objects(registry));
        return Ok(ExitCode::SUCCESS);
    }
    let (single, multi) = (|| registry.envs.iter(), || registry.envs.iter_multi_agent());
    let mut failures = Vec::new();
    let mut table: Vec<[String; 4]> = Vec::new();
    for env in single() {
        match row(env) {
            Ok(row) => table.push(row),
            Err(error) => failures.push((&env.name, error)),
        }
    }
    for env in multi() {
        match agent_rows(env) {
            Ok(rows) => table.extend(rows),
            Err(error) => failures.push((&env.name, error)),
        }
    }
    table.extend(
        registry.base_envs().map(|name| [name.into(), "of its own shape".into(), String::new(), String::new()]),
    );
    print!("{}", super::table::table(&table, |_| false));
    // It may require settings.
    for (name, error) in failures {
        println!("{name}  cannot be made without settings: {error}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns an object for each environment, also for those that cannot be made without settings.
fn objects(registry: &Registry) -> Value {
    let failed = |name: &str, error: EnvError| json!({ "name": name, "error": error.to_string() });
    let single = registry.envs.iter();
    let single = single.map(|env| describe(env).unwrap_or_else(|error| failed(&env.name, error)));
    let multi = registry.envs.iter_multi_agent();
    let multi = multi.map(|env| describe_agents(env).unwrap_or_else(|error| failed(&env.name, error)));
    let base = registry.base_envs().map(|name| json!({ "name": name }));
    single.chain(multi).chain(base).collect()
}

fn short(space: &Space) -> String {
    match space {
        Space::Box(space) => format!("{} {}", space.dtype(), space.shape()),
        other => other.to_string(),
    }
}

fn limit(max_episode_steps: Option<u32>) -> String {
    max_episode_steps.map_or_else(|| "no limit".to_owned(), |n| format!("{n} steps"))
}

/// Returns name, observations, actions and time limit.
pub(super) fn row(env: &EnvSpec) -> Result<[String; 4], EnvError> {
    let spaces = env.spaces()?;
    Ok([env.name.clone(), short(&spaces.observation), short(&spaces.action), limit(env.max_episode_steps)])
}

/// Returns one row for the environment, and one for each kind of agents, which are those with the same spaces.
pub(super) fn agent_rows(env: &MultiAgentSpec) -> Result<Vec<[String; 4]>, EnvError> {
    let agents = agents(env)?;
    let mut kinds: Vec<(EnvSpaces, Vec<AgentId>)> = Vec::new();
    for (agent, spaces) in &agents {
        match kinds.iter_mut().find(|(known, _)| known == spaces) {
            Some((_, alike)) => alike.push(agent.clone()),
            None => kinds.push((spaces.clone(), vec![agent.clone()])),
        }
    }
    let count = match agents.len() {
        1 => "1 agent".to_owned(),
        n => format!("{n} agents"),
    };
    let mut rows = vec![[env.name.clone(), count, String::new(), limit(env.max_episode_steps)]];
    for (spaces, alike) in kinds {
        let name = match alike.as_slice() {
            [first, .., last] => format!("  {first} … {last} ({})", alike.len()),
            rest => format!("  {}", rest.first().map_or_else(String::new, ToString::to_string)),
        };
        rows.push([name, short(&spaces.observation), short(&spaces.action), String::new()]);
    }
    Ok(rows)
}

/// Returns the agents of a new instance without settings.
fn agents(env: &MultiAgentSpec) -> Result<Vec<(AgentId, EnvSpaces)>, EnvError> {
    let env = env.make(&EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 }))?;
    let agents = env.agents().into_iter();
    Ok(agents.filter_map(|agent| env.spaces(&agent).map(|spaces| (agent, spaces))).collect())
}

fn describe(env: &EnvSpec) -> Result<Value, EnvError> {
    let spaces = env.spaces()?;
    Ok(json!({
        "name": env.name,
        "observation_space": spaces.observation.to_string(),
        "action_space": spaces.action.to_string(),
        "max_episode_steps": env.max_episode_steps,
        "reward_threshold": env.reward_threshold,
        "settings": env.settings,
    }))
}

fn describe_agents(env: &MultiAgentSpec) -> Result<Value, EnvError> {
    let describe = |(agent, spaces): (AgentId, EnvSpaces)| {
        json!({
            "agent": agent.to_string(),
            "observation_space": spaces.observation.to_string(),
            "action_space": spaces.action.to_string(),
        })
    };
    let agents: Vec<Value> = agents(env)?.into_iter().map(describe).collect();
    Ok(json!({ "name": env.name, "agents": agents, "max_episode_steps": env.max_episode_steps }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_needs_settings_hides_no_other() {
        let needy = EnvSpec::fallible("Needy-v0", |_, _| Err(EnvError::Failed("where is the map?".into())));
        let objects = objects(&Registry::empty().with_env(needy).with_base_env("Radio-v0", |_, _| unreachable!()));
        let needy = json!({ "name": "Needy-v0", "error": "the environment failed: where is the map?" });
        assert_eq!(objects, json!([needy, { "name": "Radio-v0" }]));
    }
}

//! The core for JavaScript: the engine of the npm package `rollmesh`, see `web/npm`.
//!
//! The crate only converts; `rollmesh-core` computes. The exports are for the package's TypeScript, which documents
//! them: handles of the core's objects, settings as JSON, and rows as typed arrays.

mod batch;
mod columns;
mod envs;
mod failure;
mod lanes;
mod metrics;
mod operator;
mod policy;
mod tab;
mod worker;

pub use batch::{BatchHandle, batch_hash};
pub use envs::{env_random, register_env};
pub use failure::{Failure, use_error_class};
pub use lanes::LanesHandle;
pub use operator::OperatorHandle;
pub use policy::PolicyHandle;
pub use tab::work;
pub use worker::WorkerHandle;

use rollmesh_core::{
    env::{EnvContext, EnvSpaces},
    hash::{BatchHasher, Hash128},
    kernels::Kernels,
    worker::{RegisteredEnv, RolloutConfig, RolloutError, RolloutWorker, WorkerPlace},
};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

/// Returns the hash of a rollout of the given number of env steps over all environments as 32 hexadecimal digits, which
/// `rollmesh sample` prints for the same settings. `config` is a worker's configuration as JSON.
#[wasm_bindgen]
pub fn rollout_hash(config: &str, steps: u32) -> Result<String, Failure> {
    let config = config.parse()?;
    Ok(rollmesh_core::worker::rollout_hash(config, steps.into(), &envs::registry(), Kernels::PORTABLE)?.to_string())
}

/// Returns the hash of a worker's samples as 32 hexadecimal digits, which `rollmesh sample --config FILE` prints for as
/// many samples. `config` is the file's content, JSON.
#[wasm_bindgen]
pub fn sample_hash(config: &str, samples: u32) -> Result<String, Failure> {
    Ok(hash_of_samples(config.parse()?, samples)?.to_string())
}

/// Returns the hash of a fixed rollout as 32 hexadecimal digits. Peers with the same hash compute the same bits.
#[wasm_bindgen]
#[must_use]
pub fn core_fingerprint() -> String {
    Hash128(rollmesh_core::worker::core_fingerprint(Kernels::PORTABLE)).to_string()
}

/// Describes all environments, or the one of that name with settings as JSON, in a JSON list with names, spaces by
/// agent and time limits.
#[wasm_bindgen(js_name = describeEnvs)]
pub fn describe_envs(name: Option<String>, config: &str) -> Result<String, Failure> {
    let registry = envs::registry();
    let config = config.parse().map_err(Failure::config)?;
    let context = EnvContext::new(WorkerPlace::LOCAL.home(0)).with_config(config);
    let all = registry.envs.iter().map(|spec| &spec.name);
    let names: Vec<String> = match name {
        Some(name) => vec![name],
        None => all.chain(registry.envs.iter_multi_agent().map(|spec| &spec.name)).cloned().collect(),
    };
    let described = names.iter().map(|name| match registry.env(name).map_err(Failure::config)? {
        RegisteredEnv::SingleAgent(spec) => {
            let spaces = spec.spaces_in(&context)?;
            Ok(json!({ "name": name, "maxEpisodeSteps": spec.max_episode_steps, "spaces": of_spaces(&spaces)? }))
        }
        RegisteredEnv::MultiAgent(spec) => {
            let env = spec.make(&context)?;
            let agents = env.agents().into_iter().filter_map(|agent| Some((agent.to_string(), env.spaces(&agent)?)));
            let agents: Result<serde_json::Map<_, _>, Failure> =
                agents.map(|(agent, spaces)| Ok((agent, of_spaces(&spaces)?))).collect();
            Ok(json!({ "name": name, "maxEpisodeSteps": spec.max_episode_steps, "agents": agents? }))
        }
        RegisteredEnv::Base(_) => Ok(json!({ "name": name })),
    });
    Ok(Value::Array(described.collect::<Result<_, Failure>>()?).to_string())
}

fn of_spaces(spaces: &EnvSpaces) -> Result<Value, Failure> {
    Ok(json!({
        "observation": serde_json::to_value(&spaces.observation)?,
        "observationType": spaces.observation_type.name(),
        "action": serde_json::to_value(&spaces.action)?,
        "actionType": spaces.action_type.name(),
    }))
}

/// Returns spaces and their element types as JSON.
pub(crate) fn spaces_json(spaces: &EnvSpaces) -> Result<String, Failure> {
    Ok(of_spaces(spaces)?.to_string())
}

fn hash_of_samples(config: RolloutConfig, samples: u32) -> Result<Hash128, RolloutError> {
    let mut worker = RolloutWorker::from_config(config, &envs::registry(), WorkerPlace::LOCAL)?;
    let mut hasher = BatchHasher::new();
    for _ in 0..samples {
        hasher.add(&worker.sample()?)?;
    }
    Ok(hasher.finish())
}

//! The core for JavaScript: what a page, a Web Worker or Node can call.
//!
//! Only conversions live here; whatever is computed is computed by `rollmesh-core`.

mod batch;
mod data;
mod metrics;
mod sampler;

pub use batch::Batch;
pub use data::{DataFile, DataReport};
pub use metrics::Metrics;
pub use sampler::Sampler;

use rollmesh_core::{
    hash::{BatchHasher, Hash128},
    kernels::Kernels,
    worker::{self, RolloutConfig, RolloutError, RolloutWorker, WorkerPlace},
};
use rollmesh_web_registry::registry;
use wasm_bindgen::prelude::*;

/// Hash of a rollout, as 32 hexadecimal digits: what `rollmesh sample` prints for the same arguments.
///
/// `hidden` are the widths of the hidden layers of a policy with first weights from the seed; without them the policy
/// is uniformly random. `steps` are the env steps over all environments.
///
/// # Errors
/// A text for an unknown environment or numbers that make no sense.
#[wasm_bindgen]
pub fn rollout_hash(
    env: &str,
    hidden: Option<Vec<u32>>,
    num_envs: u32,
    seed: u64,
    steps: u32,
) -> Result<String, JsError> {
    hash(env, hidden, num_envs, seed, steps)
        .map(|hash| hash.to_string())
        .map_err(|error| JsError::new(&error.to_string()))
}

/// Hash of what a worker samples, as 32 hexadecimal digits: what `rollmesh sample --config FILE` prints for as many
/// samples. `config` is the file's content, JSON; it may name whatever is
/// [registered](rollmesh_web_registry::registry).
///
/// # Errors
/// A text for settings that make no sense, unknown names and failures.
#[wasm_bindgen]
pub fn sample_hash(config: &str, samples: u32) -> Result<String, JsError> {
    let config = serde_json::from_str(config).map_err(|error| JsError::new(&error.to_string()))?;
    batch_hash(config, samples).map(|hash| hash.to_string()).map_err(|error| JsError::new(&error.to_string()))
}

/// Hash of a fixed rollout, as 32 hexadecimal digits. Peers with the same one make the same bits.
#[wasm_bindgen]
#[must_use]
pub fn core_fingerprint() -> String {
    Hash128(worker::core_fingerprint(Kernels::PORTABLE)).to_string()
}

fn hash(env: &str, hidden: Option<Vec<u32>>, num_envs: u32, seed: u64, steps: u32) -> Result<Hash128, RolloutError> {
    let config = RolloutConfig::new(env).num_envs(num_envs).seed(seed);
    let config = match hidden {
        Some(hidden) => config.fcnet_hiddens(&hidden),
        None => config.single_policy("random"),
    };
    worker::rollout_hash(config, steps.into(), &registry(), Kernels::PORTABLE)
}

fn batch_hash(config: RolloutConfig, samples: u32) -> Result<Hash128, RolloutError> {
    let mut worker = RolloutWorker::from_config(config, &registry(), WorkerPlace::LOCAL)?;
    let mut hasher = BatchHasher::new();
    for _ in 0..samples {
        hasher.add(&worker.sample()?)?;
    }
    Ok(hasher.finish())
}

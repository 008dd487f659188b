//! The core for JavaScript: what a page, a Web Worker or Node can call.
//!
//! Only conversions live here; whatever is computed is computed by `rollmesh-core`.

use rollmesh_core::{
    hash::Hash128,
    kernels::Kernels,
    worker::{self, Registry, RolloutConfig, RolloutError},
};
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
    worker::rollout_hash(config, steps.into(), &Registry::builtin(), Kernels::PORTABLE)
}

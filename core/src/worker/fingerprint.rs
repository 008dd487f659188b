//! Hashes of fixed rollouts, which show whether a program computes the right bits.

use super::{Registry, RolloutConfig, RolloutError, RolloutWorker};
use crate::{
    hash::{Hash128, RolloutHasher},
    kernels::Kernels,
    policy::ForwardFactory,
};

/// Returns the hash of a rollout of `env_steps` steps, `ceil(env_steps / num_envs)` of each slot, of plain single agents and
/// [raw](RolloutConfig::raw) rows.
///
/// # Errors
/// [`RolloutError`], for example for an unknown environment.
pub fn rollout_hash(
    config: RolloutConfig,
    env_steps: u64,
    registry: &Registry,
    kernels: Kernels,
) -> Result<Hash128, RolloutError> {
    let mut left = env_steps.div_ceil(u64::from(config.num_envs.max(1)));
    let mut worker = RolloutWorker::new(config.raw(), registry, kernels)?;
    let length = u64::from(worker.rollout_fragment_length());
    let mut hasher = RolloutHasher::new();
    while left > 0 {
        let steps = left.min(length);
        for fragment in worker.sample_fragments(steps as u32)? {
            hasher.add(&fragment)?;
        }
        left -= steps;
    }
    Ok(hasher.finish())
}

/// Computes the fingerprint that every peer sends when it connects, to prove that it computes the same bits: the hash of
/// 1,000 steps of 8 CartPoles under a policy with two hidden layers of 16.
#[must_use]
pub fn core_fingerprint(kernels: Kernels) -> [u8; 16] {
    // The built-in environment exists; a failure would show as a fingerprint that differs from all others.
    fixed_rollout(&Registry::builtin(), kernels).map_or([0; 16], |hash| hash.0)
}

/// Computes the fingerprint of policies that act by something else than the kernels: the hash of the same rollout. It depends
/// on the device, its driver and its libraries.
///
/// # Errors
/// [`RolloutError`] if the device fails.
pub fn device_fingerprint(forward: ForwardFactory, kernels: Kernels) -> Result<Hash128, RolloutError> {
    let mut registry = Registry::builtin();
    registry.policies.act_with(forward);
    fixed_rollout(&registry, kernels)
}

fn fixed_rollout(registry: &Registry, kernels: Kernels) -> Result<Hash128, RolloutError> {
    let config = RolloutConfig::new("CartPole-v1").num_envs(8).rollout_fragment_length(125).fcnet_hiddens(&[16, 16]);
    rollout_hash(config, 1000, registry, kernels)
}

//! Gymnasium's classic control problems.

mod cartpole;

pub use cartpole::CartPole;

use super::{EnvRegistry, EnvSpec};
use crate::prelude::*;

/// Adds the environments of this module.
pub(super) fn register(registry: &mut EnvRegistry) {
    registry.register(
        EnvSpec::new("CartPole-v1", |contexts, kernels| Box::new(CartPole::new(contexts.len(), kernels)))
            .with_max_episode_steps(500)
            .with_reward_threshold(475.0),
    );
}

//! What a native program knows besides what the core does.

use rollmesh_core::worker::Registry;

use crate::learner::register_learning_policies;

/// What a native program adds to a registry: the policies that learn. [`main_with`](crate::main_with) does it by itself.
///
/// ```
/// let registry = rollmesh::native(rollmesh::Registry::builtin());
/// assert!(registry.policies.spec("ppo").is_ok());
/// ```
#[must_use]
pub fn native(mut registry: Registry) -> Registry {
    register_learning_policies(&mut registry.policies);
    registry
}

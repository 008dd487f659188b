//! What a native program knows besides what the core does.

use rollmesh_core::worker::Registry;

/// What a native program adds to a registry; [`main_with`](crate::main_with) does it by itself.
///
/// ```
/// let registry = rollmesh::native(rollmesh::Registry::builtin());
/// assert!(registry.policies.spec("net").is_ok());
/// ```
#[must_use]
pub fn native(registry: Registry) -> Registry {
    registry
}

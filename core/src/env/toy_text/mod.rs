//! Gymnasium's toy text problems: small worlds of numbered states.

use super::EnvRegistry;

/// Adds the environments of this module.
pub(super) fn register(_registry: &mut EnvRegistry) {}

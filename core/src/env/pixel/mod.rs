//! Small arcade games on a grid of 10 x 10 cells, one channel per kind of thing.

use super::EnvRegistry;

/// Adds the environments of this module.
pub(super) fn register(_registry: &mut EnvRegistry) {}

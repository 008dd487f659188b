//! Files of weights on disk, see [`Weights::from_safetensors`].

use std::path::Path;

use rollmesh_core::{ids::WeightsVersion, weights::Weights};

use super::{Disk, PolicyCheckpointError, Storage as _};

/// Maximum size of a weights' file without a checkpoint's manifest.
pub(super) const MAX_WEIGHTS_BYTES: u64 = 1 << 32;

/// Reads a file of weights; their version is 0.
///
/// # Errors
/// [`PolicyCheckpointError`], which names the file.
pub(crate) fn read(path: &Path) -> Result<Weights, PolicyCheckpointError> {
    let failed = |source| PolicyCheckpointError::Io { path: path.into(), source };
    let bytes = Disk.read(path, MAX_WEIGHTS_BYTES).map_err(failed)?;
    Weights::from_safetensors(&bytes, WeightsVersion(0))
        .map_err(|error| PolicyCheckpointError::Malformed { path: path.into(), reason: error.to_string() })
}

//! Sets the weights of a run that is not running.

use std::path::{Path, PathBuf};

use rollmesh_core::{
    filter::{FilterTensorError, RunFilter},
    ids::WeightsVersion,
    kernels::Kernels,
    weights::WeightsError,
    worker::Registry,
};

use super::{
    super::{RunRequest, RunRequestError},
    ResumeError,
    saved_run::Left,
    saver::Shelf,
    snapshot::Saved,
};
use crate::checkpoint::{CHECKPOINTS_DIR, PolicyCheckpoint, PolicyCheckpointError, weights_file};

/// An error of setting a run's weights.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetWeightsError {
    /// The run or its newest checkpoint cannot be read or written.
    #[error(transparent)]
    Run(#[from] ResumeError),
    /// A policy or a file of weights cannot be read or written.
    #[error(transparent)]
    Policy(#[from] PolicyCheckpointError),
    /// The file has other tensors than the run's policies.
    #[error("the weights in {path} do not fit the run: {source}")]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The tensor.
        source: WeightsError,
    },
    /// The statistics of an observation filter among the weights cannot be read.
    #[error(transparent)]
    Filter(#[from] FilterTensorError),
    /// The policies of the run cannot be built, so the names of their tensors are unknown.
    #[error(transparent)]
    Build(#[from] RunRequestError),
}

/// Sets the weights of a run's newest checkpoint, as a new checkpoint, and those next to it; without checkpoints those of
/// the policy in the directory. The learner's state, such as an optimiser's moments, stays.
///
/// # Errors
/// [`SetWeightsError`] names the file and, for tensors that do not fit, name and shape. Nothing is changed then, unless a
/// file could not be written.
pub(crate) fn set_weights(dir: &Path, file: &Path, registry: &Registry) -> Result<PolicyCheckpoint, SetWeightsError> {
    let weights = weights_file::read(file)?;
    let misfit = |source| SetWeightsError::Misfit { path: file.into(), source };
    let left = match Left::open(dir) {
        Ok(left) => Some(left),
        Err(ResumeError::NoRun(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(mut files) = left.as_ref().and_then(|left| left.checkpoint.clone()) else {
        let policy = PolicyCheckpoint::read_with(dir, weights)?;
        match PolicyCheckpoint::load(dir) {
            Ok(before) => policy.weights.check_like(&before.weights).map_err(misfit)?,
            // Its own file was edited: only the run's policies show which tensors are expected.
            Err(_) => {
                let plain = RunFilter::split_from(&policy.weights, &policy.policies)?.0;
                let wanted = RunRequest::from(policy.run.clone()).first_weights(registry, Kernels::PORTABLE)?;
                plain.check_like(&wanted).map_err(misfit)?;
            }
        }
        policy.save(dir)?;
        return Ok(policy);
    };
    let checkpoints = dir.join(CHECKPOINTS_DIR);
    let (_, Saved { policy, group, .. }) = Saved::read(files.clone(), &checkpoints)?;
    weights.check_like(&policy.weights).map_err(misfit)?;
    // Workers hold the previous version, and are sent any later one.
    let version = WeightsVersion(policy.weights.version().0.saturating_add(1));
    let policy = PolicyCheckpoint { weights: weights.with_version(version), ..policy };
    let failed = |source| ResumeError::Io { path: checkpoints.clone(), source };
    files.extend(policy.to_files().map_err(failed)?.map(|(name, contents)| (name.to_owned(), contents)));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, contents)| (name.as_str(), &contents[..])).collect();
    let shelf = Shelf::open(checkpoints.clone());
    shelf.and_then(|mut shelf| shelf.save(&files, policy.iteration, group.first_doubt())).map_err(failed)?;
    policy.save(dir)?;
    Ok(policy)
}

//! What a native program lends to a [`RolloutWorker`](rollmesh_core::worker::RolloutWorker): files, so far.

use std::fs;

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks},
    sampler::SampleError,
    worker::Shell,
};

use crate::monitor::Recorder;

/// A worker's shell in a native program.
///
/// ```
/// use rollmesh::NativeShell;
/// use rollmesh_core::worker::{RolloutConfig, RolloutWorker};
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-shell-doc-{}", std::process::id()));
/// let monitor_path = Some(dir.display().to_string());
/// let config = RolloutConfig { monitor_path, ..RolloutConfig::new("CartPole-v1") };
/// let mut worker = RolloutWorker::builder().config(config).shell(Box::new(NativeShell)).build()?;
/// worker.sample()?;
/// worker.stop()?;
/// assert!(dir.join("stats.jsonl").exists());
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NativeShell;

impl Shell for NativeShell {
    fn monitor(&mut self, path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        // Said before anything is sampled, if it cannot be.
        fs::create_dir_all(path)
            .map_err(|error| CallbackError::new("the monitor", format!("cannot write {path}: {error}")))?;
        Ok(Some(Box::new(Recorder::new(path))))
    }
}

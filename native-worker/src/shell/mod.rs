//! What a native program lends to a [`RolloutWorker`](rollmesh_core::worker::RolloutWorker): threads, files, other ranks
//! to learn with, and what is known of the machine. Processes for environments, `remote_worker_envs`, come with the
//! process launcher; until then a worker says that they are not there.

mod async_sampler;
mod callbacks;
mod changes;
mod host;
#[cfg(test)]
mod tests;
mod thread;

use std::{fs, time::Instant};

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks},
    policy::AllReduce,
    sampler::SampleError,
    time::Micros,
    worker::{AsyncSampling, DataParallelError, JoinRequest, MovedSampler, RolloutWorkerBuilder, Shell},
};

pub use self::{async_sampler::AsyncSampler, host::NativeHost};
use crate::{data_parallel::TcpAllReduce, kernels, monitor::Recorder};

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
    fn sample_async(&mut self, sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        Ok(Some(AsyncSampler::around(sampling)?))
    }

    fn monitor(&mut self, path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        // Said before anything is sampled, if it cannot be.
        fs::create_dir_all(path)
            .map_err(|error| CallbackError::new("the monitor", format!("cannot write {path}: {error}")))?;
        Ok(Some(Box::new(Recorder::new(path))))
    }

    fn data_parallel(&mut self, request: &JoinRequest) -> Result<Option<Box<dyn AllReduce>>, DataParallelError> {
        Ok(Some(Box::new(TcpAllReduce::join(request)?)))
    }
}

/// Everything that a native program has, for a worker at once.
pub trait NativeWorker {
    /// Sets shell, host facts, clock and the widest kernels of this machine.
    ///
    /// ```
    /// use rollmesh::NativeWorker as _;
    /// use rollmesh_core::worker::{RolloutConfig, RolloutWorker};
    ///
    /// let config = RolloutConfig { sample_async: true, ..RolloutConfig::new("CartPole-v1") };
    /// let mut worker = RolloutWorker::builder().config(config).native().build()?;
    /// // While this is looked at, the next ones are sampled.
    /// assert_eq!(worker.sample()?.env_steps(), 200);
    /// assert!(worker.find_free_port()? > 0);
    /// worker.stop()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    fn native(self) -> Self;
}

impl NativeWorker for RolloutWorkerBuilder {
    fn native(self) -> Self {
        let start = Instant::now();
        self.shell(Box::new(NativeShell))
            .host(Box::new(NativeHost))
            .clock(move || Micros(start.elapsed().as_micros() as u64))
            .kernels(kernels::AUTO)
    }
}

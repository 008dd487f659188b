//! The shell of a native program for a [`RolloutWorker`](rollmesh_core::worker::RolloutWorker): threads, files, processes
//! for environments, ranks for data-parallel learning, and facts about the machine. Processes need Unix; elsewhere a worker
//! returns an error.

mod async_sampler;
mod callbacks;
mod changes;
mod host;
#[cfg(test)]
mod tests;
mod thread;

use std::{fs, path::PathBuf, time::Instant};

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks},
    policy::AllReduce,
    sampler::SampleError,
    worker::{AsyncSampling, DataParallelError, JoinRequest, MovedSampler, RolloutWorkerBuilder, Shell},
};
#[cfg(unix)]
use rollmesh_core::{
    env::EnvError,
    worker::{MovedEnvs, RemoteEnvs},
};

pub use self::{async_sampler::AsyncSampler, host::NativeHost};
#[cfg(unix)]
use crate::envs::RemoteBaseEnv;
use crate::{data_parallel::TcpAllReduce, kernels, monitor::Recorder};

/// A worker's shell in a native program. For `remote_worker_envs` it starts this program again, which has to
/// [support](crate::child_process) that, or [another one](Self::with_program).
///
/// ```
/// use rollmesh::NativeShell;
/// use rollmesh_core::worker::{RolloutConfig, RolloutWorker};
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-shell-doc-{}", std::process::id()));
/// let monitor_path = Some(dir.display().to_string());
/// let config = RolloutConfig { monitor_path, ..RolloutConfig::new("CartPole-v1") };
/// let mut worker = RolloutWorker::builder().config(config).shell(Box::new(NativeShell::default())).build()?;
/// worker.sample()?;
/// worker.stop()?;
/// assert!(dir.join("stats.jsonl").exists());
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NativeShell {
    #[cfg_attr(not(unix), allow(dead_code))]
    program: Option<PathBuf>,
}

impl NativeShell {
    /// Sets the program for sub-environments in other processes: one that begins with [`main_with`](crate::main_with) or
    /// [`child_process`](crate::child_process), and has their names registered. For tests, and programs whose `main` cannot
    /// be changed.
    #[must_use]
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self { program: Some(program.into()) }
    }
}

impl Shell for NativeShell {
    fn sample_async(&mut self, sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        Ok(Some(AsyncSampler::around(sampling)?))
    }

    #[cfg(unix)]
    fn remote_envs(&mut self, envs: &RemoteEnvs<'_>) -> Result<Option<MovedEnvs>, SampleError> {
        let failed = |error| EnvError::Failed(format!("this program cannot be found, to be started again: {error}"));
        let program = self.program.clone().map_or_else(crate::program, Ok).map_err(failed)?;
        let envs = RemoteBaseEnv::start(&program, envs)?;
        Ok(Some(MovedEnvs { are_wrapped: envs.are_wrapped(), envs: Box::new(envs) }))
    }

    fn monitor(&mut self, path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        // Reports an error before anything is sampled.
        fs::create_dir_all(path)
            .map_err(|error| CallbackError::new("the monitor", format!("cannot write {path}: {error}")))?;
        Ok(Some(Box::new(Recorder::new(path))))
    }

    fn data_parallel(&mut self, request: &JoinRequest) -> Result<Option<Box<dyn AllReduce>>, DataParallelError> {
        Ok(Some(Box::new(TcpAllReduce::join(request)?)))
    }
}

/// Extension trait that configures a worker with everything a native program has.
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
        self.shell(Box::new(NativeShell::default()))
            .host(Box::new(NativeHost))
            .clock(move || start.elapsed().into())
            .kernels(kernels::AUTO)
    }
}

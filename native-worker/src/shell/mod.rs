//! What a native program lends to a [`RolloutWorker`](rollmesh_core::worker::RolloutWorker): threads, files, processes for
//! environments, other ranks to learn with, and what is known of the machine. Processes need a Unix; elsewhere a worker
//! says that they are not there.

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
    time::Micros,
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

/// A worker's shell in a native program. Processes of sub-environments, `remote_worker_envs`, run this program again, which
/// has to be one that [can](crate::envs::remote_env), or [another one](Self::with_program).
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
    /// With a program for sub-environments of other processes: one that begins with
    /// [`main_with`](crate::main_with) or [`remote_env`](crate::envs::remote_env), and knows their names. For tests, and
    /// programs whose `main` is not one's own.
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
        self.shell(Box::new(NativeShell::default()))
            .host(Box::new(NativeHost))
            .clock(move || Micros(start.elapsed().as_micros() as u64))
            .kernels(kernels::AUTO)
    }
}

//! Services that a worker requests from its program: threads, processes, files, and facts about the machine.

use crate::{
    callbacks::{CallbackList, Callbacks, ObservationFn, PolicyMappingFn, WorkerInfo},
    env::BaseEnv,
    policy::{AllReduce, PolicyMap},
    prelude::*,
    sampler::{InputReader, SampleError},
    time::Micros,
    worker::{Clock, DataParallelError, JoinRequest, RemoteEnvSpec, RolloutConfig},
};

/// Sub-environments to run in other processes, as the configuration requires.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteEnvs<'a> {
    /// The configuration: deadlines, whether failures are tolerated, and `extra_environs` for child processes.
    pub config: &'a RolloutConfig,
    /// One per sub-environment.
    pub specs: Vec<RemoteEnvSpec>,
    /// The duration for which a poll waits for all of them before it continues with those that are ready.
    pub batch_wait: Micros,
}

/// The sub-environments that a shell returns for [`RemoteEnvs`].
pub struct MovedEnvs {
    /// All of them as one.
    pub envs: Box<dyn BaseEnv>,
    /// Whether they are games in DeepMind's wrappers.
    pub are_wrapped: bool,
}

/// A sampler to run on a thread of its own, with all that it is [lent](crate::sampler::SamplerHost) there.
pub struct AsyncSampling {
    /// The sampler.
    pub sampler: Box<dyn InputReader>,
    /// Copies of the worker's policies: separate objects with the same state, for this thread alone.
    pub policies: PolicyMap,
    /// The worker's callbacks.
    pub callbacks: CallbackList,
    /// Information about the worker.
    pub worker: WorkerInfo,
    /// Maps agents to policies.
    pub mapping: PolicyMappingFn,
    /// Rewrites observations first.
    pub observation_fn: Option<ObservationFn>,
    /// The worker's clock.
    pub clock: Clock,
    /// Whether only metrics are kept: [`next`](InputReader::next) then returns no rows.
    #[doc(alias = "blackhole_outputs")]
    pub discard_batches: bool,
}

/// The sampler that a shell returns for [`AsyncSampling`].
pub struct MovedSampler {
    /// Returns what the thread has sampled.
    pub sampler: Box<dyn InputReader>,
    /// The callbacks, for the hooks that the worker calls.
    pub callbacks: CallbackList,
}

/// Services that the core lacks. Where a shell does not implement a method, the setting that needs it is an error.
pub trait Shell: Send {
    /// Runs a sampler on a thread of its own, ahead of the calls. `None` without threads.
    ///
    /// # Errors
    /// [`SampleError`].
    #[doc(alias = "AsyncSampler")]
    fn sample_async(&mut self, _sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        Ok(None)
    }

    /// Runs every sub-environment in a process of its own; `None` without processes.
    ///
    /// # Errors
    /// [`SampleError::Env`].
    #[doc(alias = "RemoteBaseEnv")]
    fn remote_envs(&mut self, _envs: &RemoteEnvs<'_>) -> Result<Option<MovedEnvs>, SampleError> {
        Ok(None)
    }

    /// Returns callbacks that record episodes in a directory; `None` without files.
    ///
    /// # Errors
    /// [`SampleError::Output`].
    #[doc(alias = "monitor_path")]
    fn monitor(&mut self, _path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        Ok(None)
    }

    /// Joins the other ranks, and waits for all of them; `None` without sockets.
    ///
    /// # Errors
    /// [`DataParallelError`].
    #[doc(alias = "init_process_group")]
    fn data_parallel(&mut self, _request: &JoinRequest) -> Result<Option<Box<dyn AllReduce>>, DataParallelError> {
        Ok(None)
    }
}

/// Facts about the machine that a worker runs on; unknown unless a shell provides them.
pub trait HostFacts: Send {
    /// Returns its name.
    fn hostname(&self) -> Option<String> {
        None
    }

    /// Returns its address in the network.
    fn node_ip(&self) -> Option<String> {
        None
    }

    /// Returns a free port.
    fn free_port(&self) -> Option<u16> {
        None
    }
}

//! What a worker asks of the program around it: threads, processes, files, and what is known of the machine.

use crate::{
    callbacks::{CallbackList, Callbacks, ObservationFn, PolicyMappingFn, WorkerInfo},
    env::BaseEnv,
    policy::{AllReduce, PolicyMap},
    prelude::*,
    sampler::{SampleError, SamplerInput},
    time::Micros,
    worker::{Clock, DataParallelError, JoinRequest, RemoteEnvSpec, RolloutConfig},
};

/// Sub-environments that run elsewhere, as the configuration wants them.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteEnvs<'a> {
    /// The configuration: deadlines, whether failures are survived, and `extra_environs` for child processes.
    pub config: &'a RolloutConfig,
    /// One per sub-environment.
    pub specs: Vec<RemoteEnvSpec>,
    /// How long a poll waits for all of them before it goes on with the ones that are ready.
    pub batch_wait: Micros,
}

/// What the worker gets for them.
pub struct MovedEnvs {
    /// All of them.
    pub envs: Box<dyn BaseEnv>,
    /// They are games, and in DeepMind's wrappers.
    pub are_wrapped: bool,
}

/// A sampler that is to run on a thread of its own, and all that it is [lent](crate::sampler::SamplerHost) there.
pub struct AsyncSampling {
    /// The sampler.
    pub sampler: Box<dyn SamplerInput>,
    /// Twins of the worker's policies: other objects with the same state, for the thread alone.
    pub policies: PolicyMap,
    /// The worker's callbacks.
    pub callbacks: CallbackList,
    /// The worker.
    pub worker: WorkerInfo,
    /// Which policy an agent gets.
    pub mapping: PolicyMappingFn,
    /// What observations go through first.
    pub observation_fn: Option<ObservationFn>,
    /// The worker's clock.
    pub clock: Clock,
    /// Only metrics are kept: what [`data`](SamplerInput::data) gives has no rows.
    #[doc(alias = "blackhole_outputs")]
    pub discard_batches: bool,
}

/// What the worker gets for it.
pub struct MovedSampler {
    /// Hands out what the thread has sampled.
    pub sampler: Box<dyn SamplerInput>,
    /// The callbacks, for the hooks that are called by the worker.
    pub callbacks: CallbackList,
}

/// What the core has not. A method that a shell does not write says so when it is needed.
pub trait Shell: Send {
    /// Runs a sampler on a thread of its own, ahead of the calls. None without threads.
    ///
    /// # Errors
    /// [`SampleError`].
    #[doc(alias = "AsyncSampler")]
    fn sample_async(&mut self, _sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        Ok(None)
    }

    /// Runs every sub-environment in a process of its own; none without processes.
    ///
    /// # Errors
    /// [`SampleError::Env`].
    #[doc(alias = "RemoteBaseEnv")]
    fn remote_envs(&mut self, _envs: &RemoteEnvs<'_>) -> Result<Option<MovedEnvs>, SampleError> {
        Ok(None)
    }

    /// Callbacks that record episodes in a directory; none without files.
    ///
    /// # Errors
    /// [`SampleError::Output`].
    #[doc(alias = "monitor_path")]
    fn monitor(&mut self, _path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        Ok(None)
    }

    /// Joins the other ranks, and waits for all of them; none without sockets.
    ///
    /// # Errors
    /// [`DataParallelError`].
    #[doc(alias = "init_process_group")]
    fn data_parallel(&mut self, _request: &JoinRequest) -> Result<Option<Box<dyn AllReduce>>, DataParallelError> {
        Ok(None)
    }
}

/// What is known of the machine that a worker runs on. Nothing, unless a shell says so.
pub trait HostFacts: Send {
    /// Its name.
    fn hostname(&self) -> Option<String> {
        None
    }

    /// Its address in the network.
    fn node_ip(&self) -> Option<String> {
        None
    }

    /// A port on which nobody listens yet.
    fn free_port(&self) -> Option<u16> {
        None
    }
}

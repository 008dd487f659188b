//! What a worker asks of the program around it: threads, processes, files, and what is known of the machine.

use crate::{
    callbacks::Callbacks,
    env::{BaseEnv, EnvContext},
    prelude::*,
    sampler::{SampleError, SamplerInput},
    time::Micros,
    worker::RolloutConfig,
};

/// Sub-environments that run elsewhere, as the configuration wants them.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteEnvs<'a> {
    /// The configuration: `env` is the registered name, `extra_environs` is for child processes.
    pub config: &'a RolloutConfig,
    /// One per sub-environment.
    pub contexts: &'a [EnvContext],
    /// The seed of everything random in them.
    pub seed: u64,
    /// How long a poll waits for all of them before it goes on with the ones that are ready.
    pub batch_wait: Micros,
}

/// What the core has not. A method that a shell does not write says so when it is needed.
pub trait Shell: Send {
    /// Runs a sampler on a thread of its own, ahead of the calls. With `discard_batches` only metrics are kept. None
    /// without threads.
    ///
    /// # Errors
    /// [`SampleError`].
    #[doc(alias("AsyncSampler", "blackhole_outputs"))]
    fn sample_async(
        &mut self,
        _sampler: Box<dyn SamplerInput>,
        _discard_batches: bool,
    ) -> Result<Option<Box<dyn SamplerInput>>, SampleError> {
        Ok(None)
    }

    /// Runs every sub-environment in a process of its own; none without processes.
    ///
    /// # Errors
    /// [`SampleError::Env`].
    #[doc(alias = "RemoteBaseEnv")]
    fn remote_envs(&mut self, _envs: &RemoteEnvs<'_>) -> Result<Option<Box<dyn BaseEnv>>, SampleError> {
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

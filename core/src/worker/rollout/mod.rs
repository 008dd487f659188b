//! The rollout worker: environments, policies, input and output, and all methods on them.

mod apply;
mod data_parallel;
mod envs;
mod estimate;
mod filters;
mod host;
mod iterate;
mod learn;
mod lock;
mod making;
mod metrics;
mod policies;
mod retry;
mod sample;
mod sgd;
mod state;
mod train;
mod weights;

#[cfg(test)]
mod law_tests;
#[cfg(test)]
mod settings_tests;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

pub use iterate::Samples;
pub use metrics::{OffPolicyEstimate, WorkerMetrics, WorkerWarning};
pub use retry::{Retries, SampleFault};
pub use sgd::{SgdOptions, TrainInfo};
pub use state::WorkerStateError;
pub use train::PoliciesToTrain;

use self::making::Making;
use super::{
    Registry, RolloutConfig, RolloutError, WorkerPlace,
    builder::{Clock, HostFacts, Opened, Recipe, RolloutWorkerBuilder, Shell, Workshop},
    lockstep::LockstepSampler,
};
use crate::{
    batch::AnyBatch,
    callbacks::{CallbackList, ObservationFn, PolicyMappingFn, WorkerInfo},
    env::{EnvContext, StepMark},
    episode::{GlobalVars, Quarantined},
    estimate::{LegacyStepEstimator, QModel},
    ids::PolicyId,
    kernels::Kernels,
    policy::PolicyMap,
    prelude::*,
    sampler::{InputReader, SamplerHost},
    worker::{SetupError, config::InputEvaluation},
};

/// The source of batches.
pub(in crate::worker) enum Source {
    /// All environments in lockstep.
    Lockstep(Box<LockstepSampler>),
    /// Another sampler, or an input.
    Reader(Box<dyn InputReader>),
}

impl Source {
    fn reader(&self) -> &dyn InputReader {
        match self {
            Self::Lockstep(sampler) => &**sampler,
            Self::Reader(reader) => &**reader,
        }
    }

    fn reader_mut(&mut self) -> &mut dyn InputReader {
        match self {
            Self::Lockstep(sampler) => &mut **sampler,
            Self::Reader(reader) => &mut **reader,
        }
    }

    pub(in crate::worker) fn into_reader(self) -> Box<dyn InputReader> {
        match self {
            Self::Lockstep(sampler) => sampler,
            Self::Reader(reader) => reader,
        }
    }
}

/// The parts that a builder has made.
pub(in crate::worker) struct Parts {
    pub(in crate::worker) config: RolloutConfig,
    pub(in crate::worker) registry: Registry,
    pub(in crate::worker) place: WorkerPlace,
    pub(in crate::worker) seed: u64,
    pub(in crate::worker) contexts: Vec<EnvContext>,
    pub(in crate::worker) fragment_length: u32,
    pub(in crate::worker) opened: Opened,
    pub(in crate::worker) info: WorkerInfo,
    pub(in crate::worker) workshop: Workshop,
    pub(in crate::worker) policies: PolicyMap,
    pub(in crate::worker) recipes: BTreeMap<PolicyId, Recipe>,
    pub(in crate::worker) policy_mapping_fn: PolicyMappingFn,
    pub(in crate::worker) mapping_name: Option<String>,
    pub(in crate::worker) policies_to_train: PoliciesToTrain,
    pub(in crate::worker) observation_fn: Option<ObservationFn>,
    pub(in crate::worker) callbacks: CallbackList,
    pub(in crate::worker) q_models: BTreeMap<PolicyId, Box<dyn QModel>>,
    pub(in crate::worker) legacy_estimators: BTreeMap<(PolicyId, InputEvaluation), LegacyStepEstimator>,
    pub(in crate::worker) clock: Clock,
    pub(in crate::worker) mark: StepMark,
    pub(in crate::worker) host: Option<Box<dyn HostFacts>>,
    pub(in crate::worker) shell: Option<Box<dyn Shell>>,
}

/// Steps environments with policies and returns the experience, or reads batches from an input. Corresponds to RLlib's
/// `RolloutWorker`, with all its methods.
///
/// ```
/// use rollmesh_core::worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace};
///
/// let config = RolloutConfig::new("CartPole-v1").num_envs(8).rollout_fragment_length(100).seed(7);
/// let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL)?;
/// let batch = worker.sample()?;
/// assert_eq!(batch.env_steps(), 800);
/// println!("{}", worker.metrics().summary().episode_return.mean);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("EnvRunner", "PolicyEvaluator"))]
pub struct RolloutWorker {
    parts: Parts,
    /// The ranks that it learns together with.
    ranks: Option<data_parallel::Ranks>,
    global_vars: GlobalVars,
    weights_seq_no: Option<u64>,
    /// Batches of the sample in progress, or of one that failed.
    read: Vec<AnyBatch>,
    /// Positions of the readers of its [samples](Self::samples).
    slice_readers: iterate::SliceReaders,
    /// The sample in progress, if there is one.
    making: Option<Making>,
    /// The first sample, if it is repeated.
    first: Option<AnyBatch>,
    /// Metrics that were not read yet.
    metrics: WorkerMetrics,
    /// Known quarantined sub-environments.
    quarantined: Vec<Quarantined>,
    warned: bool,
    /// Number of calls that learned so far: the address of the random order in which they shuffle.
    learned: u32,
    locked: bool,
    stopped: bool,
}

impl RolloutWorker {
    /// Returns a builder with everything that this crate registers.
    pub fn builder() -> RolloutWorkerBuilder {
        RolloutWorkerBuilder::new(Registry::builtin())
    }

    /// Creates a worker from serialisable settings, with the names of a registry.
    ///
    /// # Errors
    /// [`SetupError`], which names the setting to change.
    pub fn from_config(config: RolloutConfig, registry: &Registry, place: WorkerPlace) -> Result<Self, SetupError> {
        RolloutWorkerBuilder::new(registry.clone()).config(config).place(place).build()
    }

    /// Creates a standalone worker, with the names of a registry and kernels.
    ///
    /// # Errors
    /// [`SetupError`], which names the setting to change.
    pub fn new(config: RolloutConfig, registry: &Registry, kernels: Kernels) -> Result<Self, SetupError> {
        RolloutWorkerBuilder::new(registry.clone()).config(config).kernels(kernels).build()
    }

    pub(in crate::worker) fn assemble(parts: Parts) -> Self {
        Self {
            parts,
            ranks: None,
            global_vars: GlobalVars::default(),
            weights_seq_no: None,
            read: Vec::new(),
            slice_readers: iterate::SliceReaders::default(),
            making: None,
            first: None,
            metrics: WorkerMetrics::default(),
            quarantined: Vec::new(),
            warned: false,
            learned: 0,
            locked: false,
            stopped: false,
        }
    }

    /// Returns the settings that it was created with.
    #[must_use]
    pub fn creation_args(&self) -> &RolloutConfig {
        &self.parts.config
    }

    /// Returns its place in the run.
    #[must_use]
    pub fn place(&self) -> WorkerPlace {
        self.parts.place
    }

    /// Returns the number of environments; 0 if it has none.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.parts.contexts.len()
    }

    /// Returns the steps of each environment per sample.
    #[must_use]
    pub fn rollout_fragment_length(&self) -> u32 {
        self.parts.fragment_length
    }

    /// Returns the least number of steps of a sample, over all environments.
    #[must_use]
    pub fn steps_per_sample(&self) -> usize {
        self.parts.fragment_length as usize * self.parts.config.num_envs as usize
    }

    /// Returns the information about this worker that callbacks see.
    #[must_use]
    pub fn info(&self) -> &WorkerInfo {
        &self.parts.info
    }

    /// Returns the callbacks, for the hooks that the worker's driver calls.
    pub fn callbacks_mut(&mut self) -> &mut CallbackList {
        &mut self.parts.callbacks
    }

    /// Stops environments, input and output, and leaves the ranks that it learns together with. A second call does nothing;
    /// methods that sample, learn or change policies return [`RolloutError::Stopped`] from now on.
    ///
    /// # Errors
    /// The first error of a part; all parts are stopped nevertheless.
    pub fn stop(&mut self) -> Result<(), RolloutError> {
        if self.stopped {
            return Ok(());
        }
        self.stopped = true;
        self.ranks = None;
        self.discard_waiting();
        let parts = &mut self.parts.opened;
        let source = parts.source.as_mut().map_or(Ok(()), |source| source.reader_mut().stop());
        let simulation = parts.simulation.as_mut().map_or(Ok(()), |sampler| sampler.stop());
        let output = parts.output.close();
        Ok(source.and(simulation).and(output)?)
    }

    /// Returns whether it was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Checks that policies, input and output are usable.
    ///
    /// # Errors
    /// [`RolloutError::Unhealthy`], which names what is missing.
    pub fn assert_healthy(&self) -> Result<(), RolloutError> {
        let missing = if self.stopped {
            "it was stopped"
        } else if self.parts.policies.is_empty() {
            "it has no policies"
        } else if self.parts.opened.source.is_none() && self.parts.opened.simulation.is_none() {
            "it has neither environments nor input"
        } else {
            return Ok(());
        };
        Err(RolloutError::Unhealthy(missing))
    }

    fn check_running(&self) -> Result<(), RolloutError> {
        if self.stopped { Err(RolloutError::Stopped) } else { Ok(()) }
    }
}

impl Parts {
    /// Splits the worker into its input and what is lent to that.
    fn lend(&mut self) -> (&mut Opened, SamplerHost<'_>) {
        let host = SamplerHost {
            worker: &self.info,
            policies: &mut self.policies,
            mapping: &self.policy_mapping_fn,
            observation_fn: self.observation_fn.as_ref(),
            callbacks: &mut self.callbacks,
            clock: &*self.clock,
            interrupt: None,
        };
        (&mut self.opened, host)
    }
}

impl core::fmt::Debug for RolloutWorker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RolloutWorker")
            .field("place", &self.parts.place)
            .field("policies", &self.parts.policies)
            .finish_non_exhaustive()
    }
}

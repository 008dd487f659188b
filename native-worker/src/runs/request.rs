//! A program's request of a run on its hub.

use std::{collections::BTreeMap, error::Error, path::PathBuf, time::Duration};

use rollmesh_core::{
    config::ConfigError,
    filter::{FilterKind, FilterTensorError, RunFilter},
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::Policy,
    run::{RunConfig, RunConfigError},
    sampler::FragmentLayout,
    weights::{Weights, WeightsError},
    worker::{
        DataParallelConfig, LearningParts, Registry, RolloutConfig, RolloutWorkerBuilder, SetupError, Unknown,
        WorkerPlace,
    },
};

use super::{
    local::{self, LocalWorker},
    output::OutputTarget,
    own_sampler::OwnSampler,
};
use crate::{
    NativeWorker as _,
    learner::{
        AlgorithmSettingsError, DeviceError, DeviceSpec, LearnError, algorithm, learns, register_learning_policies_on,
        written_out,
    },
    net::TOKEN_VARIABLE,
    offline::json::JsonWriterOptions,
    registry::{acting_on, device_of},
};

/// A run to start, and the location of its files on this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRequest {
    /// The run's configuration.
    pub config: RunConfig,
    /// Directory for the run's files; `None` for no files.
    pub run_dir: Option<PathBuf>,
    /// Directory for its rows, as RLlib's JSON; `None` to discard them. Rows are written when they are learned from; rows
    /// that are recomputed, after a crash or a failed audit, replace the earlier ones.
    pub output: Option<PathBuf>,
    /// Leave all sampling to workers that join, and wait for them. Otherwise a run with `num_workers` 0 samples in the hub's
    /// process while no other worker can, like RLlib's local worker.
    pub remote_only: bool,
    /// The initial weights of all policies, instead of random ones; with the observation filter's statistics, or without.
    pub init_weights: Option<Weights>,
    /// Settings for data-parallel learning with other processes, each of which samples by itself; `None` to learn alone.
    /// Ranks other than 0 should have no files, and no stop condition other than their env steps.
    pub data_parallel: Option<DataParallelConfig>,
    /// Minimum time between two updates, for demonstrations; has no influence on the rows.
    pub throttle: Duration,
}

impl From<RunConfig> for RunRequest {
    fn from(mut config: RunConfig) -> Self {
        let output = config.rollout.output.take().map(PathBuf::from);
        Self { config, output, ..Self::default() }
    }
}

/// The parts of a run, made before it starts.
pub(super) enum Prepared {
    /// Its rows are sampled over leases.
    Leased(Box<LearningParts>),
    /// They are made by a worker of its own; with a notice about that for the user.
    Local(Box<LocalWorker>, Option<String>),
}

/// An error of starting a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunRequestError {
    /// An invalid setting of the run.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// Its environment or its policy cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The algorithm is unknown.
    #[error("there is no algorithm '{name}'; known are: {known}")]
    UnknownAlgorithm {
        /// The name, or its beginning.
        name: String,
        /// The known kinds of policies.
        known: String,
    },
    /// The function of evaluation workers is unknown.
    #[error("evaluation.init: {0}")]
    EvaluationInit(Unknown),
    /// An invalid setting of an algorithm.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmSettingsError),
    /// The run's own worker failed.
    #[error(transparent)]
    Local(LearnError),
    /// An invalid setting of its input.
    #[error("io_config: {0}")]
    Input(ConfigError),
    /// The algorithm needs logged experience, but there is no input.
    #[error("{0} learns from logged experience: name it with --input")]
    NeedsInput(String),
    /// The algorithm needs sampled rows, but the run reads.
    #[error("{0} learns from what it samples itself: learn from files with --algo bc or marwil")]
    NeedsSampler(String),
    /// The initial weights do not fit.
    #[error("the weights to begin with do not fit the run: {0}")]
    InitWeights(#[from] WeightsError),
    /// The observation filter's statistics among the initial weights are invalid.
    #[error("the weights to begin with: {0}")]
    Filter(#[from] FilterTensorError),
    /// The workers that read for it failed.
    #[error("the workers that read: {0}")]
    Group(#[source] Box<dyn Error + Send + Sync>),
    /// The learner's device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An environment variable has an invalid name or value.
    #[error("no worker can have an environment variable {0:?}: it {1}")]
    ExtraEnviron(String, &'static str),
}

/// Returns the initial weights of a run's policies.
pub(super) fn weights_of(policies: &BTreeMap<PolicyId, Box<dyn Policy>>) -> Result<Weights, WeightsError> {
    Weights::of_run(WeightsVersion(0), policies.iter().map(|(id, policy)| (id, policy.weights())))
}

impl RunRequest {
    /// Returns the request with all settings of its algorithm, the number of its slots and the size of its batches filled
    /// in, so that the run directory is complete.
    ///
    /// # Errors
    /// [`RunRequestError`] names the setting.
    pub(crate) fn written_out(mut self) -> Result<Self, RunRequestError> {
        self.config = written_out(self.config)?;
        Ok(self)
    }

    /// Makes the parts of the run, which finds all errors before it starts. A run that cannot be leased is sampled by a
    /// worker of its own, if it has no other workers.
    ///
    /// # Errors
    /// [`RunRequestError`] names the error.
    pub(super) fn prepare(&self, registry: &Registry, kernels: Kernels) -> Result<Prepared, RunRequestError> {
        let local = |notice| {
            let mut config = self.config.worker_config();
            let ranks = self.data_parallel.clone();
            let output_options = self.resumable_output(registry, &config)?;
            if output_options.is_none() {
                config.output = self.output.as_ref().map(|dir| dir.display().to_string());
            }
            let place = ranks.as_ref().map_or(WorkerPlace::LOCAL, |ranks| {
                config.train_batch_size = config.train_batch_size.div_ceil(ranks.world_size.max(1));
                // Every rank has other slots of one run.
                WorkerPlace::remote(ranks.rank.saturating_add(1), ranks.world_size)
            });
            let device = device_of(&self.config.host.worker.clone().unwrap_or_default())?;
            let builder = self.builder(&acting_on(registry, device)?, kernels)?;
            let builder = builder.native().kernels(kernels).place(place);
            let own = Box::new(OwnSampler::new(builder.config(config).build()?));
            let mut worker = LocalWorker::new(own, ranks).map_err(RunRequestError::Local)?;
            worker.output_options = output_options;
            let first = worker.weights().map_err(RunRequestError::Local)?;
            self.check_init_weights(&worker.ids(), &first)?;
            Ok(Prepared::Local(Box::new(worker), notice))
        };
        let waits = self.data_parallel.as_ref().map(|DataParallelConfig { url, rank, world_size, .. }| {
            format!("rank {rank} of {world_size} waits at {url} until all are there")
        });
        if waits.is_some() {
            self.check_ranks()?;
        }
        if self.config.reads_input() {
            local::check_input(&self.config, registry)?;
            return local(waits);
        }
        let policies = self.config.worker_config().policies;
        let mut known = policies.values().filter_map(|policy| algorithm(&policy.policy));
        if let Some(spec) = known.find(|spec| spec.is_offline) {
            return Err(RunRequestError::NeedsInput(spec.name.into()));
        }
        if waits.is_some() {
            return local(waits);
        }
        let may_be_local = self.config.num_workers == 0 && !self.remote_only;
        match self.prepare_leased(registry, kernels) {
            Ok(parts) => Ok(Prepared::Leased(Box::new(parts))),
            Err(RunRequestError::Setup(error)) if may_be_local => {
                if !self.config.mode.is_synchronous() {
                    return Err(error.into());
                }
                let is_refused = matches!(error, SetupError::Range(RunConfigError::NotLeased { .. }));
                let notice = format!("only this process samples, workers cannot join: {error}");
                local(Some(notice)).map_err(|own| if is_refused { own } else { error.into() })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the policies of a run over leases, and the layout of its rows.
    pub(super) fn prepare_leased(
        &self,
        registry: &Registry,
        kernels: Kernels,
    ) -> Result<LearningParts, RunRequestError> {
        let parts = self.builder(registry, kernels)?.learning_parts(&self.config)?;
        let ids: Vec<PolicyId> = parts.policies.keys().cloned().collect();
        self.check_init_weights(&ids, &weights_of(&parts.policies)?)?;
        Ok(parts)
    }

    fn builder(&self, registry: &Registry, kernels: Kernels) -> Result<RolloutWorkerBuilder, RunRequestError> {
        Ok(RolloutWorkerBuilder::new(self.known(registry)?).kernels(kernels))
    }

    /// Returns a program's registry with the policies that learn.
    pub(super) fn known(&self, registry: &Registry) -> Result<Registry, RunRequestError> {
        self.check_environs()?;
        let device = self.device()?.open()?;
        // A local worker that finds no device would end without a message.
        self.config.host.worker.iter().try_for_each(|spec| device_of(spec)?.open().map(drop))?;
        let mut registry = registry.clone();
        register_learning_policies_on(&mut registry.policies, &device);
        if let Some(unknown) = self.config.algorithm.as_deref().and_then(|name| registry.policies.spec(name).err()) {
            let learning = registry.policies.iter().map(|policy| &*policy.name).filter(|name| learns(name));
            let known = learning.collect::<Vec<_>>().join(", ");
            return Err(RunRequestError::UnknownAlgorithm { name: unknown.name.escape_debug().to_string(), known });
        }
        if let Some(init) = &self.config.evaluation.init {
            registry.init_fn(&init.name).map_err(RunRequestError::EvaluationInit)?;
        }
        Ok(registry)
    }

    /// Returns the output that the run writes itself, and can cut back when it is resumed; `None` if its own worker writes
    /// another one.
    pub(super) fn run_output(&self, prepared: &Prepared) -> Option<OutputTarget<'_>> {
        let options = match prepared {
            Prepared::Leased(_) => JsonWriterOptions::default(),
            Prepared::Local(worker, _) => worker.output_options.clone()?,
        };
        Some((self.output.as_deref()?, options))
    }

    /// Returns how a run with a worker of its own writes its rows; `None` if that worker does: in another format, to a
    /// registered output, and on ranks that save no checkpoints.
    fn resumable_output(
        &self,
        registry: &Registry,
        config: &RolloutConfig,
    ) -> Result<Option<JsonWriterOptions>, RunRequestError> {
        let Some(output) = &self.output else { return Ok(None) };
        let is_registered = output.to_str().is_some_and(|name| registry.output(name).is_ok());
        let is_first = self.data_parallel.as_ref().is_none_or(|ranks| ranks.rank == 0);
        let format: Option<String> = config.io_config.get("format").map_err(RunRequestError::Input)?;
        if is_registered || !is_first || format.is_some_and(|format| format != "json") {
            return Ok(None);
        }
        let options = JsonWriterOptions::from_config(&config.io_config).map_err(RunRequestError::Input)?;
        Ok(Some(options))
    }

    /// Returns the number of ranks of a data-parallel run.
    pub(super) fn world_size(&self) -> Option<u32> {
        self.data_parallel.as_ref().map(|ranks| ranks.world_size)
    }

    /// Returns the initial weights as version 1, which workers are sent: version 0 are the weights that they build
    /// themselves.
    pub(super) fn given_weights(&self) -> Option<Weights> {
        self.init_weights.as_ref().map(|weights| weights.with_version(WeightsVersion(1)))
    }

    /// Returns the weights with which a run of these settings begins.
    ///
    /// # Errors
    /// [`RunRequestError`] names the error.
    pub(crate) fn first_weights(&self, registry: &Registry, kernels: Kernels) -> Result<Weights, RunRequestError> {
        match self.prepare_unwritten(registry, kernels)? {
            Prepared::Leased(parts) => Ok(weights_of(&parts.policies)?),
            Prepared::Local(mut worker, _) => worker.weights().map_err(RunRequestError::Local),
        }
    }

    /// Works like [`prepare`](Self::prepare), without an output.
    fn prepare_unwritten(&self, registry: &Registry, kernels: Kernels) -> Result<Prepared, RunRequestError> {
        Self { output: None, ..self.clone().written_out()? }.prepare(registry, kernels)
    }

    /// Checks names and shapes of the initial weights against those of these policies.
    fn check_init_weights(&self, ids: &[PolicyId], first: &Weights) -> Result<(), RunRequestError> {
        let Some(weights) = &self.init_weights else { return Ok(()) };
        // Policies that only act normalise with the statistics among their weights.
        let only_acts = self.config.algorithm.is_none();
        let has_filter = only_acts || self.config.rollout.observation_filter != FilterKind::NoFilter;
        let plain = if has_filter { &RunFilter::split_from(weights, ids)?.0 } else { weights };
        Ok(plain.check_like(first)?)
    }

    /// Checks the run by making its environment and its policies once, which finds all errors. Returns the layout of its
    /// fragments; `None` if it has no fragments, since a worker of its own reads or samples.
    ///
    /// # Errors
    /// [`RunRequestError`] names the error.
    pub fn check(&self, registry: &Registry) -> Result<Option<FragmentLayout>, RunRequestError> {
        Ok(match self.prepare_unwritten(registry, Kernels::PORTABLE)? {
            Prepared::Leased(parts) => Some(parts.layout),
            Prepared::Local(..) => None,
        })
    }

    /// Checks that its rows can be sampled over leases, by making its environment and its policies once.
    ///
    /// # Errors
    /// [`RunRequestError`] names the error.
    pub(crate) fn check_leased(&self, registry: &Registry) -> Result<(), RunRequestError> {
        self.clone().written_out()?.prepare_leased(registry, Kernels::PORTABLE).map(drop)
    }

    /// Checks the settings of data-parallel ranks: they sample by themselves, and end together.
    fn check_ranks(&self) -> Result<(), RunConfigError> {
        let refused = |path, reason: &str| Err(RunConfigError::NotLeased { path, reason: reason.into() });
        if self.config.num_workers > 0 {
            return refused("num_workers", "every rank samples by itself: let it be 0");
        }
        if self.config.stop.episode_return_mean.is_some() || self.config.stop.wall_s.is_some() {
            return refused("stop", "ranks must end together: let env_steps alone say when");
        }
        Ok(())
    }

    fn device(&self) -> Result<DeviceSpec, RunConfigError> {
        let malformed = |reason| RunConfigError::Malformed { path: "host.device".into(), reason };
        self.config.host.device.parse().map_err(|error| malformed(format!("{error}")))
    }

    fn check_environs(&self) -> Result<(), RunRequestError> {
        for (name, value) in &self.config.rollout.extra_environs {
            let fault = if name.is_empty() || name.contains('=') {
                "needs a name without ="
            } else if name.contains('\0') || value.contains('\0') {
                "must not contain the character 0"
            } else if name == TOKEN_VARIABLE {
                "is where the hub puts the worker's token"
            } else {
                continue;
            };
            return Err(RunRequestError::ExtraEnviron(name.clone(), fault));
        }
        Ok(())
    }
}

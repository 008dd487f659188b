//! A run as a program asks its hub for it.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rollmesh_core::{
    config::ConfigError,
    filter::{FilterKind, FilterTensorError, RunFilter},
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::Policy,
    run::{RunConfig, RunConfigError},
    sampler::FragmentLayout,
    weights::{Weights, WeightsError},
    worker::{LearningParts, Registry, RolloutWorkerBuilder, SetupError},
};

use crate::{
    hub::TOKEN_VARIABLE,
    learner::{DeviceError, DeviceSpec, all_settings, register_learning_policies_on},
};

/// A run to begin, and where its files are on this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRequest {
    /// What the run is.
    pub config: RunConfig,
    /// Where the run writes its files; nowhere if absent.
    pub run_dir: Option<PathBuf>,
    /// Where its rows are kept, as RLlib's JSON; nowhere if absent. Rows are written when they are learned from; what is
    /// recomputed, after a crash or a failed audit, takes the place of what was there.
    pub output: Option<PathBuf>,
    /// Leave all sampling to workers that join, and wait for them. Otherwise a run with `num_workers` 0 samples in the hub's
    /// process while no other worker can, as RLlib's local worker does.
    pub remote_only: bool,
    /// The weights of all policies to begin with, instead of random ones; with those of the observation filter, or without.
    pub init_weights: Option<Weights>,
    /// The least time between two updates, for people who watch; has no influence on the rows.
    pub pace: Duration,
}

impl From<RunConfig> for RunRequest {
    fn from(mut config: RunConfig) -> Self {
        let output = config.rollout.output.take().map(PathBuf::from);
        Self { config, output, ..Self::default() }
    }
}

/// Why a run cannot begin as it is described.
#[derive(Debug, thiserror::Error)]
pub enum RunRequestError {
    /// A setting of the run.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// Its environment or its policy cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// No policy learns by this.
    #[error("there is no algorithm '{name}'; known are: {known}")]
    UnknownAlgorithm {
        /// The name, or its beginning.
        name: String,
        /// The kinds of policies that there are.
        known: String,
    },
    /// A setting of its algorithm.
    #[error("policy_config: {0}")]
    Algorithm(#[from] ConfigError),
    /// The weights to begin with.
    #[error("the weights to begin with do not fit the run: {0}")]
    InitWeights(#[from] WeightsError),
    /// The statistics of the observation filter among the weights to begin with.
    #[error("the weights to begin with: {0}")]
    Filter(#[from] FilterTensorError),
    /// Its learner's device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No process can have such an environment variable.
    #[error("no worker can have an environment variable {0:?}: it {1}")]
    ExtraEnviron(String, &'static str),
}

/// The weights of a run's policies before it has learned.
pub(super) fn weights_of(policies: &BTreeMap<PolicyId, Box<dyn Policy>>) -> Result<Weights, WeightsError> {
    Weights::of_run(WeightsVersion(0), policies.iter().map(|(id, policy)| (id, policy.weights())))
}

impl RunRequest {
    /// The same with all settings of its algorithm, the number of its slots and the size of its batches written out, for a directory that says
    /// everything.
    ///
    /// # Errors
    /// [`RunRequestError`] names the setting.
    pub(crate) fn written_out(mut self) -> Result<Self, RunRequestError> {
        let RunConfig { rollout, algorithm, .. } = &mut self.config;
        if let Some(algorithm) = algorithm.as_deref() {
            if rollout.policies.is_empty() {
                rollout.policy_config = all_settings(algorithm, &rollout.policy_config)?;
            }
            // Policies of several kinds share the settings that were given, and each has the others of its own kind.
            for policy in rollout.policies.values_mut() {
                let kind = if policy.policy == "net" { algorithm } else { &policy.policy };
                policy.config = all_settings(kind, &rollout.policy_config.merged(&policy.config))?;
            }
        }
        self.config.num_slots = Some(self.config.num_slots());
        self.config.mode = self.config.sampling_mode();
        Ok(self)
    }

    /// Makes what the run needs, which finds everything that can be wrong with it before it begins.
    ///
    /// # Errors
    /// [`RunRequestError`] names what is wrong.
    pub(crate) fn prepare(&self, registry: &Registry, kernels: Kernels) -> Result<LearningParts, RunRequestError> {
        self.check_environs()?;
        let device = self.device()?.open()?;
        let mut registry = registry.clone();
        register_learning_policies_on(&mut registry.policies, &device);
        if let Some(unknown) = self.config.algorithm.as_deref().and_then(|name| registry.policies.spec(name).err()) {
            let name = unknown.name.escape_debug().to_string();
            return Err(RunRequestError::UnknownAlgorithm { name, known: unknown.known });
        }
        let builder = RolloutWorkerBuilder::new(registry).kernels(kernels);
        let parts = builder.learning_parts(&self.config)?;
        if let Some(weights) = &self.init_weights {
            let ids: Vec<PolicyId> = parts.policies.keys().cloned().collect();
            let has_filter = self.config.rollout.observation_filter != FilterKind::NoFilter;
            let plain = if has_filter { &RunFilter::split_from(weights, &ids)?.0 } else { weights };
            plain.check_like(&weights_of(&parts.policies)?)?;
        }
        Ok(parts)
    }

    /// The weights to begin with, as workers are sent them: version 0 is what they build themselves.
    pub(super) fn given_weights(&self) -> Option<Weights> {
        self.init_weights.as_ref().map(|weights| weights.with_version(WeightsVersion(1)))
    }

    /// The weights with which a run of these settings begins.
    ///
    /// # Errors
    /// [`RunRequestError`] names what is wrong.
    pub(crate) fn first_weights(&self, registry: &Registry, kernels: Kernels) -> Result<Weights, RunRequestError> {
        Ok(weights_of(&self.clone().written_out()?.prepare(registry, kernels)?.policies)?)
    }

    /// Checks the run by making its environment and its policies once, which finds everything that can be wrong with it.
    /// Returns what the rows of its fragments hold.
    ///
    /// # Errors
    /// [`RunRequestError`] names what is wrong.
    pub fn check(&self, registry: &Registry) -> Result<FragmentLayout, RunRequestError> {
        Ok(self.clone().written_out()?.prepare(registry, Kernels::PORTABLE)?.layout)
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

//! Validation of the settings, alone and together, before anything is made.

use super::{PolicyClass, RolloutWorkerBuilder, conflict};
use crate::{
    filter::FilterKind,
    ids::PolicyId,
    prelude::*,
    run::{RunConfig, RunConfigError},
    worker::{
        PoliciesToTrain, RegisteredEnv, SetupError, WorkerPlace,
        config::{CountStepsBy, Horizon, InputEvaluation, RewardClipping},
    },
};

impl RolloutWorkerBuilder {
    /// Checks the numbers, and that the settings do not conflict.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        self.check_numbers()?;
        let config = &self.config;
        let legacy = config.horizon_means != Horizon::Truncated;
        let evaluates = |by| config.input_evaluation.contains(&by);
        let has_legacy = |by: &InputEvaluation| {
            matches!(by, InputEvaluation::Is | InputEvaluation::Wis | InputEvaluation::Simulation)
        };
        let samples = self.input.is_none() && config.input.is_sampler();
        let wrong = [
            (
                config.no_done_at_end && !legacy,
                "no_done_at_end belongs to the old horizons: set horizon_means to legacy_hard or legacy_soft, or leave \
                 it out",
            ),
            (
                legacy && config.horizon.is_some() && config.count_steps_by == CountStepsBy::AgentSteps,
                "the old horizons count env steps: set count_steps_by to env_steps, or horizon_means to truncated",
            ),
            (
                config.remote_worker_envs && config.num_envs == 1,
                "remote_worker_envs needs more than one environment to wait for: raise num_envs, or leave it out",
            ),
            (
                config.remote_worker_envs && (self.env.is_some() || config.env.is_none()),
                "environments of other processes go by name: register the environment and name it as env, or leave \
                 remote_worker_envs out",
            ),
            (
                config.remote_env_batch_wait_ms > 0 && !config.remote_worker_envs,
                "remote_env_batch_wait_ms is for environments of other processes: set remote_worker_envs, or leave it out",
            ),
            (
                config.sample_async && config.observation_filter == FilterKind::MeanStdFilter,
                "a sampler on a thread of its own needs a filter that can be shared: set observation_filter to \
                 ConcurrentMeanStdFilter, or leave sample_async out",
            ),
            (
                evaluates(InputEvaluation::Simulation) && samples,
                "input_evaluation 'simulation' samples alongside another input: name that as input, or leave it out",
            ),
            (
                self.q_model.is_some() && !self.has_only_default_policy(),
                "a q_model is the default policy's: let the registry make one for each where there are several policies",
            ),
            (
                config.legacy_step_estimates && !config.input_evaluation.iter().all(has_legacy),
                "legacy_step_estimates are for input_evaluation 'is' and 'wis': leave the others or the setting out",
            ),
            (
                config.fake_sampler && !samples,
                "fake_sampler repeats what was sampled: leave it out where batches come from elsewhere",
            ),
        ];
        match wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, what)) => Err(conflict(what)),
            None => self.check_shell().and_then(|()| self.check_names()),
        }
    }

    /// Checks that all names are registered, and that every policy can be made.
    fn check_names(&self) -> Result<(), SetupError> {
        let (config, registry) = (&self.config, &self.registry);
        let source = self.env_source()?;
        if config.remote_worker_envs && matches!(source, Some(RegisteredEnv::Base(_))) {
            return Err(conflict(SetupError::OWN_SHAPE));
        }
        if self.input.is_none() && !config.input.is_sampler() {
            registry.check_input(&config.input)?;
        }
        if let (None, Some(name)) = (&self.output, &config.output) {
            registry.check_output(name)?;
        }
        if let (None, Some(name)) = (&self.policy_mapping_fn, &config.policy_mapping_fn) {
            registry.policy_mapping(&name.parse()?)?;
        }
        if let (None, Some(name)) = (&self.observation_fn, &config.observation_fn) {
            registry.observation_fn(name)?;
        }
        for name in &config.callbacks {
            registry.callbacks(name)?;
        }
        let written = config.policies.iter().filter(|(id, _)| !self.policies.contains_key(id));
        let written = written.map(|(id, policy)| (id, Some(policy.policy.as_str())));
        let given = self.policies.iter().map(|(id, new)| match (&new.class, &new.policy) {
            (Some(PolicyClass::Named(kind)), None) => Ok((id, Some(kind.as_str()))),
            (Some(PolicyClass::Spec(_)), None) | (None, Some(_)) => Ok((id, None)),
            _ => Err(SetupError::KindOrObject(id.clone())),
        });
        let policies: BTreeMap<_, _> = written.map(Ok).chain(given).try_collect_ordered()?;
        for (id, kind) in policies.iter().filter_map(|(id, kind)| kind.map(|kind| (*id, kind))) {
            registry.policies.spec(kind).map_err(|source| SetupError::PolicyKind { id: id.clone(), source })?;
        }
        let names = || policies.keys().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
        if source.is_some_and(|source| source.is_single_agent()) && !self.has_only_default_policy() {
            return Err(SetupError::SeveralPolicies { policies: names() });
        }
        let trained = match (&self.policies_to_train, &config.policies_to_train) {
            (Some(PoliciesToTrain::Ids(ids)), _) | (None, Some(ids)) => ids,
            _ => return Ok(()),
        };
        let is_there = |id: &PolicyId| policies.contains_key(id) || policies.is_empty() && *id == PolicyId::DEFAULT;
        match trained.iter().find(|id| !is_there(id)) {
            None => Ok(()),
            Some(unknown) => {
                let known = if policies.is_empty() { PolicyId::DEFAULT.to_string() } else { names() };
                Err(SetupError::UnknownTrained { policy: unknown.clone(), known })
            }
        }
    }

    fn check_numbers(&self) -> Result<(), SetupError> {
        let config = &self.config;
        let capacity = u32::try_from(config.policy_map_capacity).unwrap_or(u32::MAX);
        let numbers = [
            ("num_envs", Some(config.num_envs), WorkerPlace::MAX_ENVS),
            ("rollout_fragment_length", Some(self.fragment_length()), RunConfig::MAX_FRAGMENT_LENGTH),
            ("train_batch_size", Some(config.train_batch_size), u32::MAX),
            ("horizon", config.horizon, u32::MAX),
            ("dataset_shards", config.dataset_shards, u32::MAX),
            ("policy_map_capacity", Some(capacity), u32::MAX),
            ("remote_env_timeout_ms", Some(config.remote_env_timeout_ms), u32::MAX),
        ];
        for (what, found, max) in numbers {
            if let Some(found) = found.filter(|found| *found == 0 || *found > max) {
                return Err(RunConfigError::range(what, found, format!("from 1 to {max}")).into());
            }
        }
        let place = self.place;
        if place.worker_index > place.num_workers {
            return Err(conflict("worker_index is at most num_workers: workers count from 1, the local one is 0"));
        }
        if place.slot(config.num_envs, config.num_envs - 1).is_none() {
            return Err(conflict("there are at most 2^32 environments in a run: lower num_envs or num_workers"));
        }
        let steps = u64::from(self.fragment_length()) * u64::from(config.num_envs);
        if steps > WorkerPlace::MAX_STEPS_PER_SAMPLE {
            return Err(conflict("a sample has at most 2^26 steps: lower num_envs or rollout_fragment_length"));
        }
        match config.clip_rewards {
            RewardClipping::Limit(limit) if !(limit > 0.0 && limit.is_finite()) => {
                Err(conflict("rewards are clipped to a positive, finite number: correct clip_rewards"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the steps of each environment per sample.
    pub(super) fn fragment_length(&self) -> u32 {
        let (config, place) = (&self.config, self.place);
        let length = config.rollout_fragment_length;
        length.resolve(config.train_batch_size, place.num_workers, config.num_envs, place.worker_index)
    }

    /// Checks the settings that need a shell.
    fn check_shell(&self) -> Result<(), SetupError> {
        let config = &self.config;
        let simulation = config.input_evaluation.contains(&InputEvaluation::Simulation);
        let needs = [
            ("sample_async", config.sample_async, "a thread of its own"),
            ("input_evaluation", simulation, "a thread of its own"),
            ("remote_worker_envs", config.remote_worker_envs, "processes"),
            ("monitor_path", config.monitor_path.is_some(), "files"),
        ];
        match needs.into_iter().find(|(_, wanted, _)| *wanted && self.shell.is_none()) {
            Some((setting, _, needs)) => Err(SetupError::Unsupported { setting, needs, fix: SetupError::TAKE_A_SHELL }),
            None => Ok(()),
        }
    }

    /// Returns whether the only policy is the default one.
    pub(super) fn has_only_default_policy(&self) -> bool {
        self.config.policies.keys().chain(self.policies.keys()).all(|id| *id == PolicyId::DEFAULT)
    }
}

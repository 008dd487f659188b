//! From settings to a worker.

use super::{
    EnvSource, NewPolicy, RolloutWorkerBuilder, SamplerChoice, Workshop, conflict,
    deepmind::{self, WRAPPER_SETTINGS},
    shell::RemoteEnvs,
};
use crate::{
    action::ActionTransform,
    callbacks::{CallbackList, Callbacks as _, PolicyMappingFn, WorkerInfo},
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvSpaces, SubEnv},
    filter::{Filter, FilterKind},
    ids::{AgentId, PolicyId},
    policy::{MemoryStore, PolicyEntry, PolicyMap, PolicyMapLimits, Postprocessing},
    prelude::*,
    sampler::{BatchMode, CountStepsBy, EpisodicOptions, RewardClipping},
    time::Micros,
    worker::{
        RolloutWorker, SetupError,
        config::PreprocessorPref,
        lockstep::LockstepSampler,
        rollout::{Parts, PoliciesToTrain, Source},
    },
};

/// The environments of a worker.
pub(super) enum Envs {
    None,
    Lanes(Box<dyn AnyVectorEnv>),
    Base(Box<dyn BaseEnv>),
}

/// What was found out while environments were made.
pub(super) struct Made {
    pub(super) envs: Envs,
    source: Option<EnvSource>,
    pref: PreprocessorPref,
    pub(super) clip_rewards: RewardClipping,
}

impl RolloutWorkerBuilder {
    /// Makes the worker: environments, policies, sampler, input and output.
    ///
    /// # Errors
    /// [`SetupError`], which says what to change.
    pub fn build(mut self) -> Result<RolloutWorker, SetupError> {
        self.check()?;
        let mut callbacks = self.make_callbacks()?;
        let (policy_mapping_fn, mapping_name) = self.mapping()?;
        let observation_fn = match (&self.observation_fn, &self.config.observation_fn) {
            (Some(given), _) => Some(given.clone()),
            (None, Some(name)) => Some(self.registry.observation_fn(name)?.clone()),
            (None, None) => None,
        };
        let model = self.config.model_config.clone();
        let info = self.info();
        let contexts = self.contexts();
        let plain = callbacks.is_empty() && observation_fn.is_none();
        let made = self.make_envs(&contexts, plain)?;
        let single_agent = made.source.as_ref().is_some_and(EnvSource::is_single_agent);
        if single_agent && !self.has_only_default_policy() {
            let ids: BTreeSet<&str> =
                self.config.policies.keys().chain(self.policies.keys()).map(PolicyId::as_str).collect();
            let policies = ids.into_iter().collect::<Vec<_>>().join(", ");
            return Err(SetupError::SeveralPolicies { policies });
        }
        // Those of a game's wrappers are no settings of a policy.
        self.config.model_config = self.config.model_config.clone().without(&WRAPPER_SETTINGS);
        let workshop = Workshop {
            kinds: self.registry.policies.clone(),
            shared: self.shared_config(),
            filter: self.config.observation_filter,
            pref: made.pref,
            seed: self.seed(),
            kernels: self.kernels,
            place: self.place,
        };
        self.config.model_config = model;
        let (mut policies, recipes) = self.make_policies(&workshop, &made, &policy_mapping_fn, &info)?;
        policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            callbacks.on_create_policy(id, entry.policy.as_mut()).map_err(SetupError::from)
        })?;
        let mut made = self.settle(made, &contexts, &mut policies)?;
        self.look_at_envs(&mut made.envs, &contexts, &info, &mut callbacks)?;
        let policies_to_train = self.trained(&policies)?;
        let has_envs = !matches!(made.envs, Envs::None);
        let limit = made.source.as_ref().and_then(EnvSource::limit);
        let source = self.make_sampler(made, limit, single_agent)?;
        let opened = self.open(source, &info)?;
        let length = self.fragment_length();
        Ok(RolloutWorker::assemble(Parts {
            seed: self.seed(),
            place: self.place,
            contexts: if has_envs { contexts } else { Vec::new() },
            fragment_length: length,
            opened,
            info,
            workshop,
            policies,
            recipes,
            policy_mapping_fn,
            mapping_name,
            policies_to_train,
            observation_fn,
            callbacks,
            clock: self.clock,
            host: self.host,
            registry: self.registry,
            config: self.config,
        }))
    }

    fn info(&self) -> WorkerInfo {
        WorkerInfo {
            worker_index: self.place.worker_index,
            num_workers: self.place.num_workers,
            recreated_worker: self.place.recreated_worker,
            config: self.shared_config(),
        }
    }

    fn make_callbacks(&mut self) -> Result<CallbackList, SetupError> {
        let mut list = CallbackList::new();
        let shared = self.shared_config();
        for name in &self.config.callbacks {
            list.push(self.registry.callbacks(name)?(&shared)?);
        }
        core::mem::take(&mut self.callbacks).into_iter().for_each(|callbacks| list.push(callbacks));
        if let (Some(path), Some(shell)) = (&self.config.monitor_path, &mut self.shell) {
            let needs = SetupError::Unsupported { setting: "monitor_path", needs: "files" };
            list.push(shell.monitor(path)?.ok_or(needs)?);
        }
        Ok(list)
    }

    /// The mapping function, with its name if it has one.
    fn mapping(&self) -> Result<(PolicyMappingFn, Option<String>), SetupError> {
        match (&self.policy_mapping_fn, &self.config.policy_mapping_fn) {
            (Some(given), _) => Ok((given.clone(), None)),
            (None, Some(name)) => Ok((self.registry.policy_mapping_fn(name)?.clone(), Some(name.clone()))),
            (None, None) => Ok((Arc::new(|_, _, _, _| PolicyId::DEFAULT), None)),
        }
    }

    fn trained(&self, policies: &PolicyMap) -> Result<PoliciesToTrain, SetupError> {
        let trained = match (&self.policies_to_train, &self.config.policies_to_train) {
            (Some(given), _) => given.clone(),
            (None, Some(ids)) => PoliciesToTrain::Ids(ids.clone()),
            (None, None) => PoliciesToTrain::All,
        };
        if let PoliciesToTrain::Ids(ids) = &trained
            && let Some(unknown) = ids.iter().find(|id| !policies.contains(id))
        {
            let known = policies.ids().map(PolicyId::as_str).collect::<Vec<_>>().join(", ");
            return Err(SetupError::UnknownTrained { policy: unknown.clone(), known });
        }
        Ok(trained)
    }

    /// Makes the environments, games in their wrappers. `plain` is false where only the general sampler will do.
    fn make_envs(&mut self, contexts: &[EnvContext], plain: bool) -> Result<Made, SetupError> {
        let (pref, clip) = (self.config.preprocessor_pref, self.config.clip_rewards);
        let mut made = Made { envs: Envs::None, source: None, pref, clip_rewards: clip };
        let Some(source) = self.env_source()? else { return Ok(made) };
        if self.config.remote_worker_envs {
            made.envs = Envs::Base(self.remote_envs(contexts)?);
            made.source = Some(source);
            return Ok(made);
        }
        let lanes = source.is_single_agent() && plain && self.may_be_lockstep();
        made.envs = self.make(&source, contexts, lanes)?;
        made.source = Some(source);
        let Some(spaces) = made.single_spaces().filter(|_| pref == PreprocessorPref::DeepMind) else { return Ok(made) };
        if !deepmind::is_game(&spaces) {
            return Ok(made);
        }
        // One game at a time: the unwrapped ones go first.
        made.envs = Envs::None;
        let Some(EnvSource::Single { factory, limit, name }) = made.source.take() else { return Ok(made) };
        let options = deepmind::options(&self.config.model_config, &name)?;
        let wrapped = EnvSource::Single { factory, limit, name }.wrapped(options);
        made.pref = PreprocessorPref::None;
        if clip == RewardClipping::Auto {
            made.clip_rewards = RewardClipping::Sign;
        }
        made.envs = self.make(&wrapped, contexts, lanes && made.clip_rewards == RewardClipping::Off)?;
        made.source = Some(wrapped);
        Ok(made)
    }

    fn make(&self, source: &EnvSource, contexts: &[EnvContext], lanes: bool) -> Result<Envs, SetupError> {
        Ok(match lanes {
            true => Envs::Lanes(self.make_lanes(source, contexts)?),
            false => Envs::Base(self.make_base(source.clone(), contexts)?),
        })
    }

    fn remote_envs(&mut self, contexts: &[EnvContext]) -> Result<Box<dyn BaseEnv>, SetupError> {
        let request = RemoteEnvs {
            config: &self.config,
            contexts,
            seed: self.place.seed(self.config.seed),
            batch_wait: Micros::from_millis(self.config.remote_env_batch_wait_ms.into()),
        };
        let envs = self.shell.as_mut().map_or(Ok(None), |shell| shell.remote_envs(&request))?;
        envs.ok_or(SetupError::Unsupported { setting: "remote_worker_envs", needs: "processes" })
    }

    /// Whether the settings allow all environments to be stepped together.
    fn may_be_lockstep(&self) -> bool {
        let config = &self.config;
        self.sampler != SamplerChoice::Episodic
            && config.batch_mode == BatchMode::TruncateEpisodes
            && config.count_steps_by == CountStepsBy::EnvSteps
            && config.observation_filter == FilterKind::NoFilter
            && config.horizon.is_none()
            && !config.no_done_at_end
            && !config.restart_failed_sub_environments
            && matches!(config.clip_rewards, RewardClipping::Auto | RewardClipping::Off)
            && config.explore
    }

    /// Makes every policy, in the order of ids.
    fn make_policies(
        &mut self,
        workshop: &Workshop,
        made: &Made,
        mapping: &PolicyMappingFn,
        info: &WorkerInfo,
    ) -> Result<(PolicyMap, BTreeMap<PolicyId, super::Recipe>), SetupError> {
        let mut new: BTreeMap<PolicyId, NewPolicy> =
            self.config.policies.iter().map(|(id, policy)| (id.clone(), policy.into())).collect();
        new.append(&mut self.policies);
        if new.is_empty() {
            new.insert(PolicyId::DEFAULT, NewPolicy::named("net"));
        }
        let limits = PolicyMapLimits { count: self.config.policy_map_capacity, ..PolicyMapLimits::UNLIMITED };
        let again = workshop.clone();
        let factory = move |id: &PolicyId, text: &str| again.remake_for_map(id, text);
        let mut policies = PolicyMap::bounded(limits, MemoryStore::default(), factory)
            .swappable(self.config.policy_states_are_swappable);
        let mut recipes = BTreeMap::new();
        for (id, new) in new {
            let complete = new.observation_space.is_some() && new.action_space.is_some();
            let known = match made.known_spaces(&id, mapping, info, workshop.seed) {
                Err(_) if complete => None,
                known => known?,
            };
            let (entry, recipe) = workshop.make(&id, new, known)?;
            policies.insert(id.clone(), entry)?;
            recipes.insert(id, recipe);
        }
        Ok((policies, recipes))
    }

    /// Environments that are to be stepped together stay so only if the policy allows it, too.
    fn settle(&self, made: Made, contexts: &[EnvContext], policies: &mut PolicyMap) -> Result<Made, SetupError> {
        let lanes = matches!(made.envs, Envs::Lanes(_));
        if lanes && self.policy_allows_lockstep(&made, policies)? {
            return Ok(made);
        }
        if self.sampler == SamplerChoice::Lockstep {
            return Err(conflict(
                "this cannot be sampled in lockstep: it takes single agents without memory, fragments of equal length, \
                 and rows that go to the policy and back as they are; leave the choice of the sampler out",
            ));
        }
        match (lanes, made.source) {
            (true, Some(source)) => {
                drop(made.envs);
                let envs = self.make(&source, contexts, false)?;
                Ok(Made { envs, source: Some(source), ..made })
            }
            (_, source) => Ok(Made { source, ..made }),
        }
    }

    fn policy_allows_lockstep(&self, made: &Made, policies: &mut PolicyMap) -> Result<bool, SetupError> {
        let Some(spaces) = made.single_spaces() else { return Ok(false) };
        let (normalize, clip) = (self.config.normalize_actions, self.config.clip_actions);
        let entry = policies.get_mut(&PolicyId::DEFAULT)?;
        let policy = &entry.policy;
        Ok(entry.preprocessor.is_none()
            && entry.filter == Filter::NoFilter
            && policy.state_lens().is_empty()
            && policy.view_requirements().is_empty()
            && policy.postprocessing() != Postprocessing::Custom
            && ActionTransform::for_space(&spaces.action, normalize, clip) == ActionTransform::None)
    }

    /// Shows every sub-environment to `validate_env` and to callbacks.
    fn look_at_envs(
        &mut self,
        envs: &mut Envs,
        contexts: &[EnvContext],
        info: &WorkerInfo,
        callbacks: &mut CallbackList,
    ) -> Result<(), SetupError> {
        let mut validate = self.validate_env.take();
        for context in contexts {
            let env = context.home.vector_index;
            if let (Some(validate), Some(sub_env)) = (&mut validate, envs.sub_env(env as usize)) {
                validate(sub_env, context).map_err(|source| SetupError::InvalidEnv { env, source })?;
            }
            if let Some(sub_env) = envs.sub_env(env as usize) {
                callbacks.on_sub_environment_created(info, sub_env, context)?;
            }
        }
        Ok(())
    }

    fn make_sampler(&mut self, made: Made, limit: Option<u32>, single_agent: bool) -> Result<Source, SetupError> {
        let slot = |index: u32| self.place.slot(self.config.num_envs, index);
        let slots: Vec<_> = (0..self.config.num_envs).filter_map(slot).collect();
        let length = self.fragment_length();
        Ok(match made.envs {
            Envs::None => Source::None,
            Envs::Lanes(env) => {
                let sampler = LockstepSampler::new(env, &slots, self.seed(), limit, length);
                Source::Lockstep(Box::new(sampler.map_err(|source| SetupError::Env { env: 0, source })?))
            }
            Envs::Base(env) => {
                let slots = slots.into_iter().take(env.num_envs()).map(|slot| (slot, 0)).collect();
                let config = &self.config;
                let options = EpisodicOptions {
                    fragment_length: length,
                    batch_mode: config.batch_mode,
                    count_steps_by: config.count_steps_by,
                    max_episode_steps: limit,
                    horizon: config.horizon,
                    horizon_means: config.horizon_means,
                    no_done_at_end: config.no_done_at_end,
                    clip_rewards: made.clip_rewards,
                    clip_actions: config.clip_actions,
                    normalize_actions: config.normalize_actions,
                    explore: config.explore,
                    seed: self.seed(),
                    single_agent,
                    ..EpisodicOptions::new(slots)
                };
                Source::Reader(Box::new(crate::sampler::Episodic::new(options, env)?))
            }
        })
    }
}

impl Envs {
    fn sub_env(&mut self, index: usize) -> Option<SubEnv<'_>> {
        match self {
            Self::None => None,
            Self::Lanes(env) => Some(SubEnv::Lane { env: env.as_mut(), lane: index }),
            Self::Base(env) => env.sub_environments().into_iter().nth(index),
        }
    }
}

impl Made {
    fn single_spaces(&self) -> Option<EnvSpaces> {
        match &self.envs {
            Envs::None => None,
            Envs::Lanes(env) => Some(EnvSpaces::of(env.as_ref())),
            Envs::Base(env) => env.spaces(&AgentId::SINGLE),
        }
    }

    /// Spaces of the agents that the mapping gives a policy, if there are any and they are the same.
    fn known_spaces(
        &self,
        id: &PolicyId,
        mapping: &PolicyMappingFn,
        info: &WorkerInfo,
        seed: u64,
    ) -> Result<Option<EnvSpaces>, SetupError> {
        let env = match (&self.envs, &self.source) {
            (Envs::None, _) => return Ok(None),
            (Envs::Lanes(_), _) | (_, Some(EnvSource::Single { .. })) => return Ok(self.single_spaces()),
            (Envs::Base(env), _) => env,
        };
        super::envs::spaces_of_policy(env.as_ref(), id, mapping, info, seed)
    }
}

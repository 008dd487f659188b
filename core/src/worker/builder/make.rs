//! Builds a worker from its settings.

use super::{
    AsyncSampling, NewPolicy, Recipe, RolloutWorkerBuilder, Workshop,
    assign::{Assignment, by_spaces},
    sampler::{MadeEnvs, WorkerEnvs},
};
use crate::{
    callbacks::{CallbackList, Callbacks as _, ObservationFn, PolicyMappingFn, WorkerInfo},
    ids::PolicyId,
    policy::{MemoryStore, PolicyEntry, PolicyMap, PolicyMapLimits},
    prelude::*,
    worker::{
        PolicyConfig, RegisteredEnv, Registry, RolloutWorker, SetupError,
        config::PreprocessorPref,
        rollout::{Parts, PoliciesToTrain, Source},
    },
};

impl RolloutWorkerBuilder {
    /// Builds the worker: environments, policies, sampler, input and output.
    ///
    /// # Errors
    /// [`SetupError`], which names the setting to change.
    pub fn build(mut self) -> Result<RolloutWorker, SetupError> {
        self.check()?;
        let mut callbacks = self.make_callbacks()?;
        let (mut policy_mapping_fn, mapping_name) = self.mapping()?;
        let observation_fn = self.observation_function()?;
        let info = self.info();
        let contexts = self.contexts();
        let plain = callbacks.is_empty() && observation_fn.is_none();
        let made = self.make_envs(&contexts, plain)?;
        let contexts = made.fitting(contexts)?;
        let single_agent = made.is_single_agent();
        if let WorkerEnvs::Base(env) = &made.envs
            && self.policies.is_empty()
            && self.may_group()
        {
            let Assignment { policies, mapping } = by_spaces(env.as_ref());
            policy_mapping_fn = mapping;
            self.config.policies = policies.into_iter().map(|id| (id, PolicyConfig::default())).collect_ordered();
        }
        let workshop = self.workshop(made.pref);
        let (mut policies, recipes) = self.make_policies(&workshop, &made, &policy_mapping_fn, &info)?;
        let mut made = self.settle(made, &contexts, &mut policies)?;
        self.look_at_envs(&mut made.envs, &contexts, &info, &mut callbacks)?;
        policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            callbacks.on_create_policy(id, entry.policy.as_mut()).map_err(SetupError::from)
        })?;
        let policies_to_train = self.trained();
        let has_envs = !matches!(made.envs, WorkerEnvs::None);
        let limit = made.source.as_ref().and_then(RegisteredEnv::max_episode_steps);
        let mut source = self.make_sampler(made, limit, single_agent, &mut policies)?;
        if let Some(setting) = self.needs_thread()
            && let Some(sampler) = source.take().map(Source::into_reader)
        {
            let moved = self.on_a_thread(
                setting,
                AsyncSampling {
                    sampler,
                    policies: self.twins(&workshop, &mut policies)?,
                    callbacks: core::mem::take(&mut callbacks),
                    worker: info.clone(),
                    mapping: policy_mapping_fn.clone(),
                    observation_fn: observation_fn.clone(),
                    clock: self.clock.clone(),
                    discard_batches: self.simulates(),
                },
            )?;
            (source, callbacks) = (Some(Source::Reader(moved.sampler)), moved.callbacks);
        }
        let opened = self.open(source, &info, &recipes)?;
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
            q_models: self.q_model.into_iter().map(|model| (PolicyId::DEFAULT, model)).collect_ordered(),
            legacy_estimators: BTreeMap::new(),
            clock: self.clock,
            mark: self.mark,
            host: self.host,
            shell: self.shell,
            registry: self.registry,
            config: self.config,
        }))
    }

    /// Returns the factory of policies for observations that are preprocessed in this way.
    pub(super) fn workshop(&self, pref: PreprocessorPref) -> Workshop {
        Workshop {
            kinds: self.registry.policies.clone(),
            shared: self.config.network_config(),
            filter: self.config.observation_filter,
            pref,
            normalize_actions: self.config.normalize_actions,
            seed: self.seed(),
            kernels: self.kernels,
            place: self.place,
            whole_batches: false,
        }
    }

    pub(super) fn observation_function(&self) -> Result<Option<ObservationFn>, SetupError> {
        match (&self.observation_fn, &self.config.observation_fn) {
            (Some(given), _) => Ok(Some(given.clone())),
            (None, Some(name)) => Ok(Some(self.registry.observation_fn(name)?.clone())),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn info(&self) -> WorkerInfo {
        WorkerInfo {
            worker_index: self.place.worker_index,
            num_workers: self.place.num_workers,
            recreated_worker: self.place.recreated_worker,
            config: self.config.shared_policy_config(),
        }
    }

    pub(super) fn make_callbacks(&mut self) -> Result<CallbackList, SetupError> {
        let mut list = CallbackList::new();
        let shared = self.config.shared_policy_config();
        for name in &self.config.callbacks {
            list.push(self.registry.callbacks(name)?(&shared)?);
        }
        core::mem::take(&mut self.callbacks).into_iter().for_each(|callbacks| list.push(callbacks));
        if let (Some(path), Some(shell)) = (&self.config.monitor_path, &mut self.shell) {
            let needs = "files";
            let needs = SetupError::Unsupported { setting: "monitor_path", needs, fix: SetupError::LEAVE_OUT };
            list.push(shell.monitor(path)?.ok_or(needs)?);
        }
        Ok(list)
    }

    /// Returns the mapping function, with its name if it has one.
    pub(super) fn mapping(&self) -> Result<(PolicyMappingFn, Option<String>), SetupError> {
        match (&self.policy_mapping_fn, &self.config.policy_mapping_fn) {
            (Some(given), _) => Ok((given.clone(), None)),
            (None, Some(name)) => {
                let map = self.registry.policy_mapping(&name.parse()?)?;
                Ok((map, Some(name.clone())))
            }
            (None, None) => Ok((Arc::new(|_, _, _, _| PolicyId::DEFAULT), None)),
        }
    }

    /// Returns whether every agent is known to get the default policy.
    pub(super) fn maps_to_default(&self) -> bool {
        self.policy_mapping_fn.is_none()
            && self.config.policy_mapping_fn.as_ref().is_none_or(|name| name == Registry::DEFAULT_MAPPING)
    }

    fn trained(&self) -> PoliciesToTrain {
        match (&self.policies_to_train, &self.config.policies_to_train) {
            (Some(given), _) => given.clone(),
            (None, Some(ids)) => PoliciesToTrain::Ids(ids.clone()),
            (None, None) => PoliciesToTrain::All,
        }
    }

    /// Makes every policy, in the order of ids.
    fn make_policies(
        &mut self,
        workshop: &Workshop,
        made: &MadeEnvs,
        mapping: &PolicyMappingFn,
        info: &WorkerInfo,
    ) -> Result<(PolicyMap, BTreeMap<PolicyId, Recipe>), SetupError> {
        let mut new: BTreeMap<PolicyId, NewPolicy> =
            self.config.policies.iter().map(|(id, policy)| (id.clone(), policy.into())).collect_ordered();
        new.append(&mut self.policies);
        if new.is_empty() {
            new.insert(PolicyId::DEFAULT, NewPolicy::named("net"));
        }
        let mut policies = self.no_policies(workshop);
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

    /// Returns an empty policy map with the limits of the settings.
    fn no_policies(&self, workshop: &Workshop) -> PolicyMap {
        let limits = PolicyMapLimits { count: self.config.policy_map_capacity, ..PolicyMapLimits::UNLIMITED };
        let again = workshop.clone();
        let factory = move |id: &PolicyId, text: &str| again.remake_for_map(id, text);
        PolicyMap::bounded(limits, MemoryStore::default(), factory)
            .with_swapping(self.config.policy_states_are_swappable)
    }

    /// Makes copies of the policies for another thread.
    fn twins(&self, workshop: &Workshop, policies: &mut PolicyMap) -> Result<PolicyMap, SetupError> {
        let mut twins = self.no_policies(workshop);
        policies.for_each(|id, entry: &PolicyEntry| {
            let twin = entry.twin().map_err(|source| SetupError::PolicyState { id: id.clone(), source })?;
            Ok::<_, SetupError>(twins.insert(id.clone(), twin)?)
        })?;
        Ok(twins)
    }
}

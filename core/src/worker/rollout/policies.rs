//! The policies of a worker: access, adding, removing, and the mapping of agents to them.

use super::{PoliciesToTrain, RolloutWorker};
use crate::{
    callbacks::{Callbacks as _, PolicyMappingFn},
    env::EnvSpaces,
    ids::PolicyId,
    policy::{Policy, PolicyEntry, PolicyMap, PolicyMapError, PolicyState, Stashed},
    prelude::*,
    worker::{NamedFn, NewPolicy, Registry, RolloutError, SetupError, WorkerStateError},
};

impl RolloutWorker {
    /// Returns the policies, with their filters and preprocessors.
    #[doc(alias = "policy_map")]
    pub fn policies(&mut self) -> &mut PolicyMap {
        &mut self.parts.policies
    }

    /// Returns a policy that is in memory; `None` if it is stashed or unknown.
    #[doc(alias = "get_policy")]
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> Option<&dyn Policy> {
        self.parts.policies.peek(id).map(|entry| entry.policy.as_ref())
    }

    /// Returns a policy, restored from the store if it was stashed.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id.
    pub fn policy_mut(&mut self, id: &PolicyId) -> Result<&mut dyn Policy, RolloutError> {
        Ok(self.parts.policies.policy_mut(id)?)
    }

    /// Calls a function with a policy.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id.
    pub fn for_policy<R>(&mut self, id: &PolicyId, f: impl FnOnce(&mut dyn Policy) -> R) -> Result<R, RolloutError> {
        Ok(f(self.parts.policies.policy_mut(id)?))
    }

    /// Calls a function with every policy, and returns the results in the order of ids.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be restored from the store.
    pub fn foreach_policy<R>(
        &mut self,
        mut f: impl FnMut(&PolicyId, &mut dyn Policy) -> R,
    ) -> Result<Vec<R>, RolloutError> {
        let mut answers = BTreeMap::new();
        self.parts.policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            answers.insert(id.clone(), f(id, entry.policy.as_mut()));
            Ok::<_, PolicyMapError>(())
        })?;
        Ok(answers.into_values().collect())
    }

    /// Does the same as [`foreach_policy`](Self::foreach_policy) for the trained policies.
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "foreach_trainable_policy")]
    pub fn foreach_policy_to_train<R>(
        &mut self,
        mut f: impl FnMut(&PolicyId, &mut dyn Policy) -> R,
    ) -> Result<Vec<R>, RolloutError> {
        let trained = self.policies_to_train(None);
        let answers = self.foreach_policy(|id, policy| trained.contains(id).then(|| f(id, policy)))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Adds a policy and returns it. Also sets the mapping function and the trained policies, if given.
    ///
    /// Without spaces it gets those of the worker's other policies, if these are all the same.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] if the id exists; [`RolloutError::Setup`] if neither or both of class and object are
    /// given, for an unknown class, for unknown spaces, and for a state that does not fit; [`RolloutError::FixedMapping`].
    /// Nothing has changed then.
    pub fn add_policy(
        &mut self,
        id: PolicyId,
        new: NewPolicy,
        policy_mapping_fn: Option<PolicyMappingFn>,
        policies_to_train: Option<PoliciesToTrain>,
    ) -> Result<&mut dyn Policy, RolloutError> {
        self.check_running()?;
        if self.parts.policies.contains(&id) {
            return Err(PolicyMapError::AlreadyExists(id).into());
        }
        if policy_mapping_fn.is_some() {
            self.check_may_map()?;
        }
        let known = self.common_spaces();
        let (mut entry, recipe) = self.parts.workshop.make(&id, new, known)?;
        self.parts.callbacks.on_create_policy(&id, entry.policy.as_mut())?;
        let added = self.parts.policies.add(id.clone(), entry);
        self.parts.recipes.insert(id.clone(), recipe);
        self.set_policy_mapping_fn(policy_mapping_fn)?;
        if let Some(trained) = policies_to_train {
            self.parts.policies_to_train = trained;
        }
        // The policy is added even if the map could not evict another one.
        added?;
        self.policy_mut(&id)
    }

    /// Removes a policy with its filter. Also sets the mapping function and the trained policies, if given. Agents that act
    /// under it are mapped again.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id, [`RolloutError::LastPolicy`], [`RolloutError::FixedMapping`].
    pub fn remove_policy(
        &mut self,
        id: &PolicyId,
        policy_mapping_fn: Option<PolicyMappingFn>,
        policies_to_train: Option<PoliciesToTrain>,
    ) -> Result<(), RolloutError> {
        self.check_running()?;
        if self.parts.policies.len() == 1 && self.parts.policies.contains(id) {
            return Err(RolloutError::LastPolicy(id.clone()));
        }
        if policy_mapping_fn.is_some() {
            self.check_may_map()?;
        }
        self.parts.policies.remove(id)?;
        self.parts.recipes.remove(id);
        self.forget_acting(id);
        if let PoliciesToTrain::Ids(ids) = &mut self.parts.policies_to_train {
            ids.remove(id);
        }
        self.set_policy_mapping_fn(policy_mapping_fn)?;
        if let Some(trained) = policies_to_train {
            self.parts.policies_to_train = trained;
        }
        Ok(())
    }

    /// Sets the mapping function; `None` changes nothing. Episodes that have begun keep their policies.
    ///
    /// # Errors
    /// [`RolloutError::FixedMapping`] if all environments are in lockstep; the old function stays then.
    pub fn set_policy_mapping_fn(&mut self, policy_mapping_fn: Option<PolicyMappingFn>) -> Result<(), RolloutError> {
        self.check_running()?;
        if let Some(map) = policy_mapping_fn {
            self.check_may_map()?;
            (self.parts.policy_mapping_fn, self.parts.mapping_name) = (map, None);
        }
        Ok(())
    }

    /// Sets a mapping function by its registered name, which a saved state contains; or by the text of a [`NamedFn`], which
    /// includes its arguments. See [`set_policy_mapping_fn`](Self::set_policy_mapping_fn).
    ///
    /// # Errors
    /// [`RolloutError::Unknown`], [`RolloutError::Callback`] for arguments that do not fit, and those of
    /// `set_policy_mapping_fn`; the old function stays then.
    pub fn set_policy_mapping_fn_by_name(&mut self, name: &str) -> Result<(), RolloutError> {
        self.check_running()?;
        let map = self.mapping_of_name(name)?;
        (self.parts.policy_mapping_fn, self.parts.mapping_name) = (map, Some(name.into()));
        Ok(())
    }

    /// Returns a registered mapping function that this worker can use.
    pub(in crate::worker) fn mapping_of_name(&self, name: &str) -> Result<PolicyMappingFn, RolloutError> {
        let function: NamedFn = name.parse().map_err(SetupError::from)?;
        let map = self.parts.registry.policy_mapping(&function).map_err(|error| match error {
            SetupError::Unknown(unknown) => RolloutError::Unknown(unknown),
            SetupError::Callback(error) => error.into(),
            other => other.into(),
        })?;
        if name != Registry::DEFAULT_MAPPING {
            self.check_may_map()?;
        }
        Ok(map)
    }

    /// Checks that a mapping can take effect: environments in lockstep all use one policy.
    fn check_may_map(&self) -> Result<(), RolloutError> {
        if self.is_lockstep() { Err(RolloutError::FixedMapping) } else { Ok(()) }
    }

    /// Serialises a policy: its class and settings, weights, filter, and further state. Versioned and hashed.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id, [`RolloutError::State`] for one that is too large.
    #[doc(alias("export_policy_model", "export_policy_checkpoint"))]
    pub fn export_policy(&mut self, id: &PolicyId) -> Result<Vec<u8>, RolloutError> {
        let entry = self.parts.policies.get_mut(id)?;
        let encoded = Stashed::of(id, entry).and_then(|stashed| stashed.encode());
        encoded.map_err(|source| WorkerStateError::Policy { id: id.clone(), source }.into())
    }

    /// Restores a policy from the bytes of [`export_policy`](Self::export_policy), whatever its id was there. A policy that
    /// does not exist is created, if its class is registered.
    ///
    /// # Errors
    /// [`RolloutError::State`] for damaged bytes, [`RolloutError::Policy`] and [`RolloutError::Filter`] for a state that
    /// does not fit, [`RolloutError::Setup`] for a policy that cannot be created. Nothing has changed then.
    #[doc(alias("import_policy_model_from_h5", "import_policy_model"))]
    pub fn import_policy(&mut self, id: &PolicyId, bytes: &[u8]) -> Result<(), RolloutError> {
        self.check_running()?;
        let failed = |source| WorkerStateError::Policy { id: id.clone(), source };
        let stashed = Stashed::decode(bytes).map_err(failed)?;
        let state = PolicyState::decode(&stashed.state).map_err(failed)?;
        self.put_policy(id, &stashed.spec, &state)
    }

    /// Sets the state of a policy, or creates it.
    pub(super) fn put_policy(&mut self, id: &PolicyId, spec: &str, state: &PolicyState) -> Result<(), RolloutError> {
        if self.parts.policies.contains(id) {
            let entry = self.parts.policies.get_mut(id)?;
            return put_state(id, entry, state);
        }
        let (mut entry, recipe) = self.parts.workshop.remake(id, spec)?;
        put_state(id, &mut entry, state)?;
        self.parts.callbacks.on_create_policy(id, entry.policy.as_mut())?;
        self.parts.recipes.insert(id.clone(), recipe);
        Ok(self.parts.policies.add(id.clone(), entry)?)
    }

    /// Returns the spaces of every policy, before preprocessing.
    #[doc(alias = "get_spaces")]
    #[must_use]
    pub fn spaces(&self) -> BTreeMap<PolicyId, EnvSpaces> {
        self.parts.recipes.iter().map(|(id, recipe)| (id.clone(), recipe.spaces.clone())).collect_ordered()
    }

    /// Returns the spaces of all policies, if they are the same.
    fn common_spaces(&self) -> Option<EnvSpaces> {
        let mut spaces = self.parts.recipes.values().map(|recipe| &recipe.spaces);
        let first = spaces.next()?;
        spaces.all(|other| other == first).then(|| first.clone())
    }
}

/// Sets a policy's state completely or not at all. A filter of another kind or shape does not fit the policy's observations.
pub(super) fn put_state(id: &PolicyId, entry: &mut PolicyEntry, state: &PolicyState) -> Result<(), RolloutError> {
    let fits = entry.filter.clone().sync(&state.filter);
    fits.map_err(|source| RolloutError::Filter { id: id.clone(), source })?;
    let before = entry.policy.weights().clone();
    entry.policy.set_weights(&state.weights).map_err(RolloutError::of_policy(id))?;
    if let Err(error) = entry.policy.set_extra_state(&state.extra) {
        entry.policy.set_weights(&before).map_err(RolloutError::of_policy(id))?;
        return Err(RolloutError::of_policy(id)(error));
    }
    entry.filter = state.filter.clone();
    Ok(())
}

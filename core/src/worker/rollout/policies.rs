//! The policies of a worker: to be looked at, added, removed, and given to agents.

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
    /// The policies, with their filters and preprocessors.
    #[doc(alias = "policy_map")]
    pub fn policies(&mut self) -> &mut PolicyMap {
        &mut self.parts.policies
    }

    /// A policy that is in memory; nothing if it is put aside or unknown.
    #[doc(alias = "get_policy")]
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> Option<&dyn Policy> {
        self.parts.policies.peek(id).map(|entry| entry.policy.as_ref())
    }

    /// A policy, brought back if it was put aside.
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

    /// Calls a function with every policy, and gives the answers in the order of ids.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be brought back.
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

    /// [`foreach_policy`](Self::foreach_policy) for those that are trained.
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

    /// Adds a policy, and lends it. Says anew how agents get their policies and which ones are trained, if that is given.
    ///
    /// Without spaces it has those of the worker's other policies, if these are all the same.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] if the id is taken; [`RolloutError::Setup`] for neither kind nor object or both, a
    /// kind that is unknown, spaces that are, and a state that does not fit; [`RolloutError::FixedMapping`]. Nothing has
    /// changed then.
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
        // It is there even if nobody could make room.
        added?;
        self.policy_mut(&id)
    }

    /// Removes a policy with its filter. Says anew how agents get their policies and which ones are trained, if that is
    /// given. Agents that act under it get another one from the mapping.
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

    /// Says anew how agents get their policies; with none it stays as it is. Episodes that have begun keep theirs.
    ///
    /// # Errors
    /// [`RolloutError::FixedMapping`] where all environments are stepped together; the old one stays then.
    pub fn set_policy_mapping_fn(&mut self, policy_mapping_fn: Option<PolicyMappingFn>) -> Result<(), RolloutError> {
        self.check_running()?;
        if let Some(map) = policy_mapping_fn {
            self.check_may_map()?;
            (self.parts.policy_mapping_fn, self.parts.mapping_name) = (map, None);
        }
        Ok(())
    }

    /// [`set_policy_mapping_fn`](Self::set_policy_mapping_fn) by registered name, which a saved state remembers; or by the
    /// text of a [`NamedFn`], with the arguments that it is made with.
    ///
    /// # Errors
    /// [`RolloutError::Unknown`], [`RolloutError::Callback`] for arguments that do not fit, and as there; the old one stays
    /// then.
    pub fn set_policy_mapping_fn_by_name(&mut self, name: &str) -> Result<(), RolloutError> {
        self.check_running()?;
        let map = self.mapping_of_name(name)?;
        (self.parts.policy_mapping_fn, self.parts.mapping_name) = (map, Some(name.into()));
        Ok(())
    }

    /// A registered mapping function that this worker can follow.
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

    /// Environments that are stepped together ask one policy for all, whatever a mapping says.
    fn check_may_map(&self) -> Result<(), RolloutError> {
        if self.is_lockstep() { Err(RolloutError::FixedMapping) } else { Ok(()) }
    }

    /// A policy in bytes: what it is, its weights, its filter, and what else it would miss. Versioned and with a hash.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id, [`RolloutError::State`] for one that is too large.
    #[doc(alias("export_policy_model", "export_policy_checkpoint"))]
    pub fn export_policy(&mut self, id: &PolicyId) -> Result<Vec<u8>, RolloutError> {
        let entry = self.parts.policies.get_mut(id)?;
        let encoded = Stashed::of(id, entry).and_then(|stashed| stashed.encode());
        encoded.map_err(|source| WorkerStateError::Policy { id: id.clone(), source }.into())
    }

    /// Lets a policy go on from bytes that [`export_policy`](Self::export_policy) gave, whatever its id was there. One
    /// that is not here is made, if its kind is registered.
    ///
    /// # Errors
    /// [`RolloutError::State`] for bytes that are damaged, [`RolloutError::Policy`] and [`RolloutError::Filter`] for a
    /// state that does not fit, [`RolloutError::Setup`] for a policy that cannot be made. Nothing has changed then.
    #[doc(alias("import_policy_model_from_h5", "import_policy_model"))]
    pub fn import_policy(&mut self, id: &PolicyId, bytes: &[u8]) -> Result<(), RolloutError> {
        self.check_running()?;
        let failed = |source| WorkerStateError::Policy { id: id.clone(), source };
        let stashed = Stashed::decode(bytes).map_err(failed)?;
        let state = PolicyState::decode(&stashed.state).map_err(failed)?;
        self.put_policy(id, &stashed.spec, &state)
    }

    /// Sets the state of a policy, or makes it.
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

    /// What every policy observes and does, before preprocessing.
    #[doc(alias = "get_spaces")]
    #[must_use]
    pub fn spaces(&self) -> BTreeMap<PolicyId, EnvSpaces> {
        self.parts.recipes.iter().filter_map(|(id, recipe)| Some((id.clone(), recipe.spaces()?))).collect()
    }

    /// Spaces of all policies, if they are the same.
    fn common_spaces(&self) -> Option<EnvSpaces> {
        let mut spaces = self.parts.recipes.values().filter_map(|recipe| recipe.spaces());
        let first = spaces.next()?;
        spaces.all(|other| other == first).then_some(first)
    }
}

/// All of it or nothing. A filter of another kind or shape would not take the policy's observations.
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

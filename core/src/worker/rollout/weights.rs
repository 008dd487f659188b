//! The policies' weights, and the run's progress.

use super::RolloutWorker;
use crate::{
    episode::GlobalVars,
    ids::PolicyId,
    policy::{PolicyEntry, PolicyMapError, UnknownPolicy},
    prelude::*,
    sampler::replace_weights,
    weights::Weights,
    worker::RolloutError,
};

impl RolloutWorker {
    /// Returns the weights of all policies, or of those in `policies`. Ids without a policy are ignored.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be restored from the store.
    #[doc(alias = "get_weights")]
    pub fn weights(&mut self, policies: Option<&[PolicyId]>) -> Result<BTreeMap<PolicyId, Weights>, RolloutError> {
        let mut weights = BTreeMap::new();
        self.parts.policies.for_each(|id, entry: &PolicyEntry| {
            if policies.is_none_or(|wanted| wanted.contains(id)) {
                weights.insert(id.clone(), entry.policy.weights().clone());
            }
            Ok::<_, PolicyMapError>(())
        })?;
        Ok(weights)
    }

    /// Sets the policies' weights from now on, or, if a sample is in [progress](Self::sample_within), from the next sample
    /// on; and sets the [global vars](Self::set_global_vars), if given.
    ///
    /// If the sequence number equals the last one, the weights are known and skipped. The number is kept in any case, also
    /// if it is `None`.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for an unknown id, [`RolloutError::Policy`] for weights that do not fit. Nothing has
    /// changed then.
    pub fn set_weights(
        &mut self,
        weights: &BTreeMap<PolicyId, Weights>,
        global_vars: Option<&GlobalVars>,
        weights_seq_no: Option<u64>,
    ) -> Result<(), RolloutError> {
        self.check_running()?;
        if weights_seq_no.is_none() || weights_seq_no != self.weights_seq_no {
            self.install(weights)?;
        }
        self.weights_seq_no = weights_seq_no;
        match global_vars {
            Some(vars) => self.set_global_vars(vars, None),
            None => Ok(()),
        }
    }

    /// Sets all of the weights or none.
    fn install(&mut self, weights: &BTreeMap<PolicyId, Weights>) -> Result<(), RolloutError> {
        let policies = &mut self.parts.policies;
        if let Some(unknown) = weights.keys().find(|id| !policies.contains(id)) {
            return Err(PolicyMapError::from(UnknownPolicy::among(unknown, policies.ids())).into());
        }
        let weights = weights.iter().map(|(id, weights)| (id.clone(), weights.clone()));
        let before = replace_weights(policies, weights, |id, error| RolloutError::of_policy(id)(error))?;
        self.keep_acting(before);
        Ok(())
    }

    /// Returns the run's progress. A copy: later updates do not change it.
    #[doc(alias = "get_global_vars")]
    #[must_use]
    pub fn global_vars(&self) -> GlobalVars {
        let mut vars = self.global_vars.clone();
        let updates = self.making.iter().flat_map(|making| &making.updates);
        updates.for_each(|(newer, _)| vars.update(newer));
        vars
    }

    /// Sets the run's progress, and notifies the trained policies, all or those in `policies`. The next sample records how
    /// many updates its policies have had. While a sample is in [progress](Self::sample_within), policies are notified when
    /// it is complete.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be restored from the store.
    pub fn set_global_vars(&mut self, vars: &GlobalVars, policies: Option<&[PolicyId]>) -> Result<(), RolloutError> {
        self.check_running()?;
        if let Some(making) = &mut self.making {
            making.updates.push((vars.clone(), policies.map(<[PolicyId]>::to_vec)));
            return Ok(());
        }
        let trained = self.policies_to_train(None);
        let wanted = |id: &PolicyId| trained.contains(id) && policies.is_none_or(|wanted| wanted.contains(id));
        self.parts.policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            if wanted(id) {
                entry.policy.on_global_var_update(vars);
            }
            Ok::<_, PolicyMapError>(())
        })?;
        self.global_vars.update(vars);
        Ok(())
    }
}

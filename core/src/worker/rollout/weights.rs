//! What policies act with, and what is known of the run's progress.

use super::RolloutWorker;
use crate::{
    episode::GlobalVars,
    ids::PolicyId,
    policy::{PolicyEntry, PolicyMapError, UnknownPolicy},
    prelude::*,
    weights::Weights,
    worker::RolloutError,
};

impl RolloutWorker {
    /// Weights of the policies, of all or of those among `policies`. Ids without a policy are passed over.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be brought back.
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

    /// Lets policies act with other weights from now on, or, if a sample has [begun](Self::sample_within), from the next
    /// one on; and takes over [global vars](Self::set_global_vars), if given.
    ///
    /// With a number that is the one given last, the weights are known and nothing is done with them. The number is kept
    /// in any case, also that there was none.
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

    /// All or none.
    fn install(&mut self, weights: &BTreeMap<PolicyId, Weights>) -> Result<(), RolloutError> {
        let policies = &mut self.parts.policies;
        if let Some(unknown) = weights.keys().find(|id| !policies.contains(id)) {
            return Err(PolicyMapError::from(UnknownPolicy::among(unknown, policies.ids())).into());
        }
        let mut before: Vec<(&PolicyId, Weights)> = Vec::with_capacity(weights.len());
        for (id, new) in weights {
            let installed = match policies.policy_mut(id) {
                Ok(policy) => {
                    let old = policy.weights().clone();
                    policy.set_weights(new).map(|()| before.push((id, old))).map_err(RolloutError::of_policy(id))
                }
                Err(error) => Err(error.into()),
            };
            if let Err(error) = installed {
                for (id, old) in before {
                    // They were the policy's own a moment ago.
                    policies.policy_mut(id)?.set_weights(&old).map_err(RolloutError::of_policy(id))?;
                }
                return Err(error);
            }
        }
        self.keep_acting(before.into_iter().map(|(id, old)| (id.clone(), old)));
        Ok(())
    }

    /// What is known of the run's progress. A copy: later news do not change it.
    #[doc(alias = "get_global_vars")]
    #[must_use]
    pub fn global_vars(&self) -> GlobalVars {
        let mut vars = self.global_vars.clone();
        let news = self.making.iter().flat_map(|making| &making.news);
        news.for_each(|(news, _)| vars.update(news));
        vars
    }

    /// Hears of the run's progress, and tells it to those policies that are trained, of all or among `policies`. The next
    /// sample says how many updates its policies have had. Policies hear of it when a sample that has
    /// [begun](Self::sample_within) is complete.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be brought back.
    pub fn set_global_vars(&mut self, vars: &GlobalVars, policies: Option<&[PolicyId]>) -> Result<(), RolloutError> {
        self.check_running()?;
        if let Some(making) = &mut self.making {
            making.news.push((vars.clone(), policies.map(<[PolicyId]>::to_vec)));
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

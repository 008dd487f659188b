//! Off-policy estimates: the value of the worker's policies from logged episodes.

use super::{OffPolicyEstimate, RolloutWorker};
use crate::{
    batch::{AnyBatch, EPS_ID, SampleBatch, TERMINATEDS},
    config::Config,
    env::EnvSpaces,
    estimate::{
        EpisodeLog, EstimateError, Estimator, LegacyStepEstimator, NEW_ACTION_PROB, Q_VALUES, QModel, Transitions,
        V_VALUES,
    },
    ids::PolicyId,
    policy::{Judge, PolicyRegistry, Postprocessing},
    prelude::*,
    worker::{QModelContext, RolloutError, SetupError, config::InputEvaluation},
};

/// Groups rows by episode: several environments write theirs alternately, and long episodes span several lines. Each agent
/// has its own episodes, in which it `may_rest`: not act at every env step.
fn by_episode(rows: SampleBatch, may_rest: bool) -> Result<SampleBatch, RolloutError> {
    // The order of sequences must not change.
    if rows.is_empty() || rows.seq_lens().is_some() || rows.zero_padded() {
        return Ok(rows);
    }
    let names: Vec<&str> = rows.iter().map(|(name, _)| name).collect();
    let mut log = EpisodeLog::new(&names);
    if may_rest {
        log.add_of_agents(&rows)?
    } else {
        log.add(&rows)?
    }
    Ok(log.finish()?.rows)
}

impl RolloutWorker {
    /// Returns the estimates by all requested estimators, for every episode of a batch and every policy that has rows in it.
    /// The batch contains the probability of each action as `action_prob` or `action_logp`. The policy's own probabilities
    /// and its model's values are computed, unless the batch has columns of them; the model learns from the batch first.
    pub(super) fn estimates_of(&mut self, batch: &AnyBatch) -> Result<Vec<OffPolicyEstimate>, RolloutError> {
        let wanted = self.parts.config.input_evaluation.clone();
        let wanted: Vec<(InputEvaluation, Estimator)> =
            wanted.into_iter().filter_map(|by| Some((by, by.estimator()?))).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let may_rest = matches!(batch, AnyBatch::Multi(_));
        let mut estimates = Vec::new();
        for (policy, rows) in batch.as_multi_agent().policy_batches {
            estimates.extend(self.estimates_of_policy(&policy, rows, may_rest, &wanted)?);
        }
        Ok(estimates)
    }

    fn estimates_of_policy(
        &mut self,
        policy: &PolicyId,
        mut rows: SampleBatch,
        may_rest: bool,
        wanted: &[(InputEvaluation, Estimator)],
    ) -> Result<Vec<OffPolicyEstimate>, RolloutError> {
        let gamma = self.gamma(policy)?;
        rows.decompress_if_needed()?;
        rows = by_episode(rows, may_rest)?;
        Judge::add_logged_probs(&mut rows)?;
        let is_missing = |name: &str| rows.column(name).is_none();
        let probs = is_missing(NEW_ACTION_PROB) && wanted.iter().any(|(_, of)| *of != Estimator::DirectMethod);
        let has_values = !is_missing(V_VALUES) && !is_missing(Q_VALUES);
        let values = !has_values && wanted.iter().any(|(_, of)| of.needs_model());
        if probs || values {
            let spaces = self.acting_spaces(policy)?;
            if values && !self.parts.q_models.contains_key(policy) {
                let model = self.make_q_model(&spaces, gamma)?;
                self.parts.q_models.insert(policy.clone(), model);
            }
            let mut judge = Judge::new(self.parts.policies.policy_mut(policy)?, &spaces);
            if probs {
                judge.add_probs(&mut rows)?;
            }
            if let (true, Some(model)) = (values, self.parts.q_models.get_mut(policy)) {
                model.fit(&judge.transitions(&rows)?)?;
                judge.add_values(&mut rows, &mut **model)?;
            }
        }
        let legacy = self.parts.config.legacy_step_estimates;
        let mut estimates = Vec::new();
        for &(by, estimator) in wanted {
            let samples = if legacy {
                let first = if by == InputEvaluation::Wis { LegacyStepEstimator::wis } else { LegacyStepEstimator::is };
                let seen = self.parts.legacy_estimators.entry((policy.clone(), by)).or_insert_with(first);
                seen.per_episode(&rows, gamma)?
            } else {
                estimator.per_episode(&rows, gamma)?
            };
            let estimate = |sample| OffPolicyEstimate { policy: policy.clone(), by, sample, legacy };
            estimates.extend(samples.into_iter().map(estimate));
        }
        Ok(estimates)
    }

    /// Prepares logged rows for [estimators](Estimator): groups them by episode, and adds the probabilities of their actions
    /// under a policy that acts at random with the probability `epsilon`, and the values of the model that `fit` makes, if
    /// there is one. The rows have observations as policies see them, and `action_prob` or `action_logp`; those with neither
    /// `eps_id` nor `terminateds` belong to no episodes and stay in their order. Existing columns but `eps_id` are kept.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`], [`RolloutError::NoEstimate`], [`RolloutError::Judge`], [`RolloutError::Estimate`].
    pub fn judge<M: QModel>(
        &mut self,
        policy: &PolicyId,
        rows: &mut SampleBatch,
        epsilon: f64,
        fit: Option<impl FnOnce(&Transitions) -> Result<M, EstimateError>>,
    ) -> Result<(), RolloutError> {
        self.check_running()?;
        self.policy_mut(policy)?;
        rows.decompress_if_needed()?;
        if rows.column(EPS_ID.name()).is_some() || rows.column(TERMINATEDS.name()).is_some() {
            *rows = by_episode(rows.clone(), false)?;
        }
        let spaces = self.acting_spaces(policy)?;
        let mut judge = Judge::new(self.parts.policies.policy_mut(policy)?, &spaces).with_epsilon(epsilon)?;
        judge.add_probs(rows)?;
        if let Some(fit) = fit {
            let mut model = fit(&judge.transitions(rows)?)?;
            judge.add_values(rows, &mut model)?;
        }
        Ok(())
    }

    /// Returns the discount of the policy's advantages; of one without advantages its setting `gamma`.
    fn gamma(&mut self, id: &PolicyId) -> Result<f64, RolloutError> {
        if let Postprocessing::Advantages(config) = self.parts.policies.policy_mut(id)?.postprocessing() {
            return Ok(config.gamma);
        }
        let config = self.parts.recipes.get(id).map_or_else(Config::new, |recipe| recipe.config().clone());
        Ok(config.get("gamma").map_err(SetupError::from)?.unwrap_or(PolicyRegistry::A2C_ADVANTAGES.gamma))
    }

    fn acting_spaces(&self, id: &PolicyId) -> Result<EnvSpaces, RolloutError> {
        let recipe = self.parts.recipes.get(id);
        let recipe = recipe.ok_or(RolloutError::NoEstimate(
            "the policy has no spaces: add it with those of its observations and actions",
        ))?;
        Ok(self.parts.workshop.acting_spaces(id, recipe)?)
    }

    fn make_q_model(&self, spaces: &EnvSpaces, gamma: f64) -> Result<Box<dyn QModel>, RolloutError> {
        let make = self.parts.registry.q_model.clone().ok_or(RolloutError::NoEstimate(
            "'dm' and 'dr' need a model of values: take `rollmesh::native`'s registry, give the builder a q_model, or give \
             columns 'v_values' and 'q_values'",
        ))?;
        let (obs_len, num_actions) = Judge::sizes(spaces)?;
        let config = self.parts.config.q_model_config.clone();
        let context = QModelContext { obs_len, num_actions, gamma, seed: self.parts.seed, config };
        Ok(make(&context)?)
    }
}

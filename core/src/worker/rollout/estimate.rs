//! How good the worker's policy would have been in the episodes that others have played.

use super::{OffPolicyEstimate, RolloutWorker};
use crate::{
    batch::{AnyBatch, SampleBatch},
    config::Config,
    env::EnvSpaces,
    estimate::{EpisodeLog, Estimator, LegacyStepEstimator, NEW_ACTION_PROB, Q_VALUES, V_VALUES},
    ids::PolicyId,
    policy::Judge,
    prelude::*,
    worker::{QModelContext, RolloutError, SetupError, config::InputEvaluation},
};

/// The rows of each episode together: several environments write theirs by turns, and long ones in several lines.
fn by_episode(rows: SampleBatch) -> Result<SampleBatch, RolloutError> {
    // Sequences have an order of their own.
    if rows.is_empty() || rows.seq_lens().is_some() || rows.zero_padded() {
        return Ok(rows);
    }
    let names: Vec<&str> = rows.iter().map(|(name, _)| name).collect();
    let mut log = EpisodeLog::new(&names);
    log.add(&rows)?;
    Ok(log.finish()?.rows)
}

impl RolloutWorker {
    /// What every episode of a batch says of the default policy, by all estimators that are wanted. The batch tells with
    /// which probability each action was taken, as `action_prob` or `action_logp`; with which one the policy takes it now is
    /// asked of the policy, and values of a model, which learns from the batch first; unless there are such columns already.
    pub(super) fn estimates_of(&mut self, batch: &AnyBatch) -> Result<Vec<OffPolicyEstimate>, RolloutError> {
        let wanted = self.parts.config.input_evaluation.clone();
        let wanted: Vec<(InputEvaluation, Estimator)> =
            wanted.into_iter().filter_map(|by| Some((by, by.estimator()?))).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let batch = batch
            .single()
            .map_err(|_| RolloutError::NoEstimate("the batch has several policies; estimate them one by one"))?;
        let (policy, mut rows) = (PolicyId::DEFAULT, batch.clone());
        let gamma = self.gamma(&policy)?;
        rows.decompress_if_needed()?;
        rows = by_episode(rows)?;
        Judge::add_logged_probs(&mut rows)?;
        let is_missing = |name: &str| rows.column(name).is_none();
        let probs = is_missing(NEW_ACTION_PROB) && wanted.iter().any(|(_, of)| *of != Estimator::DirectMethod);
        let has_values = !is_missing(V_VALUES) && !is_missing(Q_VALUES);
        let values = !has_values && wanted.iter().any(|(_, of)| of.needs_model());
        if probs || values {
            let spaces = self.acting_spaces(&policy)?;
            if values && self.parts.q_model.is_none() {
                self.make_q_model(&spaces, gamma)?;
            }
            let mut judge = Judge::new(self.parts.policies.policy_mut(&policy)?, &spaces);
            if probs {
                judge.add_probs(&mut rows)?;
            }
            if let (true, Some(model)) = (values, &mut self.parts.q_model) {
                model.fit(&judge.transitions(&rows)?)?;
                judge.add_values(&mut rows, &mut **model)?;
            }
        }
        let legacy = self.parts.config.legacy_step_estimates;
        let mut estimates = Vec::new();
        for (by, estimator) in wanted {
            let samples = if legacy {
                let first = if by == InputEvaluation::Wis { LegacyStepEstimator::wis } else { LegacyStepEstimator::is };
                self.parts.legacy_estimators.entry(by).or_insert_with(first).per_episode(&rows, gamma)?
            } else {
                estimator.per_episode(&rows, gamma)?
            };
            let estimate = |sample| OffPolicyEstimate { policy: policy.clone(), by, sample, legacy };
            estimates.extend(samples.into_iter().map(estimate));
        }
        Ok(estimates)
    }

    fn gamma(&self, id: &PolicyId) -> Result<f64, RolloutError> {
        let config = self.parts.recipes.get(id).map_or_else(Config::new, |recipe| recipe.config().clone());
        Ok(config.get("gamma").map_err(SetupError::from)?.unwrap_or(0.99))
    }

    fn acting_spaces(&self, id: &PolicyId) -> Result<EnvSpaces, RolloutError> {
        let spaces = self.parts.recipes.get(id).and_then(|recipe| recipe.spaces());
        let spaces = spaces.ok_or(RolloutError::NoEstimate("nobody has said what the policy observes and does"))?;
        Ok(self.parts.workshop.acting_spaces(id, &spaces)?)
    }

    fn make_q_model(&mut self, spaces: &EnvSpaces, gamma: f64) -> Result<(), RolloutError> {
        let make = self.parts.registry.q_model.clone().ok_or(RolloutError::NoEstimate(
            "'dm' and 'dr' need a model of values: take `rollmesh::native`'s registry, give the builder a q_model, or give \
             columns 'v_values' and 'q_values'",
        ))?;
        let (obs_len, num_actions) = Judge::sizes(spaces)?;
        let config = self.parts.config.q_model_config.clone();
        let context = QModelContext { obs_len, num_actions, gamma, seed: self.parts.seed, config };
        self.parts.q_model = Some(make(&context)?);
        Ok(())
    }
}

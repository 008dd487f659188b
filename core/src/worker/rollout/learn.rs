//! Learning from batches.

use super::RolloutWorker;
use crate::{
    batch::{AnyBatch, SampleBatch},
    callbacks::Callbacks as _,
    ids::PolicyId,
    policy::{Gradients, LearnInfo},
    prelude::*,
    worker::RolloutError,
};

/// Metric of gradients: the number of steps of their batch.
const BATCH_COUNT: &str = "batch_count";

impl RolloutWorker {
    /// Lets every trained policy learn from its rows in the batch. Compressed columns are decompressed, and callbacks see
    /// each policy's rows first. With [data parallelism](Self::setup_data_parallel) policies learn from the rows of all
    /// ranks.
    ///
    /// # Errors
    /// [`RolloutError::Policy`] for one that fails or does not learn, [`RolloutError::PolicyMap`] for rows of an unknown
    /// policy; policies before it, in the order of ids, have learned.
    pub fn learn_on_batch(&mut self, batch: &AnyBatch) -> Result<BTreeMap<PolicyId, LearnInfo>, RolloutError> {
        self.check_running()?;
        let learned = self.learn(batch);
        self.or_give_up(learned)
    }

    fn learn(&mut self, batch: &AnyBatch) -> Result<BTreeMap<PolicyId, LearnInfo>, RolloutError> {
        let mut infos = BTreeMap::new();
        for (id, mut rows) in self.rows_of_all("learn_on_batch", batch)? {
            let mut info = LearnInfo::new();
            // Only other ranks may have rows of this policy.
            if self.ranks.is_none() || !rows.is_empty() {
                self.parts.callbacks.on_learn_on_batch(&id, &mut rows, &mut info)?;
            }
            self.keep_weights_of(&id)?;
            let policy = self.parts.policies.policy_mut(&id)?;
            let learned = match &mut self.ranks {
                Some(ranks) => policy.learn_on_batch_with(&rows, ranks.group.as_mut()),
                None => policy.learn_on_batch(&rows),
            };
            info.extend(learned.map_err(RolloutError::of_policy(&id))?);
            infos.insert(id, info);
        }
        Ok(infos)
    }

    /// Returns the gradients of every trained policy that has rows in the batch, with its metrics, `batch_count` among them.
    /// Changes nothing. With [data parallelism](Self::setup_data_parallel) they are those of the rows of all ranks.
    ///
    /// # Errors
    /// As [`learn_on_batch`](Self::learn_on_batch).
    #[allow(clippy::type_complexity)]
    pub fn compute_gradients(
        &mut self,
        batch: &AnyBatch,
    ) -> Result<BTreeMap<PolicyId, (Gradients, LearnInfo)>, RolloutError> {
        self.check_running()?;
        let computed = self.gradients_of(batch);
        let mut gradients = self.or_give_up(computed)?;
        let count = batch.env_steps() as f64;
        gradients.values_mut().for_each(|(_, info)| _ = info.insert(BATCH_COUNT.into(), count));
        Ok(gradients)
    }

    #[allow(clippy::type_complexity)]
    fn gradients_of(&mut self, batch: &AnyBatch) -> Result<BTreeMap<PolicyId, (Gradients, LearnInfo)>, RolloutError> {
        let mut gradients = BTreeMap::new();
        for (id, rows) in self.rows_of_all("compute_gradients", batch)? {
            let policy = self.parts.policies.policy_mut(&id)?;
            let computed = match &mut self.ranks {
                Some(ranks) => policy.compute_gradients_with(&rows, ranks.group.as_mut()),
                None => policy.compute_gradients(&rows),
            };
            gradients.insert(id.clone(), computed.map_err(RolloutError::of_policy(&id))?);
        }
        Ok(gradients)
    }

    /// Applies gradients with the optimisers of the trained policies. With [data parallelism](Self::setup_data_parallel) all
    /// ranks must apply the same ones: nothing is exchanged.
    ///
    /// # Errors
    /// As [`learn_on_batch`](Self::learn_on_batch).
    pub fn apply_gradients(
        &mut self,
        gradients: &BTreeMap<PolicyId, Gradients>,
    ) -> Result<BTreeMap<PolicyId, LearnInfo>, RolloutError> {
        self.check_running()?;
        let trained = self.policies_to_train(None);
        let mut infos = BTreeMap::new();
        for (id, own) in gradients {
            let is_known = self.parts.policies.contains(id);
            if is_known && !trained.contains(id) {
                continue;
            }
            if is_known {
                self.keep_weights_of(id)?;
            }
            let policy = self.parts.policies.policy_mut(id)?;
            infos.insert(id.clone(), policy.apply_gradients(own).map_err(RolloutError::of_policy(id))?);
        }
        Ok(infos)
    }

    /// Returns the decompressed rows of the trained policies, in the order of ids.
    pub(super) fn trained_rows(&self, batch: &AnyBatch) -> Result<Vec<(PolicyId, SampleBatch)>, RolloutError> {
        let trained = &self.parts.policies_to_train;
        let rows = batch.as_multi_agent().policy_batches;
        let rows = rows.into_iter().filter(|(id, _)| trained.contains(id, Some(batch)));
        rows.map(|(id, mut rows)| {
            rows.decompress_if_needed()?;
            Ok((id, rows))
        })
        .collect()
    }
}

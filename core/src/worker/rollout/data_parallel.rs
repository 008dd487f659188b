//! Data-parallel learning with other workers.

use super::RolloutWorker;
use crate::{
    batch::{AnyBatch, SampleBatch},
    hash::{Hash128, bytes_hash},
    ids::PolicyId,
    policy::{AllReduce, AllReduceError, PolicyError, PolicyState, Stash as _},
    prelude::*,
    weights::Weights,
    worker::{DataParallelConfig, DataParallelError, JoinRequest, JoiningPolicy, RolloutError},
};

/// Most bytes of a policy's state without its weights, or of a message about rows.
const MESSAGE_BYTES: usize = 64 << 20;

/// The ranks that learn together.
pub(super) struct Ranks {
    pub(super) group: Box<dyn AllReduce>,
    /// The policies that they train, in the order of ids.
    joined: Vec<PolicyId>,
}

impl RolloutWorker {
    /// Joins other workers: from now on every trained policy learns together with the policies of the same ids there.
    /// Returns when all `world_size` workers have called it.
    ///
    /// All policies continue from rank 0's state: weights, optimiser and filter. From then on all ranks must call
    /// [`learn_on_batch`](Self::learn_on_batch), [`compute_gradients`](Self::compute_gradients) and
    /// [`sample_and_learn`](Self::sample_and_learn) in the same order, each with its own rows; a policy learns if any rank
    /// has rows of it. [`apply_gradients`](Self::apply_gradients) stays local: gradients already include all rows, as in
    /// RLlib 2.9.3. Filters stay local, too; sync them with [`filters`](Self::filters) and
    /// [`sync_filters`](Self::sync_filters) if all ranks are to normalise in the same way.
    ///
    /// If a method fails on one rank, the others get [`RolloutError::AllReduce`], and the group is over: learning returns
    /// that error until this method is called again. A worker that is stopped or dropped leaves the group.
    ///
    /// # Errors
    /// [`RolloutError::Policy`] with [`PolicyError::NoDataParallel`] for a trained policy that does not support it, before
    /// anything is joined; [`RolloutError::DataParallel`] if the ranks cannot join; [`RolloutError::AllReduce`] if one
    /// disconnects.
    #[doc(alias = "setup_torch_data_parallel")]
    pub fn setup_data_parallel(&mut self, config: &DataParallelConfig) -> Result<(), RolloutError> {
        self.check_running()?;
        config.check()?;
        let request = self.join_request(config)?;
        // Leave the present group before joining another one.
        self.ranks = None;
        let shell = self.parts.shell.as_mut().ok_or(DataParallelError::NoShell)?;
        let group = shell.data_parallel(&request)?.ok_or(DataParallelError::NoShell)?;
        let joined = request.policies.into_iter().map(|policy| policy.id).collect();
        self.ranks = Some(Ranks { group, joined });
        let begun = self.begin_together(request.max_message);
        self.or_give_up(begun)
    }

    /// Returns the ranks that it learns together with, if any, so that the caller can let them agree on other things. All
    /// ranks must make the same calls.
    pub fn data_parallel(&mut self) -> Option<&mut (dyn AllReduce + 'static)> {
        self.ranks.as_mut().map(|ranks| ranks.group.as_mut())
    }

    fn join_request(&mut self, config: &DataParallelConfig) -> Result<JoinRequest, RolloutError> {
        let (mut policies, mut largest) = (Vec::new(), 0usize);
        for id in self.policies_to_train(None) {
            let entry = self.parts.policies.get_mut(&id)?;
            let settings = entry.policy.data_parallel().ok_or(PolicyError::NoDataParallel);
            let settings = bytes_hash(settings.map_err(RolloutError::of_policy(&id))?.as_bytes());
            largest = largest.max(entry.size_bytes());
            policies.push(JoiningPolicy { layout: layout(entry.policy.weights()), settings, id });
        }
        if policies.is_empty() {
            return Err(DataParallelError::NothingTrained.into());
        }
        // The same on all ranks, unless filters differ in size, for which there is a reserve.
        let max_message = largest.saturating_mul(2).saturating_add(MESSAGE_BYTES);
        Ok(JoinRequest { config: config.clone(), policies, max_message })
    }

    /// Lets all policies continue from rank 0's state.
    fn begin_together(&mut self, limit: usize) -> Result<(), RolloutError> {
        let joined = self.ranks.as_ref().map(|ranks| ranks.joined.clone()).unwrap_or_default();
        joined.iter().try_for_each(|id| self.keep_weights_of(id))?;
        let Some(ranks) = &mut self.ranks else { return Ok(()) };
        for id in &ranks.joined {
            let entry = self.parts.policies.get_mut(id)?;
            let failed = |error| RolloutError::Policy { id: id.clone(), source: PolicyError::Failed(error) };
            let is_first = ranks.group.rank() == 0;
            let own = if is_first { entry.stash().map_err(|error| failed(error.to_string()))? } else { Vec::new() };
            let states = ranks.group.all_gather("first weights", &own, limit)?;
            if !is_first {
                let bytes = states.first().map_or(&[][..], Vec::as_slice);
                let state = PolicyState::decode(bytes).map_err(|error| failed(format!("rank 0's state: {error}")))?;
                super::policies::put_state(id, entry, &state)?;
            }
        }
        // Wait until all ranks have the state.
        ranks.group.all_gather("all have the first weights", &[], 0)?;
        Ok(())
    }

    /// Notifies the other ranks of an error.
    pub(super) fn or_give_up<R>(&mut self, result: Result<R, RolloutError>) -> Result<R, RolloutError> {
        if let (Err(error), Some(ranks)) = (&result, &mut self.ranks) {
            ranks.group.give_up(&error.to_string());
        }
        result
    }

    /// Returns the rows of every policy that any rank has rows of, in the order of ids.
    pub(super) fn rows_of_all(
        &mut self,
        step: &str,
        batch: &AnyBatch,
    ) -> Result<Vec<(PolicyId, SampleBatch)>, RolloutError> {
        let own: BTreeMap<PolicyId, SampleBatch> = self.trained_rows(batch)?.into_iter().collect_ordered();
        self.with_rows_anywhere(step, own)
    }

    /// Does the same for given rows.
    pub(super) fn with_rows_anywhere(
        &mut self,
        step: &str,
        mut own: BTreeMap<PolicyId, SampleBatch>,
    ) -> Result<Vec<(PolicyId, SampleBatch)>, RolloutError> {
        let Some(ranks) = &mut self.ranks else { return Ok(own.into_iter().collect()) };
        own.retain(|_, rows| !rows.is_empty());
        if let Some(stranger) = own.keys().find(|id| !ranks.joined.contains(id)) {
            return Err(RolloutError::NotJoined(stranger.clone()));
        }
        let has_rows: Vec<bool> = ranks.joined.iter().map(|id| own.contains_key(id)).collect();
        let all = ranks.group.gather(step, &has_rows, has_rows.len() + 10)?;
        let anywhere = |i: usize| all.iter().any(|rank| rank.get(i) == Some(&true));
        let ids = ranks.joined.iter().enumerate().filter(|&(i, _)| anywhere(i)).map(|(_, id)| id);
        Ok(ids.map(|id| (id.clone(), own.remove(id).unwrap_or_default())).collect())
    }

    /// Returns the numbers of all ranks, in their order; this rank's alone without a group.
    pub(super) fn numbers_of_all<const N: usize>(
        &mut self,
        step: &str,
        own: [f64; N],
    ) -> Result<Vec<[f64; N]>, RolloutError> {
        let Some(ranks) = &mut self.ranks else { return Ok(vec![own]) };
        let all = ranks.group.gather(step, &own.to_vec(), 8 * N + 10)?;
        let numbers = (0..).zip(all).map(|(rank, numbers)| {
            let wrong = |numbers: Vec<f64>| format!("'{step}' with {} numbers instead of {N}", numbers.len());
            numbers.try_into().map_err(|numbers| AllReduceError::Protocol { rank, reason: wrong(numbers) }.into())
        });
        numbers.collect()
    }
}

/// Hashes names, shapes and type of weights.
fn layout(weights: &Weights) -> Hash128 {
    let mut text = String::new();
    for tensor in weights.tensors() {
        text += &format!("{:?} {:?} f32\n", tensor.name, tensor.shape);
    }
    bytes_hash(text.as_bytes())
}

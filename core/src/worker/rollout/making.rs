//! State of a sample that is made over several calls.

use super::RolloutWorker;
use crate::{episode::GlobalVars, ids::PolicyId, prelude::*, weights::Weights, worker::RolloutError};

/// A sample in progress.
#[derive(Debug, Default)]
pub(super) struct Making {
    /// Consecutive batches without rows.
    pub(super) empty: u32,
    /// Whether the sampler alongside an input has had its turn.
    pub(super) simulated: bool,
    /// Weights of policies whose weights have changed since the sample began: those that it began with, or, while it is
    /// being continued, the new ones.
    acting: BTreeMap<PolicyId, Weights>,
    /// Whether the policies have the weights that the sample began with.
    is_exchanged: bool,
    /// Progress of the run that policies are notified of once it is complete.
    pub(super) updates: Vec<(GlobalVars, Option<Vec<PolicyId>>)>,
}

impl RolloutWorker {
    /// Records the weights before a change, with which a sample in progress continues.
    pub(super) fn keep_acting(&mut self, before: impl IntoIterator<Item = (PolicyId, Weights)>) {
        if let Some(making) = &mut self.making {
            for (id, weights) in before {
                making.acting.entry(id).or_insert(weights);
            }
        }
    }

    /// Drops the recorded weights of a removed policy, since another one may get its id.
    pub(super) fn forget_acting(&mut self, id: &PolicyId) {
        if let Some(making) = &mut self.making {
            making.acting.remove(id);
        }
    }

    /// Records the weights of a policy that is about to learn, with which a sample in progress continues.
    pub(super) fn keep_weights_of(&mut self, id: &PolicyId) -> Result<(), RolloutError> {
        if self.making.is_some() {
            let weights = self.parts.policies.policy_mut(id)?.weights().clone();
            self.keep_acting([(id.clone(), weights)]);
        }
        Ok(())
    }

    /// Swaps in the weights that the sample began with; the second call swaps the new ones back.
    pub(super) fn exchange_weights(&mut self) -> Result<(), RolloutError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        let policies = &mut self.parts.policies;
        let mut exchanged = Ok(());
        making.acting.retain(|id, other| {
            if !policies.contains(id) {
                return false;
            }
            let exchange = match policies.policy_mut(id) {
                Ok(policy) => {
                    let own = policy.weights().clone();
                    policy.set_weights(other).map(|()| *other = own).map_err(RolloutError::of_policy(id))
                }
                Err(error) => Err(error.into()),
            };
            let succeeded = exchange.is_ok();
            exchanged = core::mem::replace(&mut exchanged, Ok(())).and(exchange);
            succeeded
        });
        making.is_exchanged = !making.is_exchanged;
        exchanged
    }

    /// Swaps the new weights back after a panic in the middle of a call.
    pub(super) fn restore_weights(&mut self) -> Result<(), RolloutError> {
        if self.making.as_ref().is_some_and(|making| making.is_exchanged) { self.exchange_weights() } else { Ok(()) }
    }

    /// Ends a sample that is complete or lost, and applies what was deferred until then.
    pub(super) fn end_sample(&mut self) -> Result<(), RolloutError> {
        let updates = self.making.take().map_or_else(Vec::new, |making| making.updates);
        updates.iter().try_for_each(|(vars, policies)| self.set_global_vars(vars, policies.as_deref()))
    }
}

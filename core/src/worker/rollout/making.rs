//! What is remembered of a sample between two calls that make it.

use super::RolloutWorker;
use crate::{episode::GlobalVars, ids::PolicyId, prelude::*, weights::Weights, worker::RolloutError};

/// A sample in the making.
#[derive(Debug, Default)]
pub(super) struct Making {
    /// Batches without rows in a row.
    pub(super) empty: u32,
    /// The sampler beside an input has had its turn.
    pub(super) simulated: bool,
    /// Weights of policies that have others since the sample began: those with which it began, or, while it is being
    /// worked at, the others.
    acting: BTreeMap<PolicyId, Weights>,
    /// What is to be told to policies when it is complete.
    pub(super) news: Vec<(GlobalVars, Option<Vec<PolicyId>>)>,
}

impl RolloutWorker {
    /// Policies have others than these weights from now on, in which a sample that has begun goes on nevertheless.
    pub(super) fn keep_acting(&mut self, before: impl IntoIterator<Item = (PolicyId, Weights)>) {
        if let Some(making) = &mut self.making {
            for (id, weights) in before {
                making.acting.entry(id).or_insert(weights);
            }
        }
    }

    /// A policy is gone, and another one may get its id.
    pub(super) fn forget_acting(&mut self, id: &PolicyId) {
        if let Some(making) = &mut self.making {
            making.acting.remove(id);
        }
    }

    /// A policy is about to learn, which a sample that has begun does not see.
    pub(super) fn keep_weights_of(&mut self, id: &PolicyId) -> Result<(), RolloutError> {
        if self.making.is_some() {
            let weights = self.parts.policies.policy_mut(id)?.weights().clone();
            self.keep_acting([(id.clone(), weights)]);
        }
        Ok(())
    }

    /// Lets policies act with the weights with which the sample began; and, the second time, with their own again.
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
        exchanged
    }

    /// The sample is complete, or lost: what has waited for that counts now.
    pub(super) fn end_sample(&mut self) -> Result<(), RolloutError> {
        let news = self.making.take().map_or_else(Vec::new, |making| making.news);
        news.iter().try_for_each(|(vars, policies)| self.set_global_vars(vars, policies.as_deref()))
    }
}

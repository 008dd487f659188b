//! Setting the weights of all policies of a run.

use super::SampleError;
use crate::{ids::PolicyId, policy::PolicyMap, prelude::*, weights::Weights};

/// Sets the weights of a [run](Weights::of_run) for all policies, or for none of them.
///
/// # Errors
/// [`SampleError::Weights`] for weights of other policies, [`SampleError::Policy`] for weights that do not fit,
/// [`SampleError::PolicyMap`].
pub(crate) fn set_weights(policies: &mut PolicyMap, weights: &Weights) -> Result<(), SampleError> {
    let ids: Vec<PolicyId> = policies.ids().cloned().collect();
    let mut before = Vec::with_capacity(ids.len());
    for (id, weights) in weights.of_policies(&ids)? {
        let policy = policies.policy_mut(&id)?;
        let old = policy.weights().clone();
        if let Err(source) = policy.set_weights(&weights) {
            // All policies act with one version: restore the previous weights of those that have the new ones.
            for (id, old) in before {
                let restored = policies.policy_mut(&id)?.set_weights(&old);
                restored.map_err(|source| SampleError::Policy { id, source })?;
            }
            return Err(SampleError::Policy { id, source });
        }
        before.push((id, old));
    }
    Ok(())
}

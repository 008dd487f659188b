//! Setting the weights of several policies: of all of them, or of none.

use super::SampleError;
use crate::{
    ids::PolicyId,
    policy::{PolicyError, PolicyMap, PolicyMapError},
    prelude::*,
    weights::Weights,
};

/// Sets the weights of a [run](Weights::of_run) for all policies, or for none of them.
///
/// # Errors
/// [`SampleError::Weights`] for weights of other policies, [`SampleError::Policy`] for weights that do not fit,
/// [`SampleError::PolicyMap`].
pub(crate) fn set_weights(policies: &mut PolicyMap, weights: &Weights) -> Result<(), SampleError> {
    let ids: Vec<PolicyId> = policies.ids().cloned().collect();
    let weights = weights.of_policies(&ids)?;
    replace_weights(policies, weights, |id, source| SampleError::Policy { id: id.clone(), source })?;
    Ok(())
}

/// Sets the weights of these policies, or of none of them, and returns the previous ones.
///
/// # Errors
/// A [`PolicyMapError`]; what `failed` makes of a policy's error.
pub(crate) fn replace_weights<E: From<PolicyMapError>>(
    policies: &mut PolicyMap,
    weights: impl IntoIterator<Item = (PolicyId, Weights)>,
    failed: impl Fn(&PolicyId, PolicyError) -> E,
) -> Result<Vec<(PolicyId, Weights)>, E> {
    let mut replace = |id: &PolicyId, weights: &Weights| {
        let policy = policies.policy_mut(id)?;
        let old = policy.weights().clone();
        policy.set_weights(weights).map(|()| old).map_err(|source| failed(id, source))
    };
    let mut before = Vec::new();
    for (id, weights) in weights {
        match replace(&id, &weights) {
            Ok(old) => before.push((id, old)),
            Err(error) => {
                // All policies act with one version: restore those that have the new ones.
                before.iter().try_for_each(|(id, old)| replace(id, old).map(drop))?;
                return Err(error);
            }
        }
    }
    Ok(before)
}

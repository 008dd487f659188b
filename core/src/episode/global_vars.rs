//! A run's progress, as all its workers know it.

use crate::{ids::PolicyId, prelude::*};

/// A run's progress, which its workers are notified of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "global_vars")]
pub struct GlobalVars {
    /// Env steps of the whole run.
    pub timestep: u64,
    /// Gradient updates of each policy.
    pub num_grad_updates_per_policy: BTreeMap<PolicyId, u64>,
}

impl GlobalVars {
    /// Merges a later update. Policies that it does not name keep their counts.
    pub fn update(&mut self, newer: &Self) {
        self.timestep = newer.timestep;
        self.num_grad_updates_per_policy
            .extend(newer.num_grad_updates_per_policy.iter().map(|(id, n)| (id.clone(), *n)));
    }
}

//! What all workers of a run know of its progress.

use crate::{ids::PolicyId, prelude::*};

/// Progress of a run, as its workers hear of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "global_vars")]
pub struct GlobalVars {
    /// Env steps of the whole run.
    pub timestep: u64,
    /// Gradient updates of each policy.
    pub num_grad_updates_per_policy: BTreeMap<PolicyId, u64>,
}

impl GlobalVars {
    /// Takes over later news. Policies that the news do not name keep their counts.
    pub fn update(&mut self, news: &Self) {
        self.timestep = news.timestep;
        self.num_grad_updates_per_policy
            .extend(news.num_grad_updates_per_policy.iter().map(|(id, n)| (id.clone(), *n)));
    }
}

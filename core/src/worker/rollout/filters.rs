//! Observation filters, and their exchange with other workers.

use super::RolloutWorker;
use crate::{
    filter::Filter,
    ids::PolicyId,
    policy::{PolicyEntry, PolicyMapError},
    prelude::*,
    worker::RolloutError,
};

impl RolloutWorker {
    /// Returns copies of the filters by policy. With `flush_after` the observations since the last exchange are removed from
    /// the worker's filters afterwards.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] for a policy that cannot be restored from the store.
    #[doc(alias = "get_filters")]
    pub fn filters(&mut self, flush_after: bool) -> Result<BTreeMap<PolicyId, Filter>, RolloutError> {
        let mut filters = BTreeMap::new();
        let policies = &mut self.parts.policies;
        if flush_after {
            policies.for_each_mut(|id, entry: &mut PolicyEntry| {
                filters.insert(id.clone(), entry.filter.flush());
                Ok::<_, PolicyMapError>(())
            })?;
        } else {
            policies.for_each(|id, entry: &PolicyEntry| {
                filters.insert(id.clone(), entry.filter.clone());
                Ok::<_, PolicyMapError>(())
            })?;
        }
        Ok(filters)
    }

    /// Sets the filters' shared statistics. Observations since the last exchange are kept: they are counted on top, and are
    /// part of the next exchange. Filters of unknown policies are ignored.
    ///
    /// # Errors
    /// [`RolloutError::MissingFilter`], [`RolloutError::Filter`] for one of another kind or shape. Nothing has changed then.
    pub fn sync_filters(&mut self, filters: &BTreeMap<PolicyId, Filter>) -> Result<(), RolloutError> {
        self.check_running()?;
        let mut rebased = BTreeMap::new();
        self.parts.policies.for_each(|id, entry: &PolicyEntry| {
            let new = filters.get(id).ok_or_else(|| RolloutError::MissingFilter(id.clone()))?;
            let mut filter = new.clone();
            filter.reset_buffer();
            let applied = filter.apply_changes(&entry.filter, true);
            applied.map_err(|source| RolloutError::Filter { id: id.clone(), source })?;
            rebased.insert(id.clone(), filter);
            Ok::<_, RolloutError>(())
        })?;
        self.parts.policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            if let Some(filter) = rebased.remove(id) {
                entry.filter = filter;
            }
            Ok::<_, RolloutError>(())
        })
    }
}

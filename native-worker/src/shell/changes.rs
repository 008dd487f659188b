//! Changes that have not been sent to the sampling thread yet: the worker's policies, filters and functions, if they differ
//! from those it got last.

use std::{collections::BTreeMap, sync::Arc};

use rollmesh_core::{
    callbacks::{ObservationFn, PolicyMappingFn},
    filter::Filter,
    hash::{Hash128, bytes_hash},
    ids::PolicyId,
    policy::{PolicyEntry, PolicyMaker, PolicyMapError},
    sampler::{SampleError, SamplerHost},
    weights::Weights,
    worker::AsyncSampling,
};

/// An update for the thread.
#[derive(Default)]
pub(super) struct ThreadUpdate {
    /// Number of the change, from 1.
    pub(super) number: u64,
    /// Number of items taken: their observations are in the filters.
    pub(super) taken: u64,
    pub(super) removed: Vec<PolicyId>,
    /// New and replaced policies.
    pub(super) added: Vec<(PolicyId, PolicyEntry)>,
    /// Weights and extra state.
    pub(super) states: Vec<(PolicyId, Weights, Vec<u8>)>,
    pub(super) filters: Vec<(PolicyId, Filter)>,
    pub(super) mapping: Option<PolicyMappingFn>,
    pub(super) observation_fn: Option<Option<ObservationFn>>,
}

impl ThreadUpdate {
    fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.added.is_empty()
            && self.states.is_empty()
            && self.filters.is_empty()
            && self.mapping.is_none()
            && self.observation_fn.is_none()
    }
}

/// The parts that the thread has.
pub(super) struct Known {
    policies: BTreeMap<PolicyId, KnownPolicy>,
    /// [`PolicyMap::changes`](rollmesh_core::policy::PolicyMap::changes) at the last comparison; `None` to compare again.
    looked: Option<u64>,
    mapping: PolicyMappingFn,
    observation_fn: Option<ObservationFn>,
    /// Number of the latest change.
    number: u64,
}

struct KnownPolicy {
    /// Its factory: a different one means that the policy was replaced.
    maker: Option<PolicyMaker>,
    weights: Weights,
    /// Hash of the extra state.
    extra: Hash128,
    /// The worker's filter, including everything that was taken.
    filter: Filter,
    /// Number of the change that added it.
    since: u64,
}

impl KnownPolicy {
    fn of(entry: &PolicyEntry, since: u64) -> Self {
        Self {
            maker: entry.maker().cloned(),
            weights: entry.policy.weights().clone(),
            extra: bytes_hash(&entry.policy.extra_state()),
            filter: entry.filter.clone(),
            since,
        }
    }

    fn is(&self, entry: &PolicyEntry) -> bool {
        matches!((&self.maker, entry.maker()), (Some(known), Some(maker)) if Arc::ptr_eq(known, maker))
    }
}

impl Known {
    /// Returns the parts that a thread gets at first.
    pub(super) fn of(sampling: &mut AsyncSampling) -> Result<Self, PolicyMapError> {
        let mut policies = BTreeMap::new();
        sampling.policies.for_each(|id, entry: &PolicyEntry| {
            policies.insert(id.clone(), KnownPolicy::of(entry, 0));
            Ok::<_, PolicyMapError>(())
        })?;
        let (mapping, observation_fn) = (sampling.mapping.clone(), sampling.observation_fn.clone());
        Ok(Self { policies, looked: None, mapping, observation_fn, number: 0 })
    }

    /// Compares with the worker's parts. Returns `None` if nothing has changed.
    ///
    /// # Errors
    /// [`SampleError::PolicyMap`] for a new policy that cannot be made a second time, or a stashed one that cannot be
    /// restored. The next call reports it again.
    pub(super) fn changes(
        &mut self,
        host: &mut SamplerHost<'_>,
        taken: u64,
    ) -> Result<Option<ThreadUpdate>, SampleError> {
        let mut change = ThreadUpdate { number: self.number + 1, taken, ..ThreadUpdate::default() };
        if self.looked != Some(host.policies.changes()) {
            self.look(host, &mut change)?;
        }
        if !Arc::ptr_eq(&self.mapping, host.mapping) {
            self.mapping = host.mapping.clone();
            change.mapping = Some(self.mapping.clone());
        }
        let same = match (&self.observation_fn, host.observation_fn) {
            (Some(known), Some(now)) => Arc::ptr_eq(known, now),
            (known, now) => known.is_none() && now.is_none(),
        };
        if !same {
            self.observation_fn = host.observation_fn.cloned();
            change.observation_fn = Some(self.observation_fn.clone());
        }
        if change.is_empty() {
            return Ok(None);
        }
        self.number = change.number;
        Ok(Some(change))
    }

    fn look(&mut self, host: &mut SamplerHost<'_>, change: &mut ThreadUpdate) -> Result<(), SampleError> {
        let mut changed = Vec::new();
        host.policies.for_each(|id, entry: &PolicyEntry| {
            let Some(known) = self.policies.get(id).filter(|known| known.is(entry)) else {
                let twin = entry.twin().map_err(|source| PolicyMapError::Stash { id: id.clone(), source })?;
                change.added.push((id.clone(), twin));
                changed.push((id.clone(), KnownPolicy::of(entry, change.number)));
                return Ok::<_, SampleError>(());
            };
            let now = KnownPolicy::of(entry, known.since);
            let moved = now.weights != known.weights || now.extra != known.extra;
            if moved {
                change.states.push((id.clone(), now.weights.clone(), entry.policy.extra_state()));
            }
            let filtered = !does_the_same(&now.filter, &known.filter);
            if filtered {
                change.filters.push((id.clone(), now.filter.clone()));
            }
            if moved || filtered {
                changed.push((id.clone(), now));
            }
            Ok(())
        })?;
        change.removed = self.policies.keys().filter(|id| !host.policies.contains(id)).cloned().collect();
        for id in &change.removed {
            self.policies.remove(id);
        }
        self.policies.extend(changed);
        self.looked = Some(host.policies.changes());
        Ok(())
    }

    /// Adds the observations of the thread's filters, at the state of `change`, to the worker's filters.
    pub(super) fn absorb(
        &mut self,
        host: &mut SamplerHost<'_>,
        seen: &[(PolicyId, Filter)],
        change: u64,
    ) -> Result<(), SampleError> {
        let up_to_date = self.looked == Some(host.policies.changes());
        for (id, filter) in seen {
            // Observations of policies that were removed or replaced meanwhile do not count.
            let Some(known) = self.policies.get_mut(id).filter(|known| known.since <= change) else { continue };
            let entry = host.policies.get_mut(id)?;
            entry.filter.absorb(filter)?;
            known.filter = entry.filter.clone();
        }
        if up_to_date {
            self.looked = Some(host.policies.changes());
        }
        Ok(())
    }

    /// Records that the thread has dropped the batches that it had sampled ahead, whose observations its filters have
    /// counted.
    pub(super) fn forget_filters(&mut self) {
        self.looked = None;
        self.policies.values_mut().for_each(|known| known.filter = Filter::NoFilter);
    }
}

/// Returns whether both filters give the same rows. Buffers do not matter.
fn does_the_same(one: &Filter, other: &Filter) -> bool {
    match (one.mean_std(), other.mean_std()) {
        (Some(one), Some(other)) => {
            let settings = |filter: &rollmesh_core::filter::MeanStdFilter| (filter.config(), filter.is_training());
            one.running() == other.running() && settings(one) == settings(other)
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}

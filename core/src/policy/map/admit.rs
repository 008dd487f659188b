//! Eviction of policies, and restoring of stashed ones.

use super::{PolicyId, PolicyMap, PolicyMapError, PolicyMapLimits, PolicyPlace, Stashing};
use crate::{
    policy::{PolicyStore as _, Stash, StashError, Stashed, StoreError},
    prelude::*,
};

impl<T: Stash> PolicyMap<T> {
    /// Restores a stashed policy of that many bytes. Its bytes leave the store before further policies are evicted, so
    /// that there is room for those.
    pub(super) fn admit(&mut self, id: &PolicyId, bytes: usize) -> Result<(), PolicyMapError> {
        let stored = self.read(id)?;
        let stashed = Stashed::decode_of(id, &stored).map_err(|source| failed(id, source))?;
        // An object changes places only after its policy has been stashed. If there is no room for that yet, a new
        // object does it.
        let swappable = self.stashing.as_ref().is_some_and(|stashing| stashing.swappable);
        let spare = if swappable { self.evict_for(bytes).unwrap_or_default() } else { None };
        let item = self.rebuild(&stashed, spare)?;
        // If the store cannot forget the bytes now it does so later: the policy is here.
        let _ = self.forget(id);
        self.place(id.clone(), item);
        self.settle()
    }

    /// Rebuilds a stashed policy: in the object of an evicted one if that is allowed, else in a new object.
    pub(super) fn rebuild(&mut self, stashed: &Stashed<'_>, spare: Option<T>) -> Result<T, PolicyMapError> {
        let stashing = self.stashing.as_ref().ok_or_else(|| StoreError::Missing(stashed.id.clone()))?;
        let fits = |item: &T| stashing.swappable && !item.spec().is_empty() && item.spec() == stashed.spec;
        let error = |source| failed(&stashed.id, source);
        let mut item = match spare.filter(fits) {
            Some(item) => item,
            None => {
                self.constructions += 1;
                (stashing.factory)(&stashed.id, &stashed.spec).map_err(error)?
            }
        };
        item.restore(&stashed.state).map_err(error)?;
        Ok(item)
    }

    /// Stashes policies until another one of that many bytes fits; returns the object of the last one.
    fn evict_for(&mut self, bytes: usize) -> Result<Option<T>, PolicyMapError> {
        let Some(PolicyMapLimits { count, bytes: limit }) = self.limits() else { return Ok(None) };
        let mut resident_bytes = self.resident_bytes(limit);
        let mut spare = None;
        while !self.order.is_empty() && (self.order.len() >= count || resident_bytes.saturating_add(bytes) > limit) {
            let Some(evicted) = self.evict(None)? else { break };
            resident_bytes = resident_bytes.saturating_sub(evicted.size_bytes());
            spare = Some(evicted);
        }
        Ok(spare)
    }

    /// Stashes policies until the resident ones are within the limits, or only the last one is left.
    pub(super) fn settle(&mut self) -> Result<(), PolicyMapError> {
        let Some(PolicyMapLimits { count, bytes: limit }) = self.limits() else { return Ok(()) };
        let mut resident_bytes = self.resident_bytes(limit);
        let latest = self.order.last_key_value().map(|(&used, _)| used);
        while self.order.len() > count || resident_bytes > limit {
            let Some(evicted) = self.evict(latest)? else { break };
            resident_bytes = resident_bytes.saturating_sub(evicted.size_bytes());
        }
        Ok(())
    }

    /// Stashes the least recently used policy, but not the one `kept`, nor those that [may not leave](Stash::may_leave):
    /// there may be none then. On an error it stays resident.
    fn evict(&mut self, kept: Option<u64>) -> Result<Option<T>, PolicyMapError> {
        let may_leave = |id: &PolicyId| match self.places.get(id) {
            Some(PolicyPlace::Resident { item, .. }) => item.may_leave(),
            _ => false,
        };
        let mut others = self.order.iter().filter(|(used, _)| Some(**used) != kept);
        let Some((&used, id)) = others.find(|(_, id)| may_leave(id)) else { return Ok(None) };
        let mut bytes = 0;
        if let (Some(PolicyPlace::Resident { item, .. }), Some(stashing)) = (self.places.get(id), &mut self.stashing) {
            stashing.put(id, item)?;
            bytes = item.size_bytes();
        }
        let place = self.order.remove(&used).and_then(|id| self.places.insert(id, PolicyPlace::Stashed { bytes }));
        Ok(match place {
            Some(PolicyPlace::Resident { item, .. }) => Some(item),
            _ => None,
        })
    }

    /// Makes a policy resident, and the most recently used one.
    pub(super) fn place(&mut self, id: PolicyId, item: T) {
        self.uses += 1;
        self.order.insert(self.uses, id.clone());
        self.places.insert(id, PolicyPlace::Resident { item, used: self.uses });
    }

    /// Makes a resident the most recently used one.
    pub(super) fn touch(&mut self, used: u64) {
        if used == self.uses {
            return;
        }
        let Some(id) = self.order.remove(&used) else { return };
        self.uses += 1;
        if let Some(PolicyPlace::Resident { used, .. }) = self.places.get_mut(&id) {
            *used = self.uses;
        }
        self.order.insert(self.uses, id);
    }

    pub(super) fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, PolicyMapError> {
        match &mut self.stashing {
            Some(stashing) => Ok(stashing.store.read(id)?),
            None => Err(StoreError::Missing(id.clone()).into()),
        }
    }

    /// Forgets the bytes of a policy, if not now then later.
    pub(super) fn forget(&mut self, id: &PolicyId) -> Result<(), PolicyMapError> {
        self.stashing.as_mut().map_or(Ok(false), |stashing| stashing.store.remove(id))?;
        Ok(())
    }

    /// Forgets the bytes of a resident, if they should have been forgotten before.
    pub(super) fn tidy(&mut self, id: &PolicyId) -> Result<(), PolicyMapError> {
        self.stashing.as_mut().map_or(Ok(false), |stashing| stashing.store.tidy(id))?;
        Ok(())
    }

    fn limits(&self) -> Option<PolicyMapLimits> {
        self.stashing.as_ref().map(|stashing| stashing.limits)
    }

    /// Returns the bytes of all residents. Sizes change in use, so they are computed when they matter.
    fn resident_bytes(&self, limit: usize) -> usize {
        let sizes = self.places.values().map(|place| match place {
            PolicyPlace::Resident { item, .. } => item.size_bytes(),
            PolicyPlace::Stashed { .. } => 0,
        });
        if limit == usize::MAX { 0 } else { sizes.fold(0, usize::saturating_add) }
    }
}

impl<T: Stash> Stashing<T> {
    pub(super) fn put(&mut self, id: &PolicyId, item: &T) -> Result<(), PolicyMapError> {
        let bytes = Stashed::of(id, item).and_then(|stashed| stashed.encode()).map_err(|source| failed(id, source))?;
        Ok(self.store.put(id, bytes)?)
    }
}

pub(super) fn failed(id: &PolicyId, source: StashError) -> PolicyMapError {
    PolicyMapError::Stash { id: id.clone(), source }
}

//! Moves to and from the store, without the table's lock.

use std::{mem, sync::MutexGuard, thread};

use rollmesh_core::policy::{PolicyId, PolicyMapError, PolicyStore as _, Stash, StashError, Stashed, UnknownPolicy};

use super::{
    PolicyGuard, SharedPolicyMap,
    table::{Place, Table},
};

/// A moving policy. Dropping it gives the policy a place in any case, also after an error or a panic.
pub(super) struct Move<'a, T> {
    pub(super) map: &'a SharedPolicyMap<T>,
    pub(super) id: PolicyId,
    pub(super) then: Then<T>,
}

pub(super) enum Then<T> {
    Put(Place<T>),
    Remove,
    /// It has a place already.
    Nothing,
}

impl<T> Drop for Move<'_, T> {
    fn drop(&mut self) {
        // The replaced place was only a marker without a policy.
        match mem::replace(&mut self.then, Then::Nothing) {
            Then::Put(place) => drop(self.map.table().put(&self.id, Some(place))),
            Then::Remove => drop(self.map.table().put(&self.id, None)),
            Then::Nothing => {}
        }
        self.map.arrived.notify_all();
    }
}

impl<T: Stash> SharedPolicyMap<T> {
    /// Lends a policy that is idle or stashed.
    pub(super) fn lend<'a>(
        &'a self,
        mut table: MutexGuard<'a, Table<T>>,
        id: &PolicyId,
    ) -> Result<PolicyGuard<'a, T>, PolicyMapError> {
        if let Some((item, used, _)) = table.take_idle(id) {
            table.hold(thread::current().id(), id);
            return Ok(PolicyGuard::new(self, id.clone(), used, item));
        }
        if table.place(id).is_none() {
            return Err(UnknownPolicy::among(id, table.ids()).into());
        }
        table.put(id, Some(Place::Coming));
        drop(table);
        let mut arrival = Move { map: self, id: id.clone(), then: Then::Put(Place::Stashed) };
        let (item, bytes) = self.load(id)?;
        // If the store cannot remove it now, it does so later: the policy is resident.
        let _ = self.store().remove(id);
        let mut table = self.table();
        let used = table.next_use();
        table.put(id, Some(Place::Lent { used, bytes }));
        table.hold(thread::current().id(), id);
        let leaving = self.leaving(&mut table);
        drop(table);
        arrival.then = Then::Nothing;
        // If no policy can be evicted, this guard returns the policy: resident, beyond the limits.
        let guard = PolicyGuard::new(self, id.clone(), used, item);
        Self::put_aside(leaving)?;
        Ok(guard)
    }

    /// Restores a policy from the store, where its bytes stay. Returns the new object and its size in bytes.
    pub(super) fn load(&self, id: &PolicyId) -> Result<(T, usize), PolicyMapError> {
        let bytes = self.store().read(id)?;
        let stashed = Stashed::decode_of(id, &bytes).map_err(|source| failed(id, source))?;
        let mut item = (self.factory)(id, &stashed.spec).map_err(|source| failed(id, source))?;
        item.restore(&stashed.state).map_err(|source| failed(id, source))?;
        let bytes = item.size_bytes();
        Ok((item, bytes))
    }

    /// Returns the policies to evict. They stay resident unless they are [stashed](Self::put_aside).
    pub(super) fn leaving(&self, table: &mut Table<T>) -> Vec<Move<'_, T>> {
        let surplus = table.take_surplus(self.limits).into_iter();
        surplus
            .map(|idle| {
                let back = Place::Idle { item: idle.item, used: idle.used, bytes: idle.bytes };
                Move { map: self, id: idle.id, then: Then::Put(back) }
            })
            .collect()
    }

    /// Stashes policies. The first one that fails stays resident, and so do those after it.
    pub(super) fn put_aside(leaving: Vec<Move<'_, T>>) -> Result<(), PolicyMapError> {
        for mut leaver in leaving {
            if let Then::Put(Place::Idle { item, .. }) = &leaver.then {
                leaver.map.stash(&leaver.id, item)?;
                leaver.then = Then::Put(Place::Stashed);
            }
        }
        Ok(())
    }

    pub(super) fn stash(&self, id: &PolicyId, item: &T) -> Result<(), PolicyMapError> {
        let bytes = Stashed::of(id, item).and_then(|stashed| stashed.encode());
        let bytes = bytes.map_err(|source| failed(id, source))?;
        Ok(self.store().put(id, bytes)?)
    }
}

fn failed(id: &PolicyId, source: StashError) -> PolicyMapError {
    PolicyMapError::Stash { id: id.clone(), source }
}

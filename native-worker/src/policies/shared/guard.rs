//! A policy that a thread has for itself.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::MutexGuard,
    thread,
};

use rollmesh_core::policy::{PolicyId, Stash};

use super::{SharedPolicyMap, table::Place};

/// A policy that is checked out. Dropping it gives the policy back, as the most recently used one.
///
/// It stays with its thread, whose waiting depends on what it holds.
#[must_use = "the policy goes back when this is dropped"]
pub struct PolicyGuard<'a, T: Stash> {
    map: &'a SharedPolicyMap<T>,
    id: PolicyId,
    /// The number of this use, by which the table knows whether the policy was replaced meanwhile.
    used: u64,
    /// Only `drop` takes it.
    item: Option<T>,
    not_send: PhantomData<MutexGuard<'a, ()>>,
}

impl<'a, T: Stash> PolicyGuard<'a, T> {
    pub(super) fn new(map: &'a SharedPolicyMap<T>, id: PolicyId, used: u64, item: T) -> Self {
        Self { map, id, used, item: Some(item), not_send: PhantomData }
    }

    /// Whose policy this is.
    #[must_use]
    pub fn id(&self) -> &PolicyId {
        &self.id
    }
}

impl<T: Stash> Deref for PolicyGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().expect("a guard has its policy until it is dropped")
    }
}

impl<T: Stash> DerefMut for PolicyGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().expect("a guard has its policy until it is dropped")
    }
}

impl<T: Stash> Drop for PolicyGuard<'_, T> {
    fn drop(&mut self) {
        let Some(item) = self.item.take() else { return };
        let bytes = item.size_bytes();
        let mut table = self.map.table();
        table.release(thread::current().id(), &self.id);
        let replaced = match table.place(&self.id) {
            Some(Place::Lent { used, .. }) if *used == self.used => {
                let place = Place::Idle { item, used: table.next_use(), bytes };
                drop(table.put(&self.id, Some(place)));
                None
            }
            _ => Some(item),
        };
        drop(table);
        drop(replaced);
        self.map.arrived.notify_all();
    }
}

impl<T: Stash> fmt::Debug for PolicyGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyGuard").field(&self.id).finish()
    }
}

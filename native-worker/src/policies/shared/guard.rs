//! The guard of a policy that a thread has checked out.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::MutexGuard,
    thread,
};

use rollmesh_core::policy::{PolicyId, Stash};

use super::{SharedPolicyMap, table::Place};

/// A policy that is checked out. Dropping the guard returns the policy as the most recently used one; if more policies are
/// resident than the limits allow, idle ones are evicted, as far as the store accepts them.
///
/// It cannot be sent to another thread, since the order of locks is tracked per thread.
#[must_use = "the policy goes back when this is dropped"]
pub struct PolicyGuard<'a, T: Stash> {
    map: &'a SharedPolicyMap<T>,
    id: PolicyId,
    /// Number of this use, which shows whether the policy was replaced meanwhile.
    used: u64,
    /// Number of the previous use, if this one does not count.
    last: Option<u64>,
    /// Only `drop` takes it.
    item: Option<T>,
    not_send: PhantomData<MutexGuard<'a, ()>>,
}

impl<'a, T: Stash> PolicyGuard<'a, T> {
    pub(super) fn new(map: &'a SharedPolicyMap<T>, id: PolicyId, used: u64, item: T) -> Self {
        Self { map, id, used, last: None, item: Some(item), not_send: PhantomData }
    }

    /// Makes the guard return the policy as if it had not been used.
    pub(super) fn uncounted(mut self, last: u64) -> Self {
        self.last = Some(last);
        self
    }

    /// Returns the policy's id.
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
        // If computing its size panics, the policy is returned nevertheless, with its previous size.
        let size = catch_unwind(AssertUnwindSafe(|| item.size_bytes())).ok();
        let mut table = self.map.table();
        table.release(thread::current().id(), &self.id);
        let replaced = match table.place(&self.id) {
            Some(&Place::Lent { used, bytes }) if used == self.used => {
                let used = self.last.unwrap_or_else(|| table.next_use());
                let place = Place::Idle { item, used, bytes: size.unwrap_or(bytes) };
                drop(table.put(&self.id, Some(place)));
                None
            }
            _ => Some(item),
        };
        // A visit evicts nothing. A second panic would abort the program, and evicting a policy could panic.
        let stay = self.last.is_some() || thread::panicking();
        let leaving = if stay { Vec::new() } else { self.map.leaving(&mut table) };
        drop(table);
        drop(replaced);
        self.map.arrived.notify_all();
        // Policies that cannot be evicted stay resident until the next insertion or return.
        let _ = SharedPolicyMap::put_aside(leaving);
    }
}

impl<T: Stash> fmt::Debug for PolicyGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyGuard").field(&self.id).finish()
    }
}

//! A policy map for several threads.

mod guard;
mod moves;
mod table;
mod visit;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

pub use guard::PolicyGuard;
use moves::{Move, Then};
use rollmesh_core::policy::{
    PolicyId, PolicyMapError, PolicyMapLimits, PolicyStore, Stash, StashError, TidyStore, UnknownPolicy,
};
use table::{Place, Table};

/// Why a policy could not be checked out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SharedPolicyMapError {
    /// The policy is unknown, cannot be restored, or there is no room for it.
    #[error(transparent)]
    Map(#[from] PolicyMapError),
    /// This thread holds a policy with a later id. Threads that wait for each other's policies in different orders would
    /// deadlock.
    #[error(
        "policy '{wanted}' is asked for while '{held}' is held: check out in order of the ids, or use try_checkout"
    )]
    OutOfOrder {
        /// The policy that the thread holds.
        held: PolicyId,
        /// The requested policy.
        wanted: PolicyId,
    },
}

/// A [`PolicyMap`](rollmesh_core::policy::PolicyMap) for concurrent use by several threads.
///
/// A thread checks a policy out and has exclusive access until it drops the guard. Other threads that want the same policy
/// wait; for other policies they do not. A checked-out policy is never evicted: if too many are checked out, more policies
/// are resident than the limits allow for a while. Limits are enforced when a policy is added or returned, by evicting idle
/// ones. No policy is lost if the store fails or a thread panics.
///
/// # Locks
/// To avoid deadlocks, a thread waits for three kinds of resources always in this order:
///
/// 1. policies that other threads hold, in order of their ids: [`checkout`](Self::checkout) refuses any other order;
/// 2. the store, which one thread at a time reads or writes;
/// 3. the table of places, which is never locked while waiting for anything else, nor while policies are made, encoded or
///    dropped.
///
/// A policy that is moving to or from the store is waited for like a checked-out one. The thread that moves it waits for the
/// store and the table only.
pub struct SharedPolicyMap<T> {
    table: Mutex<Table<T>>,
    /// Notified when a policy was returned or has finished moving.
    arrived: Condvar,
    store: Mutex<Store>,
    factory: Box<Factory<T>>,
    limits: PolicyMapLimits,
}

type Store = TidyStore<Box<dyn PolicyStore + Send>>;
type Factory<T> = dyn Fn(&PolicyId, &str) -> Result<T, StashError> + Send + Sync;

impl<T> SharedPolicyMap<T> {
    /// Creates a map that stashes idle policies beyond the limits in `store`, and restores them with `factory`, see
    /// [`PolicyMap::bounded`](rollmesh_core::policy::PolicyMap::bounded). The factory must not use the map.
    #[must_use]
    pub fn new(
        limits: PolicyMapLimits,
        store: impl PolicyStore + 'static,
        factory: impl Fn(&PolicyId, &str) -> Result<T, StashError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            table: Mutex::default(),
            arrived: Condvar::new(),
            store: Mutex::new(TidyStore::new(Box::new(store))),
            factory: Box::new(factory),
            limits,
        }
    }

    /// Returns the ids of all policies, resident or stashed, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<PolicyId> {
        self.table().ids().cloned().collect()
    }

    /// Returns the ids of the policies that are not in the store, in order.
    #[must_use]
    pub fn resident(&self) -> Vec<PolicyId> {
        self.table().resident().cloned().collect()
    }

    /// Returns the ids of the policies in the store, in order.
    #[must_use]
    pub fn stashed(&self) -> Vec<PolicyId> {
        self.table().stashed().cloned().collect()
    }

    /// Returns the number of policies, resident or stashed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().ids().len()
    }

    /// True if the map has no policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if there is such a policy, resident or stashed.
    #[must_use]
    pub fn contains(&self, id: &PolicyId) -> bool {
        self.table().place(id).is_some()
    }

    /// Locks the table, which is consistent between any two calls of its methods, so also after a panic.
    fn table(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, table: MutexGuard<'a, Table<T>>) -> MutexGuard<'a, Table<T>> {
        self.arrived.wait(table).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this policy is not moving, and returns the table.
    fn settled(&self, id: &PolicyId) -> MutexGuard<'_, Table<T>> {
        let mut table = self.table();
        while matches!(table.place(id), Some(Place::Coming | Place::Leaving)) {
            table = self.wait(table);
        }
        table
    }
}

impl<T: Stash> SharedPolicyMap<T> {
    /// Adds a policy or replaces the one of this id. A thread that has checked out the old one keeps it until it drops the
    /// guard.
    ///
    /// # Errors
    /// [`PolicyMapError`] if there is no room and the store fails to accept policies, or to remove the old one. The new
    /// policy is in the map nevertheless.
    #[doc(alias = "__setitem__")]
    pub fn insert(&self, id: PolicyId, item: T) -> Result<(), PolicyMapError> {
        let bytes = item.size_bytes();
        let mut table = self.settled(&id);
        let new = Place::Idle { item, used: table.next_use(), bytes };
        let (replaced, unstashed) = if matches!(table.place(&id), Some(Place::Stashed)) {
            table.put(&id, Some(Place::Coming));
            drop(table);
            let arrival = Move { map: self, id: id.clone(), then: Then::Put(new) };
            let unstashed = self.store().remove(&id);
            drop(arrival);
            table = self.table();
            (None, unstashed)
        } else {
            (table.put(&id, Some(new)), Ok(true))
        };
        let leaving = self.leaving(&mut table);
        drop(table);
        drop(replaced);
        self.arrived.notify_all();
        let left = Self::put_aside(leaving);
        unstashed?;
        left
    }

    /// Checks a policy out for this thread; waits while another thread has it.
    ///
    /// # Errors
    /// [`SharedPolicyMapError::OutOfOrder`] if this thread holds this policy or one with a later id;
    /// [`SharedPolicyMapError::Map`] if the policy is unknown, cannot be restored, or there is no room.
    #[doc(alias = "__getitem__")]
    pub fn checkout(&self, id: &PolicyId) -> Result<PolicyGuard<'_, T>, SharedPolicyMapError> {
        let mut table = self.table();
        if let Some(held) = table.last_held(thread::current().id()).filter(|held| *held >= id) {
            return Err(SharedPolicyMapError::OutOfOrder { held: held.clone(), wanted: id.clone() });
        }
        while matches!(table.place(id), Some(Place::Lent { .. } | Place::Coming | Place::Leaving)) {
            table = self.wait(table);
        }
        Ok(self.lend(table, id)?)
    }

    /// Checks a policy out if no other thread has it. Cannot deadlock, in whatever order it is called.
    ///
    /// # Errors
    /// [`PolicyMapError`] if the policy is unknown, cannot be restored, or there is no room.
    pub fn try_checkout(&self, id: &PolicyId) -> Result<Option<PolicyGuard<'_, T>>, PolicyMapError> {
        let table = self.settled(id);
        match table.place(id) {
            Some(Place::Lent { .. }) => Ok(None),
            _ => self.lend(table, id).map(Some),
        }
    }

    /// Removes a policy from the map and the store. A thread that has checked it out keeps it until it drops the guard.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`]; [`PolicyMapError::Store`] if it was removed from the map but not from the store, which
    /// is retried before the next eviction.
    #[doc(alias = "__delitem__")]
    pub fn remove(&self, id: &PolicyId) -> Result<(), PolicyMapError> {
        let mut table = self.settled(id);
        match table.place(id) {
            None => return Err(UnknownPolicy::among(id, table.ids()).into()),
            Some(Place::Stashed) => {
                table.put(id, Some(Place::Leaving));
                drop(table);
                let _leaving = Move { map: self, id: id.clone(), then: Then::Remove };
                self.store().remove(id)?;
            }
            Some(_) => {
                let removed = table.put(id, None);
                drop(table);
                drop(removed);
                self.arrived.notify_all();
                // Bytes whose removal failed before; by now another policy with this id may be stashed.
                self.store().tidy(id)?;
            }
        }
        Ok(())
    }
}

impl<T> fmt::Debug for SharedPolicyMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ids, resident) = (self.ids(), self.resident());
        f.debug_struct("SharedPolicyMap").field("ids", &ids).field("resident", &resident).finish_non_exhaustive()
    }
}

//! Policies for several threads.

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
    /// The policy is unknown, cannot come back, or nobody can make room.
    #[error(transparent)]
    Map(#[from] PolicyMapError),
    /// This thread holds a policy that comes later. Threads that wait for each other's policies in different orders
    /// would wait forever.
    #[error(
        "policy '{wanted}' is asked for while '{held}' is held: check out in order of the ids, or use try_checkout"
    )]
    OutOfOrder {
        /// The policy that the thread holds.
        held: PolicyId,
        /// The policy that it asks for.
        wanted: PolicyId,
    },
}

/// A [`PolicyMap`](rollmesh_core::policy::PolicyMap) that several threads use at once.
///
/// A thread checks a policy out and has it for itself until it drops the guard. Who wants the same policy waits; who
/// wants another one does not. A policy that is checked out is never put aside: if too many are, more than the limits
/// allow are resident for a while. Limits are kept when a policy comes in or is given back, by putting idle ones aside.
/// No policy is lost if the store fails, nor if a thread panics.
///
/// # Locks
/// A thread waits for three kinds of things, always in this order, so that no two wait for each other:
///
/// 1. policies that others hold, in order of their ids: [`checkout`](Self::checkout) refuses any other order;
/// 2. the store, which one thread at a time reads or writes;
/// 3. the table of who is where, which nobody holds while waiting for anything else, nor while policies are made,
///    turned into bytes or dropped.
///
/// A policy on its way to or from the store is waited for like one that somebody holds. Who moves it waits for the
/// store and the table alone.
pub struct SharedPolicyMap<T> {
    table: Mutex<Table<T>>,
    /// Somebody has come back, or arrived where they were going.
    arrived: Condvar,
    store: Mutex<Store>,
    factory: Box<Factory<T>>,
    limits: PolicyMapLimits,
}

type Store = TidyStore<Box<dyn PolicyStore + Send>>;
type Factory<T> = dyn Fn(&PolicyId, &str) -> Result<T, StashError> + Send + Sync;

impl<T> SharedPolicyMap<T> {
    /// A map that puts idle policies beyond the limits aside in `store`, and has them back through `factory`, see
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

    /// Ids of all policies, wherever they are, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<PolicyId> {
        self.table().ids().cloned().collect()
    }

    /// Ids of the policies that are not in the store, in order.
    #[must_use]
    pub fn resident(&self) -> Vec<PolicyId> {
        self.table().resident().cloned().collect()
    }

    /// Ids of the policies in the store, in order.
    #[must_use]
    pub fn stashed(&self) -> Vec<PolicyId> {
        self.table().stashed().cloned().collect()
    }

    /// Number of policies, wherever they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().ids().len()
    }

    /// True without policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is such a policy, wherever it is.
    #[must_use]
    pub fn contains(&self, id: &PolicyId) -> bool {
        self.table().place(id).is_some()
    }

    /// The table is whole between any two calls of its methods, so a thread that panicked has left it whole.
    fn table(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, table: MutexGuard<'a, Table<T>>) -> MutexGuard<'a, Table<T>> {
        self.arrived.wait(table).unwrap_or_else(PoisonError::into_inner)
    }

    /// The table when this policy is not on its way.
    fn settled(&self, id: &PolicyId) -> MutexGuard<'_, Table<T>> {
        let mut table = self.table();
        while matches!(table.place(id), Some(Place::Coming | Place::Leaving)) {
            table = self.wait(table);
        }
        table
    }
}

impl<T: Stash> SharedPolicyMap<T> {
    /// Adds a policy or replaces the one of this id. Who holds the old one may finish with it; then it is dropped.
    ///
    /// # Errors
    /// [`PolicyMapError`] when there is no room and the store cannot make some, or cannot forget the old one. The policy
    /// is in the map nevertheless.
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

    /// Has a policy for this thread alone, as soon as nobody else has it.
    ///
    /// # Errors
    /// [`SharedPolicyMapError::OutOfOrder`] when this thread holds this policy or one that comes later;
    /// [`SharedPolicyMapError::Map`] when the policy is unknown, cannot come back, or nobody can make room.
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

    /// Has a policy for this thread alone if nobody else has it. In whatever order it is called, nobody waits forever.
    ///
    /// # Errors
    /// [`PolicyMapError`] when the policy is unknown, cannot come back, or nobody can make room.
    pub fn try_checkout(&self, id: &PolicyId) -> Result<Option<PolicyGuard<'_, T>>, PolicyMapError> {
        let table = self.settled(id);
        match table.place(id) {
            Some(Place::Lent { .. }) => Ok(None),
            _ => self.lend(table, id).map(Some),
        }
    }

    /// Drops a policy from everywhere. Who holds it may finish with it.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`]; [`PolicyMapError::Store`] when it is gone from the map but its bytes are still in the
    /// store, which is asked again before anything else is put aside.
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
                // Bytes that should have been forgotten before; by now another one of this id may have others.
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

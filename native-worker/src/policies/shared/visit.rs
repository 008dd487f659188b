//! Visiting all policies one after the other, without changing their places.

use std::{sync::MutexGuard, thread};

use rollmesh_core::policy::{PolicyId, PolicyMapError, PolicyStore as _, Stash};

use super::{
    PolicyGuard, SharedPolicyMap, SharedPolicyMapError,
    moves::{Move, Then},
    table::{Place, Table},
};

impl<T: Stash> SharedPolicyMap<T> {
    /// Calls `f` with all policies: first the resident ones, then those in the store, each in order of their ids. Visits do
    /// not count as uses and evict nothing; at most one stashed policy at a time is loaded. Policies that other threads hold
    /// are waited for; those that are added or removed meanwhile may or may not be visited. `f` must not use the map.
    ///
    /// # Errors
    /// [`SharedPolicyMapError::OutOfOrder`] if this thread holds a policy, the first error of `f`, and
    /// [`SharedPolicyMapError::Map`] for a policy that cannot be restored; the rest is not visited.
    #[doc(alias = "foreach_policy")]
    pub fn for_each<E: From<SharedPolicyMapError>>(
        &self,
        mut f: impl FnMut(&PolicyId, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit(|id, item| f(id, item), false)
    }

    /// Like [`for_each`](Self::for_each), for changes. Changed policies of the store are stashed again.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each), and if a policy cannot be stashed again: then it is resident, with its changes. A
    /// stashed policy does not change if `f` fails for it.
    pub fn for_each_mut<E: From<SharedPolicyMapError>>(
        &self,
        f: impl FnMut(&PolicyId, &mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit(f, true)
    }

    fn visit<E: From<SharedPolicyMapError>>(
        &self,
        mut f: impl FnMut(&PolicyId, &mut T) -> Result<(), E>,
        write_back: bool,
    ) -> Result<(), E> {
        let table = self.table();
        if let (Some(held), Some(wanted)) = (table.last_held(thread::current().id()), table.ids().next()) {
            return Err(SharedPolicyMapError::OutOfOrder { held: held.clone(), wanted: wanted.clone() }.into());
        }
        let ids: Vec<PolicyId> = table.resident().chain(table.stashed()).cloned().collect();
        drop(table);
        for id in ids {
            let mut table = self.table();
            while matches!(table.place(&id), Some(Place::Lent { .. } | Place::Coming | Place::Leaving)) {
                table = self.wait(table);
            }
            if let Some((item, used, last)) = table.take_idle(&id) {
                table.hold(thread::current().id(), &id);
                drop(table);
                let mut guard = PolicyGuard::new(self, id.clone(), used, item).uncounted(last);
                f(&id, &mut guard)?;
            } else if table.place(&id).is_some() {
                self.visit_stashed(table, &id, &mut f, write_back)?;
            }
        }
        Ok(())
    }

    /// While `f` has it, the policy counts as leaving.
    fn visit_stashed<E: From<SharedPolicyMapError>>(
        &self,
        mut table: MutexGuard<'_, Table<T>>,
        id: &PolicyId,
        f: &mut impl FnMut(&PolicyId, &mut T) -> Result<(), E>,
        write_back: bool,
    ) -> Result<(), E> {
        table.put(id, Some(Place::Leaving));
        drop(table);
        let mut back = Move { map: self, id: id.clone(), then: Then::Put(Place::Stashed) };
        let map_error = |error: PolicyMapError| SharedPolicyMapError::from(error);
        let (mut item, bytes) = self.load(id).map_err(map_error)?;
        f(id, &mut item)?;
        if write_back && let Err(error) = self.stash(id, &item) {
            // The bytes in the store are from before the change.
            let _ = self.store().remove(id);
            let used = self.table().next_use();
            back.then = Then::Put(Place::Idle { item, used, bytes });
            return Err(map_error(error).into());
        }
        Ok(())
    }
}

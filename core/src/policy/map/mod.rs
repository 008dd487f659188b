//! Policies by id: some resident, the others stashed.

mod admit;
mod error;
mod visit;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use core::fmt;

pub use error::{PolicyMapError, UnknownPolicy};

use super::{Policy, PolicyEntry, PolicyStore, Stash, StashError, store::TidyStore};
use crate::{ids::PolicyId, prelude::*};

/// The limits on resident policies. The one used last is always resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyMapLimits {
    /// The maximum number of policies.
    #[doc(alias = "policy_map_capacity")]
    pub count: usize,
    /// The maximum number of bytes of all of them together, as [`Stash::size_bytes`] counts them.
    pub bytes: usize,
}

impl PolicyMapLimits {
    /// As many as fit into memory.
    pub const UNLIMITED: Self = Self { count: usize::MAX, bytes: usize::MAX };
}

/// Policies by id, the least recently used of them stashed as bytes when there are too many.
///
/// Every id that was inserted is valid until it is removed, whether its policy is resident or stashed:
/// [`get_mut`](Self::get_mut) restores it with its whole state. Limits are kept when a policy comes in, and while it
/// does one more is resident, unless its object is [another one's](Self::with_swapping). No policy is lost if the store
/// fails, it stays resident instead.
///
/// `T` is what is kept per id, a [`PolicyEntry`] by default.
///
/// A policy is lent, not handed out. While it is, nothing else can be asked of the map, so what was lent can neither be
/// stashed nor become another policy:
///
/// ```compile_fail,E0499
/// # use rollmesh_core::policy::{PolicyId, PolicyMap, RandomPolicy};
/// # let mut policies = PolicyMap::single(Box::new(RandomPolicy::new(2, 0)));
/// let held = policies.policy_mut(&PolicyId::DEFAULT)?;
/// let other = policies.policy_mut(&PolicyId::new("other"))?;
/// held.set_weights(other.weights())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PolicyMap<T = PolicyEntry> {
    places: BTreeMap<PolicyId, PolicyPlace<T>>,
    /// The residents by when they were last used.
    order: BTreeMap<u64, PolicyId>,
    uses: u64,
    constructions: u64,
    changes: u64,
    /// Without it everything is resident.
    stashing: Option<Stashing<T>>,
}

enum PolicyPlace<T> {
    Resident {
        item: T,
        used: u64,
    },
    /// With the [size](Stash::size_bytes) that it had when it was stashed.
    Stashed {
        bytes: usize,
    },
}

struct Stashing<T> {
    limits: PolicyMapLimits,
    swappable: bool,
    store: TidyStore,
    factory: Box<Factory<T>>,
}

type Factory<T> = dyn Fn(&PolicyId, &str) -> Result<T, StashError> + Send;

impl<T> PolicyMap<T> {
    /// Creates a map that keeps all policies resident.
    #[must_use]
    pub fn new() -> Self {
        Self { places: BTreeMap::new(), order: BTreeMap::new(), uses: 0, constructions: 0, changes: 0, stashing: None }
    }

    /// Creates a map that stashes policies beyond the limits in `store`. A restored one is made by `factory` from its
    /// id and its [specification](Stash::spec), whatever its state, and then [restored](Stash::restore). One that [may
    /// not leave](Stash::may_leave) stays, also beyond the limits.
    #[must_use]
    pub fn bounded(
        limits: PolicyMapLimits,
        store: impl PolicyStore + 'static,
        factory: impl Fn(&PolicyId, &str) -> Result<T, StashError> + Send + 'static,
    ) -> Self {
        let store = TidyStore::new(Box::new(store));
        let stashing = Stashing { limits, swappable: false, store, factory: Box::new(factory) };
        Self { stashing: Some(stashing), ..Self::new() }
    }

    /// Sets whether the object of the evicted policy becomes that of the restored one, if both have the same
    /// specification, which saves making one.
    #[must_use]
    #[doc(alias = "policy_states_are_swappable")]
    pub fn with_swapping(mut self, swappable: bool) -> Self {
        if let Some(stashing) = &mut self.stashing {
            stashing.swappable = swappable;
        }
        self
    }

    /// Returns the ids of all policies, resident or stashed, in order.
    #[doc(alias = "keys")]
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &PolicyId> {
        self.places.keys()
    }

    /// Returns whether there is such a policy, resident or stashed.
    #[must_use]
    pub fn contains(&self, id: &PolicyId) -> bool {
        self.places.contains_key(id)
    }

    /// Returns the number of policies, resident or stashed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if there are no policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the ids of the resident policies, the least recently used first.
    pub fn resident(&self) -> impl ExactSizeIterator<Item = &PolicyId> {
        self.order.values()
    }

    /// Returns the ids of the stashed policies, in order.
    pub fn stashed(&self) -> impl Iterator<Item = &PolicyId> {
        self.places.iter().filter_map(|(id, place)| matches!(place, PolicyPlace::Stashed { .. }).then_some(id))
    }

    /// Returns the number of objects that were inserted, or created to restore a policy.
    #[must_use]
    pub fn constructions(&self) -> u64 {
        self.constructions
    }

    /// Returns a number that changes whenever a policy may have been added, removed or changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns a resident policy without counting that as a use; `None` if the policy is stashed or unknown.
    #[must_use]
    pub fn peek(&self, id: &PolicyId) -> Option<&T> {
        match self.places.get(id)? {
            PolicyPlace::Resident { item, .. } => Some(item),
            PolicyPlace::Stashed { .. } => None,
        }
    }
}

impl<T: Stash> PolicyMap<T> {
    /// Adds a policy or replaces the one of this id. It is the most recently used one then.
    ///
    /// # Errors
    /// [`PolicyMapError`] when the limits are reached and the store is full, or cannot remove the old one. The policy
    /// is in the map nevertheless, and no other policy has left it: more than the limits allow are resident until the store
    /// works again.
    #[doc(alias = "__setitem__")]
    pub fn insert(&mut self, id: PolicyId, item: impl Into<T>) -> Result<(), PolicyMapError> {
        let item = item.into();
        self.constructions += 1;
        self.changes += 1;
        // The stashed policy is obsolete now, and frees its bytes.
        let forgotten = match self.places.get(&id) {
            Some(PolicyPlace::Resident { used, .. }) => {
                self.order.remove(used);
                Ok(())
            }
            Some(PolicyPlace::Stashed { .. }) => self.forget(&id),
            None => Ok(()),
        };
        self.place(id, item);
        self.settle().and(forgotten)
    }

    /// Does the same as [`insert`](Self::insert), but only if no policy has this id yet.
    ///
    /// # Errors
    /// [`PolicyMapError::AlreadyExists`], and as [`insert`](Self::insert).
    #[doc(alias = "add_policy")]
    pub fn add(&mut self, id: PolicyId, item: impl Into<T>) -> Result<(), PolicyMapError> {
        if self.contains(&id) { Err(PolicyMapError::AlreadyExists(id)) } else { self.insert(id, item) }
    }

    /// Lends a policy, which is the most recently used one then. If it was stashed it is restored, and the least
    /// recently used ones are evicted.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`]; others when it cannot be restored, or no policy can be evicted. Neither it nor any other
    /// policy is lost then; one that was restored while none could be evicted is resident, beyond the limits.
    #[doc(alias = "__getitem__")]
    pub fn get_mut(&mut self, id: &PolicyId) -> Result<&mut T, PolicyMapError> {
        self.changes += 1;
        match self.places.get(id) {
            Some(PolicyPlace::Resident { used, .. }) => self.touch(*used),
            Some(&PolicyPlace::Stashed { bytes }) => self.admit(id, bytes)?,
            None => return Err(self.unknown(id)),
        }
        let found = match self.places.get_mut(id) {
            Some(PolicyPlace::Resident { item, .. }) => Some(item),
            _ => None,
        };
        found.ok_or_else(|| UnknownPolicy { id: id.clone(), known: Vec::new(), more: 0 }.into())
    }

    /// Removes a policy from the map and the store.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`]; [`PolicyMapError::Store`] when it was removed from the map but its bytes are still in the
    /// store, which is asked again before anything else is stashed.
    #[doc(alias = "__delitem__")]
    pub fn remove(&mut self, id: &PolicyId) -> Result<(), PolicyMapError> {
        self.changes += 1;
        match self.places.remove(id) {
            Some(PolicyPlace::Resident { used, .. }) => {
                self.order.remove(&used);
                self.tidy(id)
            }
            Some(PolicyPlace::Stashed { .. }) => self.forget(id),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: &PolicyId) -> PolicyMapError {
        UnknownPolicy::among(id, self.ids()).into()
    }
}

impl PolicyMap {
    /// Creates a map with one policy under [`PolicyId::DEFAULT`].
    #[must_use]
    pub fn single(policy: Box<dyn Policy>) -> Self {
        let mut map = Self::new();
        map.constructions += 1;
        map.place(PolicyId::DEFAULT, policy.into());
        map
    }
}

impl<P: Policy + ?Sized> PolicyMap<PolicyEntry<P>> {
    /// Lends a policy without its filter, see [`get_mut`](Self::get_mut).
    ///
    /// # Errors
    /// As [`get_mut`](Self::get_mut).
    pub fn policy_mut(&mut self, id: &PolicyId) -> Result<&mut P, PolicyMapError> {
        Ok(&mut *self.get_mut(id)?.policy)
    }
}

impl<T> Default for PolicyMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PolicyMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resident: Vec<_> = self.resident().collect();
        let stashed: Vec<_> = self.stashed().collect();
        f.debug_struct("PolicyMap").field("resident", &resident).field("stashed", &stashed).finish()
    }
}

//! The table of policies' places.

use std::{collections::BTreeMap, thread::ThreadId};

use rollmesh_core::policy::{PolicyId, PolicyMapLimits};

pub(super) enum Place<T> {
    /// Resident and not in use.
    Idle { item: T, used: u64, bytes: usize },
    /// Checked out.
    Lent { used: u64, bytes: usize },
    /// Being restored from the store.
    Coming,
    /// Being stashed or removed.
    Leaving,
    /// In the store.
    Stashed,
}

impl<T> Place<T> {
    /// Returns its count and bytes for the limits.
    fn weight(&self) -> (usize, u128) {
        match self {
            Self::Idle { bytes, .. } | Self::Lent { bytes, .. } => (1, *bytes as u128),
            Self::Coming => (1, 0),
            Self::Leaving | Self::Stashed => (0, 0),
        }
    }
}

pub(super) struct Table<T> {
    places: BTreeMap<PolicyId, Place<T>>,
    /// The sums over all places.
    count: usize,
    bytes: u128,
    /// The idle policies by their last use.
    order: BTreeMap<u64, PolicyId>,
    /// Number of uses so far; every use has a unique number.
    uses: u64,
    held: Vec<(ThreadId, PolicyId)>,
}

/// An idle policy to be evicted.
pub(super) struct Idle<T> {
    pub(super) id: PolicyId,
    pub(super) item: T,
    pub(super) used: u64,
    pub(super) bytes: usize,
}

impl<T> Table<T> {
    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = &PolicyId> {
        self.places.keys()
    }

    pub(super) fn resident(&self) -> impl Iterator<Item = &PolicyId> {
        self.places.iter().filter_map(|(id, place)| (!matches!(place, Place::Stashed)).then_some(id))
    }

    pub(super) fn stashed(&self) -> impl Iterator<Item = &PolicyId> {
        self.places.iter().filter_map(|(id, place)| matches!(place, Place::Stashed).then_some(id))
    }

    pub(super) fn place(&self, id: &PolicyId) -> Option<&Place<T>> {
        self.places.get(id)
    }

    pub(super) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Changes the place of a policy, or removes it. Returns the old place, to be dropped without the lock.
    pub(super) fn put(&mut self, id: &PolicyId, place: Option<Place<T>>) -> Option<Place<T>> {
        let old = self.places.remove(id);
        let (old_count, old_bytes) = old.as_ref().map_or((0, 0), Place::weight);
        let (count, bytes) = place.as_ref().map_or((0, 0), Place::weight);
        (self.count, self.bytes) = (self.count - old_count + count, self.bytes - old_bytes + bytes);
        if let Some(Place::Idle { used, .. }) = &old {
            self.order.remove(used);
        }
        if let Some(Place::Idle { used, .. }) = &place {
            self.order.insert(*used, id.clone());
        }
        self.places.extend(place.map(|place| (id.clone(), place)));
        old
    }

    /// Lends an idle policy; also returns the numbers of this use and of the previous one.
    pub(super) fn take_idle(&mut self, id: &PolicyId) -> Option<(T, u64, u64)> {
        let Some(&Place::Idle { bytes, used: last, .. }) = self.places.get(id) else { return None };
        let used = self.next_use();
        match self.put(id, Some(Place::Lent { used, bytes })) {
            Some(Place::Idle { item, .. }) => Some((item, used, last)),
            _ => None,
        }
    }

    /// Takes the idle policies that exceed the limits, least recently used first; they are leaving from now on. The most
    /// recently used one is never among them.
    pub(super) fn take_surplus(&mut self, limits: PolicyMapLimits) -> Vec<Idle<T>> {
        let mut surplus = Vec::new();
        while self.count > limits.count || self.bytes > limits.bytes as u128 {
            let oldest = self.order.first_key_value().filter(|(used, _)| **used != self.uses).map(|(_, id)| id.clone());
            let Some(id) = oldest else { break };
            if let Some(Place::Idle { item, used, bytes }) = self.put(&id, Some(Place::Leaving)) {
                surplus.push(Idle { id, item, used, bytes });
            }
        }
        surplus
    }

    /// Returns the policy with the last id among those that a thread holds.
    pub(super) fn last_held(&self, thread: ThreadId) -> Option<&PolicyId> {
        self.held.iter().filter(|(holder, _)| *holder == thread).map(|(_, id)| id).max()
    }

    pub(super) fn hold(&mut self, thread: ThreadId, id: &PolicyId) {
        self.held.push((thread, id.clone()));
    }

    pub(super) fn release(&mut self, thread: ThreadId, id: &PolicyId) {
        if let Some(at) = self.held.iter().position(|(holder, held)| *holder == thread && held == id) {
            self.held.swap_remove(at);
        }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: BTreeMap::new(), count: 0, bytes: 0, order: BTreeMap::new(), uses: 0, held: Vec::new() }
    }
}

//! Stores of policies that are not resident.

use core::fmt;

use super::PolicyId;
use crate::prelude::*;

/// Keeps bytes by policy. In memory here, see [`MemoryStore`]; on disk in a shell.
pub trait PolicyStore: Send {
    /// Keeps these bytes for the policy, instead of those that were kept before. After an error the old ones are still
    /// there.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Failed`].
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError>;

    /// Returns a copy of the bytes kept last. They stay until they are [removed](Self::remove), so that nothing is lost
    /// if they cannot be used.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Failed`].
    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError>;

    /// Removes the policy's bytes, and returns whether there were any.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError>;
}

/// The reason why a store could not keep or return bytes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was kept for this policy.
    #[error("nothing was stashed for policy '{0}'")]
    Missing(PolicyId),
    /// The store is full.
    #[error("no room to stash policy '{id}' of {bytes} bytes: the store takes {capacity}")]
    Full {
        /// The policy.
        id: PolicyId,
        /// The size of its bytes.
        bytes: usize,
        /// The store's capacity in bytes.
        capacity: usize,
    },
    /// The bytes are not the ones that were kept.
    #[error("the stashed policy '{0}' is damaged")]
    Damaged(PolicyId),
    /// The medium failed.
    #[error("the store failed for policy '{id}': {reason}")]
    Failed {
        /// The policy.
        id: PolicyId,
        /// The medium's error.
        reason: String,
    },
}

/// A store that removes obsolete entries: an entry whose removal failed is obsolete, cannot be read any more, and is
/// removed before a new one is stored.
pub(super) struct TidyStore {
    store: Box<dyn PolicyStore>,
    obsolete: BTreeSet<PolicyId>,
}

impl TidyStore {
    /// Wraps `store`.
    pub(super) fn new(store: Box<dyn PolicyStore>) -> Self {
        Self { store, obsolete: BTreeSet::new() }
    }

    /// Removes all obsolete entries that can be removed, and returns whether one was this policy's.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when an obsolete entry of this policy could not be removed.
    pub(super) fn tidy(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        let mut outcome = Ok(false);
        self.obsolete.retain(|other| {
            let removed = self.store.remove(other);
            let stays = removed.is_err();
            if other == id {
                outcome = removed;
            }
            stays
        });
        outcome
    }
}

impl PolicyStore for TidyStore {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        // An obsolete entry of this id is replaced in any case.
        let _ = self.tidy(id);
        self.store.put(id, bytes)?;
        self.obsolete.remove(id);
        Ok(())
    }

    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError> {
        if self.obsolete.contains(id) { Err(StoreError::Missing(id.clone())) } else { self.store.read(id) }
    }

    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        let removed = self.store.remove(id);
        match removed {
            Ok(_) => self.obsolete.remove(id),
            Err(_) => self.obsolete.insert(id.clone()),
        };
        removed
    }
}

/// Keeps bytes in memory, up to a capacity.
pub struct MemoryStore {
    kept: BTreeMap<PolicyId, Vec<u8>>,
    bytes: usize,
    capacity: usize,
}

impl MemoryStore {
    /// Creates a store for at most that many bytes.
    #[must_use]
    pub fn bounded(capacity: usize) -> Self {
        Self { kept: BTreeMap::new(), bytes: 0, capacity }
    }

    /// Returns the number of bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Creates a store without bounds.
impl Default for MemoryStore {
    fn default() -> Self {
        Self::bounded(usize::MAX)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.kept.iter().map(|(id, bytes)| (id, bytes.len()))).finish()
    }
}

impl PolicyStore for MemoryStore {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        let others = self.bytes - self.kept.get(id).map_or(0, Vec::len);
        if bytes.len() > self.capacity - others {
            return Err(StoreError::Full { id: id.clone(), bytes: bytes.len(), capacity: self.capacity });
        }
        self.bytes = others + bytes.len();
        self.kept.insert(id.clone(), bytes);
        Ok(())
    }

    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError> {
        self.kept.get(id).cloned().ok_or_else(|| StoreError::Missing(id.clone()))
    }

    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        let removed = self.kept.remove(id);
        self.bytes -= removed.as_ref().map_or(0, Vec::len);
        Ok(removed.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_removed() {
        let mut store = MemoryStore::bounded(5);
        let (a, b) = (PolicyId::new("a"), PolicyId::new("b"));
        store.put(&a, vec![1, 2, 3]).unwrap();
        let full = store.put(&b, vec![0; 3]).unwrap_err();
        assert_eq!(full.to_string(), "no room to stash policy 'b' of 3 bytes: the store takes 5");
        assert!(store.put(&a, vec![0; 6]).is_err());
        assert_eq!((store.read(&a), store.bytes()), (Ok(vec![1, 2, 3]), 3));
        store.put(&a, vec![4; 5]).unwrap();
        assert_eq!((store.read(&a), store.read(&b)), (Ok(vec![4; 5]), Err(StoreError::Missing(b))));
        assert_eq!((store.remove(&a), store.remove(&a), store.bytes()), (Ok(true), Ok(false), 0));
    }
}

//! Visits all policies sequentially, without moving any.

use super::{PolicyId, PolicyMap, PolicyMapError, PolicyPlace, admit::failed};
use crate::{
    policy::{Stash, Stashed},
    prelude::*,
};

impl<T: Stash> PolicyMap<T> {
    /// Shows all policies to `f`: first the resident ones, then the stashed ones, each in order of their ids. No visit
    /// counts as a use, no policy is evicted, and at most one stashed policy is in memory at a time.
    ///
    /// # Errors
    /// The first error of `f`, and [`PolicyMapError`] for a policy that cannot be restored; the rest is not visited.
    #[doc(alias = "foreach_policy")]
    pub fn for_each<E: From<PolicyMapError>>(
        &mut self,
        mut f: impl FnMut(&PolicyId, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit(|id, item| f(id, item), false)
    }

    /// Does the same as [`for_each`](Self::for_each), and lets `f` change the policies. Stashed policies are stashed
    /// again, changed.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each), and when a policy cannot be stashed again: it is resident then, changed. A
    /// stashed policy does not change if `f` fails for it.
    pub fn for_each_mut<E: From<PolicyMapError>>(
        &mut self,
        f: impl FnMut(&PolicyId, &mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit(f, true)
    }

    fn visit<E: From<PolicyMapError>>(
        &mut self,
        mut f: impl FnMut(&PolicyId, &mut T) -> Result<(), E>,
        write_back: bool,
    ) -> Result<(), E> {
        self.changes += u64::from(write_back);
        for (id, place) in &mut self.places {
            if let PolicyPlace::Resident { item, .. } = place {
                f(id, item)?;
            }
        }
        let stashed: Vec<PolicyId> = self.stashed().cloned().collect();
        let mut temporary = None;
        for id in stashed {
            let bytes = self.read(&id)?;
            let stashed = Stashed::decode_of(&id, &bytes).map_err(|source| failed(&id, source))?;
            let mut item = self.rebuild(&stashed, temporary)?;
            f(&id, &mut item)?;
            if write_back && let Some(stashing) = &mut self.stashing {
                if let Err(error) = stashing.put(&id, &item) {
                    // The bytes in the store are from before the change.
                    let _ = self.forget(&id);
                    self.place(id, item);
                    return Err(error.into());
                }
                let bytes = item.size_bytes();
                self.places.insert(id, PolicyPlace::Stashed { bytes });
            }
            temporary = Some(item);
        }
        Ok(())
    }
}

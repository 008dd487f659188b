//! An advisory lock for callers that share a worker.

use super::RolloutWorker;
use crate::worker::RolloutError;

impl RolloutWorker {
    /// Locks the worker, for several calls that belong together. The lock is advisory: the worker's methods do not check it.
    ///
    /// # Errors
    /// [`RolloutError::Locked`] if it is locked already, even by the same caller, who would otherwise wait forever.
    pub fn lock(&mut self) -> Result<(), RolloutError> {
        if self.locked {
            return Err(RolloutError::Locked);
        }
        self.locked = true;
        Ok(())
    }

    /// Unlocks the worker.
    ///
    /// # Errors
    /// [`RolloutError::NotLocked`].
    pub fn unlock(&mut self) -> Result<(), RolloutError> {
        if !self.locked {
            return Err(RolloutError::NotLocked);
        }
        self.locked = false;
        Ok(())
    }

    /// Returns whether it is locked.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

//! A lock for those who share a worker.

use super::RolloutWorker;
use crate::worker::RolloutError;

impl RolloutWorker {
    /// Locks the worker, for several calls that belong together. The worker itself does not look at it: it is for those
    /// who share it to keep to.
    ///
    /// # Errors
    /// [`RolloutError::Locked`] if it is locked already, also by the caller, who would otherwise wait forever.
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

    /// Whether it is locked.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

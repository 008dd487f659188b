//! Health of workers.

use super::{CallCommand, CallError, CallEvent, CallManager, CallResult, ForEachError, UnhealthyCause, worker::Whose};
use crate::{ids::WorkerId, prelude::*};

impl<R, T> CallManager<R, T> {
    /// Marks a worker as healthy or unhealthy. Marking it as unhealthy drops its calls: they have no results, and no longer
    /// count as in flight.
    /// # Errors
    /// [`ForEachError::UnknownWorker`]; [`ForEachError::NotThere`] if a disconnected worker is to be marked as healthy.
    #[doc(alias = "set_actor_state")]
    pub fn set_worker_state(&mut self, worker: WorkerId, healthy: bool) -> Result<(), ForEachError> {
        self.check_known(worker)?;
        if !healthy {
            self.drop_calls(worker);
            self.make_unhealthy(worker, UnhealthyCause::Marked);
        } else if !self.mark_healthy(worker) {
            return Err(ForEachError::NotThere(worker));
        }
        debug_assert!(self.is_consistent());
        Ok(())
    }

    /// Sets whether a worker may be throttled at any time, as browsers throttle tabs. A throttled worker has a longer
    /// progress timeout.
    ///
    /// # Errors
    /// [`ForEachError::UnknownWorker`].
    pub fn set_throttled(&mut self, worker: WorkerId, is_throttled: bool) -> Result<(), ForEachError> {
        self.check_known(worker)?;
        if let Some(known) = self.workers.get_mut(&worker) {
            known.is_throttled = is_throttled;
        }
        Ok(())
    }

    /// Returns whether a worker is healthy; `None` for an unknown one.
    #[doc(alias = "is_actor_healthy")]
    #[must_use]
    pub fn is_healthy(&self, worker: WorkerId) -> Option<bool> {
        self.workers.get(&worker).map(|known| known.is_healthy)
    }

    /// Marks a worker as healthy. Returns false if it is disconnected.
    pub(super) fn mark_healthy(&mut self, worker: WorkerId) -> bool {
        let Some(known) = self.workers.get_mut(&worker).filter(|known| known.is_there) else { return false };
        if !known.is_healthy {
            known.is_healthy = true;
            known.sample_failures = 0;
            known.restarts += 1;
            self.counters.restarts += 1;
            self.event(CallEvent::WorkerRestored { worker });
        }
        true
    }

    /// Marks a worker as unhealthy. Callers that wait for it receive an error.
    pub(super) fn make_unhealthy(&mut self, worker: WorkerId, cause: UnhealthyCause) {
        for whose in self.take_calls(worker) {
            let error = CallError::Lost(cause);
            match whose {
                Whose::Set(id, place) => {
                    self.counters.lost += 1;
                    self.end_in_set(id, place, Some(Err(error)));
                }
                Whose::Async(tag) => {
                    self.counters.lost += 1;
                    self.keep_result(CallResult { worker, result: Err(error), tag });
                }
                Whose::TimedOut | Whose::Forgotten => {}
            }
        }
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.life += 1;
        // A worker that reconnects warms up again.
        known.progress = None;
        if core::mem::replace(&mut known.is_healthy, false) {
            self.event(CallEvent::WorkerUnhealthy { worker, cause });
        }
        debug_assert!(self.is_consistent());
    }

    /// Ends a worker's calls without results.
    pub(super) fn drop_calls(&mut self, worker: WorkerId) {
        for whose in self.take_calls(worker) {
            match whose {
                Whose::Set(id, place) => {
                    self.counters.dropped += 1;
                    self.end_in_set(id, place, None);
                }
                Whose::Async(_) => {
                    self.counters.dropped += 1;
                    if let Some(known) = self.workers.get_mut(&worker) {
                        known.in_flight = known.in_flight.saturating_sub(1);
                    }
                }
                Whose::TimedOut | Whose::Forgotten => {}
            }
        }
    }

    /// Removes and returns all unanswered calls of a worker; those not yet sent are never sent.
    fn take_calls(&mut self, worker: WorkerId) -> Vec<Whose> {
        let Some(known) = self.workers.get_mut(&worker) else { return Vec::new() };
        let calls = known.waiting.drain(..).map(|call| call.whose).collect();
        self.commands.retain(|command: &CallCommand<R>| command.worker != worker);
        calls
    }
}

//! Who is healthy.

use super::{CallCommand, CallError, CallEvent, CallManager, CallResult, ForEachError, UnhealthyCause, worker::Whose};
use crate::{ids::WorkerId, prelude::*};

impl<R, T> CallManager<R, T> {
    /// Says that a worker is healthy, or that it is not. With the latter its calls are dropped: nobody gets a result of
    /// them, and their places among those in flight are free.
    ///
    /// # Errors
    /// [`ForEachError::UnknownWorker`]; [`ForEachError::NotThere`] for one that cannot be healthy.
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

    /// Says whether a worker may be slowed down at any time, as a browser does with its tabs: then it may take longer to
    /// get on.
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

    /// Whether a worker is healthy; none for an unknown one.
    #[doc(alias = "is_actor_healthy")]
    #[must_use]
    pub fn is_healthy(&self, worker: WorkerId) -> Option<bool> {
        self.workers.get(&worker).map(|known| known.is_healthy)
    }

    /// A worker that is there is healthy from now on. False if it is not there.
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

    /// A worker is unhealthy from now on. Whoever waits for it has an error.
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
        // Whoever comes back warms up again.
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

    /// Takes all calls of a worker that have no answer; those that were not sent will not be.
    fn take_calls(&mut self, worker: WorkerId) -> Vec<Whose> {
        let Some(known) = self.workers.get_mut(&worker) else { return Vec::new() };
        let calls = known.waiting.drain(..).map(|call| call.whose).collect();
        self.commands.retain(|command: &CallCommand<R>| command.worker != worker);
        calls
    }
}

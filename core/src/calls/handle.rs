//! Inputs of a call manager: answers, disconnects and reconnects, progress, and time.

use super::{CallError, CallEvent, CallManager, CallResult, UnhealthyCause, worker::Whose};
use crate::{
    ids::{CallId, CallSetId, WorkerId},
    prelude::*,
    time::Micros,
    worker::CommandError,
};

/// A lease whose end is handled more than this late expired while the caller did not poll, because it was busy or suspended.
const LATE: Micros = Micros::from_secs(1);

impl<R, T> CallManager<R, T> {
    /// Handles a worker's answer to a call; an error is an answer, too. An answer to a call that is over, or that belongs to
    /// another worker, is only counted.
    pub fn handle_result(&mut self, worker: WorkerId, call: CallId, result: Result<T, CommandError>, now: Micros) {
        let known = self.workers.get_mut(&worker);
        let Some(waiting) = known.and_then(|known| known.take(call, result.is_ok(), now)) else {
            self.counters.late += 1;
            return;
        };
        let failed = result.is_err();
        match waiting.whose {
            Whose::Set(id, place) => {
                self.counters.returned += 1;
                let marks_healthy = self.sets.get(&id).is_some_and(|set| set.marks_healthy);
                self.end_in_set(id, place, Some(result.map_err(CallError::Failed)));
                if marks_healthy {
                    self.mark_healthy(worker);
                }
            }
            Whose::Async(tag) => {
                self.counters.returned += 1;
                self.keep_result(CallResult { worker, result: result.map_err(CallError::Failed), tag });
            }
            Whose::TimedOut => self.counters.late += 1,
            Whose::Forgotten => {
                if let Err(error) = result {
                    self.event(CallEvent::Unheard { worker, error });
                }
            }
        }
        if waiting.is_sample {
            self.count_sample(worker, failed);
        }
        debug_assert!(self.is_consistent());
    }

    /// Handles a worker's disconnect: it becomes unhealthy, and cannot be called until it [reconnects](Self::handle_joined).
    pub fn handle_left(&mut self, worker: WorkerId) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.is_there = false;
        }
        self.make_unhealthy(worker, UnhealthyCause::Left);
    }

    /// Handles a worker's reconnect, or its replacement by another process. The worker stays unhealthy, since it may have
    /// lost its state. If its disconnect was not handled before, it is handled first. Not needed for a new worker, which
    /// counts as connected.
    pub fn handle_joined(&mut self, worker: WorkerId) {
        self.handle_left(worker);
        if let Some(known) = self.workers.get_mut(&worker) {
            known.is_there = true;
        }
    }

    /// Handles progress of a worker's sample at time `at`, which is not after now: extends the lease. Progress from before
    /// the sample's turn is ignored.
    pub fn handle_progress(&mut self, worker: WorkerId, at: Micros) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.get_on(at);
        }
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Micros) {
        let is_due = |deadline: Option<Micros>| deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<CallSetId> =
            self.sets.iter().filter(|(_, set)| is_due(set.deadline)).map(|(&id, _)| id).collect();
        late.into_iter().for_each(|set| self.time_out(set));
        self.end_leases(now);
        let Some(limit) = self.config.call_timeout else { return };
        let hung = self.workers.iter().filter(|(_, worker)| is_due(worker.deadline(Some(limit))));
        let hung: Vec<WorkerId> = hung.map(|(&id, _)| id).collect();
        hung.into_iter().for_each(|worker| self.make_unhealthy(worker, UnhealthyCause::CallTimeout(limit)));
    }

    /// Marks workers that made no progress in time as unhealthy, whatever else they sent. If the expiry is handled late
    /// because the caller did not poll, progress may have been missed: the lease is renewed, once.
    fn end_leases(&mut self, now: Micros) {
        let mut hung = Vec::new();
        for (&id, worker) in &mut self.workers {
            let Some(end) = worker.lease_end(self.config.progress_timeout).filter(|end| *end <= now) else { continue };
            if worker.renewed.is_none() && now.since(end) > LATE {
                worker.renewed = Some(now);
            } else {
                hung.push(id);
            }
        }
        hung.into_iter().for_each(|worker| self.make_unhealthy(worker, UnhealthyCause::LeaseExpired));
    }

    /// Stops waiting for a set of calls. Workers continue with them.
    pub(super) fn time_out(&mut self, id: CallSetId) {
        let Some(set) = self.sets.get_mut(&id) else { return };
        self.counters.timed_out += set.open as u64;
        set.open = 0;
        for call in self.workers.values_mut().flat_map(|worker| &mut worker.waiting) {
            if matches!(call.whose, Whose::Set(whose, _) if whose == id) {
                call.whose = Whose::TimedOut;
            }
        }
        debug_assert!(self.is_consistent());
    }

    pub(super) fn end_in_set(&mut self, id: CallSetId, place: usize, result: Option<Result<T, CallError>>) {
        if let Some(set) = self.sets.get_mut(&id) {
            set.end(place, result);
        }
    }

    fn count_sample(&mut self, worker: WorkerId, failed: bool) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.sample_failures = if failed { known.sample_failures.saturating_add(1) } else { 0 };
        let (failures, most) = (known.sample_failures, self.config.max_sample_failures);
        if most > 0 && failures >= most {
            self.make_unhealthy(worker, UnhealthyCause::SampleFailures(failures));
        }
    }
}

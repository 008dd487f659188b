//! Calls of workers, without I/O: which worker is sent which request, which ones have answered, which ones are healthy.
//!
//! [`CallManager`] corresponds to RLlib's `FaultTolerantActorManager`. Worker ids count from 1 and are never reused. A call
//! is one request for one worker; the meaning of requests and results is the caller's business. A worker does its calls
//! sequentially, in the order in which they started.
//!
//! There are four kinds of method, as those of [`LeaseGroup`](crate::group::LeaseGroup):
//! - `handle_*` take an event and its time: an answer, a worker's disconnect or reconnect, progress of a sample;
//! - mutators ([`foreach`](CallManager::foreach), [`foreach_async`](CallManager::foreach_async),
//!   [`set_worker_state`](CallManager::set_worker_state), …) take a request of the caller;
//! - `poll_*` return outputs, until `None`: after every call of the first two kinds drain
//!   [`poll_command`](CallManager::poll_command) and [`poll_event`](CallManager::poll_event), then set a timer for
//!   [`poll_timeout`](CallManager::poll_timeout) and call [`handle_timeout`](CallManager::handle_timeout) when it fires
//!   (earlier does no harm). Handle all messages that have already arrived first, so that a caller that was suspended does
//!   not mark live workers as unhealthy;
//! - getters change nothing.
//!
//! Rules:
//! - An error that a worker answers with is a result; the worker stays healthy. Only consecutive failed samples make it
//!   unhealthy.
//! - A worker becomes unhealthy when it disconnects, when a call exceeds the call timeout, and when its lease expires. Its
//!   calls end then, with an error for callers that wait.
//! - The lease belongs to the sample that the worker is doing. Only progress extends it, as in [`group`](crate::group):
//!   other signs of life do not.
//! - A caller's own timeout is separate: calls without an answer by then are dropped, which is no error. The worker stays
//!   healthy and continues with them.
//! - An unhealthy worker stays so until the caller marks it as healthy, or requests that answers count as a sign of
//!   health: the worker may have lost its state.
//! - Late answers are not accepted. An answer to a call that is over is counted.
//! - Every call that started ends in exactly one of the [`CallCounters`].
//! - Deterministic: the same sequence of calls gives the same outputs. Memory is bounded by the number of workers, except
//!   for the results of sets that were never taken: beyond [`MAX_COMPLETE`](CallManager::MAX_COMPLETE) of those the oldest
//!   are dropped.
//!
//! ```
//! use rollmesh_core::{
//!     calls::{CallConfig, CallManager, ForEach},
//!     time::Micros,
//!     worker::WorkerCommand,
//! };
//!
//! let mut calls = CallManager::<WorkerCommand, &str>::new(CallConfig::default());
//! let (first, second) = (calls.add_worker(), calls.add_worker());
//! let set = calls.foreach(ForEach::new(WorkerCommand::Ping), Micros(0))?;
//! while let Some(command) = calls.poll_command() {
//! // Sent to the worker, done there, and answered.
//!     calls.handle_result(command.worker, command.call, Ok("pong"), Micros(1));
//! }
//! let results = calls.poll_results(set).unwrap_or_default();
//! let results: Vec<_> = results.into_iter().map(|result| (result.worker, result.result)).collect();
//! assert_eq!(results, [(first, Ok("pong")), (second, Ok("pong"))]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: sockets, threads and clocks; what a request does (see [`worker`](crate::worker)).

mod config;
mod foreach;
mod handle;
mod health;
mod output;
mod set;
#[cfg(test)]
mod tests;
mod worker;

pub use config::CallConfig;
pub use foreach::{CallRequest, ForEach, ForEachError};
pub use output::{CallCommand, CallCounters, CallError, CallEvent, CallResult, UnhealthyCause, WorkerHealth};

use self::{set::CallSet, worker::Called};
use crate::{
    ids::{CallId, CallSetId, WorkerId},
    prelude::*,
    time::Micros,
};

/// Calls workers and tracks their health. See the [module](self).
///
/// `R` is the type of requests, `T` the type of answers.
#[derive(Debug)]
#[doc(alias = "FaultTolerantActorManager")]
pub struct CallManager<R, T> {
    config: CallConfig,
    workers: BTreeMap<WorkerId, Called>,
    next_worker: WorkerId,
    next_call: CallId,
    next_set: CallSetId,
    sets: BTreeMap<CallSetId, CallSet<T>>,
    /// Answers of asynchronous calls that were not fetched yet, in order of arrival, each with its worker's `life` at that
    /// time.
    ready: VecDeque<(u64, CallResult<T>)>,
    counters: CallCounters,
    commands: VecDeque<CallCommand<R>>,
    events: VecDeque<CallEvent>,
}

impl<R, T> CallManager<R, T> {
    /// Limit of unpolled events; beyond it the oldest are dropped.
    const MAX_EVENTS: usize = 1_024;
    /// Most unanswered calls per worker, asynchronous ones and those without a waiting caller included.
    pub const MAX_WAITING: usize = 1_024;
    /// Limit of complete sets that were not taken; beyond it the oldest are dropped.
    pub const MAX_COMPLETE: usize = 1_024;

    /// Creates a manager without workers.
    #[must_use]
    pub fn new(config: CallConfig) -> Self {
        Self {
            config,
            workers: BTreeMap::new(),
            next_worker: WorkerId(1),
            next_call: CallId(0),
            next_set: CallSetId(0),
            sets: BTreeMap::new(),
            ready: VecDeque::new(),
            counters: CallCounters::default(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds a worker, which counts as healthy, and returns its id. Calls of it may start immediately: the transport queues them
    /// until the worker connects.
    #[doc(alias = "add_actors")]
    pub fn add_worker(&mut self) -> WorkerId {
        let id = self.next_worker;
        self.next_worker = WorkerId(id.0.saturating_add(1));
        self.workers.insert(id, Called::new());
        id
    }

    /// Removes a worker. Drops its calls and its unfetched answers.
    /// # Errors
    /// [`ForEachError::UnknownWorker`].
    #[doc(alias = "remove_actor")]
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<(), ForEachError> {
        self.check_known(worker)?;
        self.drop_calls(worker);
        self.workers.remove(&worker);
        self.ready.retain(|(_, result)| result.worker != worker);
        debug_assert!(self.is_consistent());
        Ok(())
    }

    /// Removes all workers. New ones have ids that were never used before.
    pub fn clear(&mut self) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        // The ids are those of known workers, so this cannot fail.
        workers.into_iter().for_each(|worker| _ = self.remove_worker(worker));
    }

    /// Returns the next call to send to a worker. The calls of one worker must reach it in order.
    pub fn poll_command(&mut self) -> Option<CallCommand<R>> {
        self.commands.pop_front()
    }

    /// Returns the next event to log or to show.
    pub fn poll_event(&mut self) -> Option<CallEvent> {
        self.events.pop_front()
    }

    /// Returns the results of a set in the order of ids once all have arrived or its timeout has passed, `None` before.
    /// Dropped calls have no result. A set can be taken once: after that, like an unknown set, it is empty.
    pub fn poll_results(&mut self, set: CallSetId) -> Option<Vec<CallResult<T>>> {
        match self.sets.get(&set) {
            Some(open) if !open.is_complete() => None,
            _ => Some(self.sets.remove(&set).map(CallSet::into_results).unwrap_or_default()),
        }
    }

    /// Stops waiting for a set and returns the results so far. Its other calls are dropped as if the timeout had passed.
    pub fn give_up(&mut self, set: CallSetId) -> Vec<CallResult<T>> {
        self.time_out(set);
        self.poll_results(set).unwrap_or_default()
    }

    /// Returns the unfetched answers of asynchronous calls in order of arrival: those with one of these tags, or all if
    /// `tags` is empty. With `mark_healthy` workers that answered become healthy, unless they have disconnected or become
    /// unhealthy since.
    ///
    /// Does not block: to wait, poll [`num_pending_async`](Self::num_pending_async).
    #[doc(alias("fetch_ready_async_reqs", "fetch_ready"))]
    pub fn fetch_ready_async(&mut self, tags: &[&str], mark_healthy: bool) -> Vec<CallResult<T>> {
        let is_wanted = |(_, result): &(u64, CallResult<T>)| has_tag(tags, result.tag.as_deref());
        let (fetched, kept): (Vec<_>, Vec<_>) = self.ready.drain(..).partition(is_wanted);
        self.ready = kept.into();
        for (life, result) in &fetched {
            let mut is_same = false;
            if let Some(worker) = self.workers.get_mut(&result.worker) {
                worker.in_flight = worker.in_flight.saturating_sub(1);
                is_same = worker.life == *life;
            }
            if mark_healthy && is_same && matches!(result.result, Ok(_) | Err(CallError::Failed(_))) {
                self.mark_healthy(result.worker);
            }
        }
        debug_assert!(self.is_consistent());
        fetched.into_iter().map(|(_, result)| result).collect()
    }

    /// Returns the latest time at which to call [`handle_timeout`](Self::handle_timeout) if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Micros> {
        let sets = self.sets.values().filter(|set| !set.is_complete()).filter_map(|set| set.deadline);
        let CallConfig { call_timeout, progress_timeout, .. } = self.config;
        let calls = self.workers.values().filter_map(|worker| worker.deadline(call_timeout));
        let leases = self.workers.values().filter_map(|worker| worker.lease_end(progress_timeout));
        sets.chain(calls).chain(leases).min()
    }

    /// Returns the health of all workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerHealth> + '_ {
        self.workers.iter().map(|(&id, worker)| worker.status(id))
    }

    /// Returns the ids of the healthy workers, ascending.
    #[doc(alias = "healthy_actor_ids")]
    pub fn healthy_worker_ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().filter(|(_, worker)| worker.is_healthy).map(|(&id, _)| id)
    }

    /// Returns the ids of the unhealthy workers, ascending.
    pub fn unhealthy_worker_ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().filter(|(_, worker)| !worker.is_healthy).map(|(&id, _)| id)
    }

    /// Returns the number of workers, healthy or not.
    #[doc(alias = "num_actors")]
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of healthy workers.
    #[doc(alias = "num_healthy_actors")]
    #[must_use]
    pub fn num_healthy_workers(&self) -> usize {
        self.healthy_worker_ids().count()
    }

    /// Returns how many times an unhealthy worker became healthy again, workers removed since included.
    #[doc(alias("total_num_restarts", "num_remote_worker_restarts"))]
    #[must_use]
    pub fn num_restarts(&self) -> u64 {
        self.counters.restarts
    }

    /// Returns the number of asynchronous calls that have started and were not fetched: what the limit counts.
    #[doc(alias = "num_outstanding_async_reqs")]
    #[must_use]
    pub fn num_in_flight_async(&self) -> usize {
        self.workers.values().map(|worker| worker.in_flight).sum()
    }

    /// Returns the number of unanswered asynchronous calls with one of these tags, or with any if `tags` is empty.
    #[must_use]
    pub fn num_pending_async(&self, tags: &[&str]) -> usize {
        self.workers.values().map(|worker| worker.num_pending(tags)).sum()
    }

    /// Returns the counters of how calls ended.
    #[must_use]
    pub fn counters(&self) -> &CallCounters {
        &self.counters
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &CallConfig {
        &self.config
    }

    fn check_known(&self, worker: WorkerId) -> Result<(), ForEachError> {
        if self.workers.contains_key(&worker) { Ok(()) } else { Err(ForEachError::UnknownWorker(worker)) }
    }

    /// Stores the result of an asynchronous call until the caller fetches it.
    fn keep_result(&mut self, result: CallResult<T>) {
        let life = self.workers.get(&result.worker).map_or(0, |worker| worker.life);
        self.ready.push_back((life, result));
    }

    fn event(&mut self, event: CallEvent) {
        if self.events.len() == Self::MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Checks the invariants that hold after every call: recounts what the counters say.
    fn is_consistent(&self) -> bool {
        let open: usize = self.workers.values().map(Called::num_awaited).sum();
        let by_set: usize = self.sets.values().map(|set| set.open).sum();
        let of_sets: usize = self.workers.values().map(Called::num_in_sets).sum();
        let in_flight = |id: WorkerId, worker: &Called| {
            let ready = self.ready.iter().filter(|(_, result)| result.worker == id).count();
            worker.num_pending(&[]) + ready
        };
        self.counters.started == self.counters.ended() + open as u64
            && by_set == of_sets
            && self.workers.iter().all(|(&id, worker)| worker.in_flight == in_flight(id, worker))
            && self.workers.values().all(|worker| worker.in_flight <= self.config.max_in_flight)
    }
}

/// Returns whether a call's tag matches `tags`; an empty list matches every call.
fn has_tag(tags: &[&str], tag: Option<&str>) -> bool {
    tags.is_empty() || tag.is_some_and(|tag| tags.contains(&tag))
}

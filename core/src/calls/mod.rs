//! Calls of workers: who is asked what, who has answered, who is healthy, without IO.
//!
//! [`CallManager`] is what stands behind RLlib's `FaultTolerantActorManager`. Workers have ids from 1 on, which are never
//! used again. A call is a request for one worker; what requests and results are is the caller's business. A worker does
//! its calls one after the other, in the order in which they began.
//!
//! There are four kinds of method, as those of [`LeaseGroup`](crate::group::LeaseGroup):
//! - `handle_*` take what happened, and when: an answer, a worker that left or came back, progress with a sample;
//! - mutators ([`foreach`](CallManager::foreach), [`foreach_async`](CallManager::foreach_async),
//!   [`set_worker_state`](CallManager::set_worker_state), …) take what somebody wants;
//! - `poll_*` give what follows, until `None`: after every call of the first two kinds drain
//!   [`poll_command`](CallManager::poll_command) and [`poll_event`](CallManager::poll_event), then set a timer for
//!   [`poll_timeout`](CallManager::poll_timeout) and call [`handle_timeout`](CallManager::handle_timeout) when it fires
//!   (earlier does no harm). Hand over what has already arrived first, so that who was suspended blames nobody;
//! - getters change nothing.
//!
//! Rules:
//! - An error that a worker answers with is a result; the worker stays healthy. Only samples that fail again and again
//!   make it unhealthy.
//! - A worker is unhealthy once it is gone, once a call takes longer than any may, and once its lease has expired. Its
//!   calls end then, with an error for whoever waits.
//! - The lease is for a sample that has its turn. Only progress extends it, as in [`group`](crate::group): other signs of
//!   life do not.
//! - The time that a caller waits is another matter: calls that have no answer by then are dropped, which is no error, and
//!   the worker stays healthy and goes on with them.
//! - An unhealthy worker stays so until somebody says otherwise, or asks for its answers to count as a sign of health: it
//!   may have lost its state.
//! - Nothing late is accepted. What comes for a call that is over is counted.
//! - Every call that began ends in exactly one place of the [`CallCounters`].
//! - The same calls give the same answers. Memory is bounded by workers, but for the results of sets that nobody takes:
//!   beyond a number of those the oldest are forgotten.
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
//!     // Sent, done there, and answered.
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

/// Calls workers and knows who is healthy. See the [module](self).
///
/// `R` is what workers are asked, `T` what they answer.
#[derive(Debug)]
#[doc(alias = "FaultTolerantActorManager")]
pub struct CallManager<R, T> {
    config: CallConfig,
    workers: BTreeMap<WorkerId, Called>,
    next_worker: WorkerId,
    next_call: CallId,
    next_set: CallSetId,
    sets: BTreeMap<CallSetId, CallSet<T>>,
    /// Answers of asynchronous calls that nobody has fetched, in the order in which they came, each with the life of its
    /// worker then.
    ready: VecDeque<(u64, CallResult<T>)>,
    counters: CallCounters,
    commands: VecDeque<CallCommand<R>>,
    events: VecDeque<CallEvent>,
}

impl<R, T> CallManager<R, T> {
    /// Events that nobody polled: beyond this number the oldest are forgotten.
    const MAX_EVENTS: usize = 1_024;
    /// Calls that a worker may have before it, asynchronous ones and those that nobody waits for among them.
    pub const MAX_WAITING: usize = 1_024;
    /// Sets that are complete and that nobody has taken: beyond this number the oldest are forgotten.
    pub const MAX_COMPLETE: usize = 1_024;

    /// A manager without workers.
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

    /// Adds a worker, which is healthy, and gives its id. Calls of it may begin at once: whoever carries them keeps them
    /// until it is there.
    #[doc(alias = "add_actors")]
    pub fn add_worker(&mut self) -> WorkerId {
        let id = self.next_worker;
        self.next_worker = WorkerId(id.0.saturating_add(1));
        self.workers.insert(id, Called::new());
        id
    }

    /// Forgets a worker. Its calls are dropped, and so are its answers that nobody has fetched.
    ///
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

    /// Forgets all workers. New ones have ids that were never used.
    pub fn clear(&mut self) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        // They are all known.
        workers.into_iter().for_each(|worker| _ = self.remove_worker(worker));
    }

    /// The next call to be sent to a worker. Calls of one worker must reach it in order.
    pub fn poll_command(&mut self) -> Option<CallCommand<R>> {
        self.commands.pop_front()
    }

    /// The next thing that a person or a log should know.
    pub fn poll_event(&mut self) -> Option<CallEvent> {
        self.events.pop_front()
    }

    /// The results of a set in the order of ids, once all are there or the time is up; none before. Calls that were
    /// dropped have no result. A set can be taken once: after that it is empty, as one that nobody knows.
    pub fn poll_results(&mut self, set: CallSetId) -> Option<Vec<CallResult<T>>> {
        match self.sets.get(&set) {
            Some(open) if !open.is_complete() => None,
            _ => Some(self.sets.remove(&set).map(CallSet::into_results).unwrap_or_default()),
        }
    }

    /// Stops waiting for a set, with what has come so far. Its other calls are dropped as if the time was up.
    pub fn give_up(&mut self, set: CallSetId) -> Vec<CallResult<T>> {
        self.time_out(set);
        self.poll_results(set).unwrap_or_default()
    }

    /// Answers of asynchronous calls that nobody has fetched, in the order in which they came: of those with one of
    /// these tags, or of all without any. With `mark_healthy` whoever has answered is healthy, unless it has
    /// left or become unhealthy since.
    ///
    /// Waits for nothing: whoever wants to wait looks at [`num_pending_async`](Self::num_pending_async).
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

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Micros> {
        let sets = self.sets.values().filter(|set| !set.is_complete()).filter_map(|set| set.deadline);
        let CallConfig { call_timeout, progress_timeout, .. } = self.config;
        let calls = self.workers.values().filter_map(|worker| worker.deadline(call_timeout));
        let leases = self.workers.values().filter_map(|worker| worker.lease_end(progress_timeout));
        sets.chain(calls).chain(leases).min()
    }

    /// All workers by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerHealth> + '_ {
        self.workers.iter().map(|(&id, worker)| worker.status(id))
    }

    /// Ids of the healthy workers, ascending.
    #[doc(alias = "healthy_actor_ids")]
    pub fn healthy_worker_ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().filter(|(_, worker)| worker.is_healthy).map(|(&id, _)| id)
    }

    /// Ids of the others, ascending.
    pub fn unhealthy_worker_ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().filter(|(_, worker)| !worker.is_healthy).map(|(&id, _)| id)
    }

    /// Workers, healthy or not.
    #[doc(alias = "num_actors")]
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.workers.len()
    }

    /// Healthy workers.
    #[doc(alias = "num_healthy_actors")]
    #[must_use]
    pub fn num_healthy_workers(&self) -> usize {
        self.healthy_worker_ids().count()
    }

    /// How often an unhealthy worker became healthy again; those that were removed since count, too.
    #[doc(alias("total_num_restarts", "num_remote_worker_restarts"))]
    #[must_use]
    pub fn num_restarts(&self) -> u64 {
        self.counters.restarts
    }

    /// Asynchronous calls that were begun and not fetched: what the limit counts.
    #[doc(alias = "num_outstanding_async_reqs")]
    #[must_use]
    pub fn num_in_flight_async(&self) -> usize {
        self.workers.values().map(|worker| worker.in_flight).sum()
    }

    /// Asynchronous calls with one of these tags, or with any, that have no answer yet.
    #[must_use]
    pub fn num_pending_async(&self, tags: &[&str]) -> usize {
        self.workers.values().map(|worker| worker.num_pending(tags)).sum()
    }

    /// What became of all calls.
    #[must_use]
    pub fn counters(&self) -> &CallCounters {
        &self.counters
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &CallConfig {
        &self.config
    }

    fn check_known(&self, worker: WorkerId) -> Result<(), ForEachError> {
        if self.workers.contains_key(&worker) { Ok(()) } else { Err(ForEachError::UnknownWorker(worker)) }
    }

    /// Keeps the result of an asynchronous call until somebody fetches it.
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

    /// What must hold after every call. Counts again what the books say.
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

/// Whether a call with this tag is among those that are meant.
fn has_tag(tags: &[&str], tag: Option<&str>) -> bool {
    tags.is_empty() || tag.is_some_and(|tag| tags.contains(&tag))
}

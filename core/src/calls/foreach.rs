//! Starting calls of workers.

use super::{
    CallCommand, CallError, CallManager,
    set::CallSet,
    worker::{Waiting, Whose},
};
use crate::{
    ids::{CallId, CallSetId, WorkerId},
    prelude::*,
    time::Micros,
    worker::WorkerCommand,
};

/// A request that workers can be sent.
pub trait CallRequest {
    /// Returns whether the request samples: consecutive failed samples make a worker unhealthy.
    fn is_sample(&self) -> bool {
        false
    }

    /// Returns whether workers report progress with it. Such a call has a lease, which expires without progress.
    fn reports_progress(&self) -> bool {
        false
    }
}

impl CallRequest for WorkerCommand {
    fn is_sample(&self) -> bool {
        Self::is_sample(self)
    }

    fn reports_progress(&self) -> bool {
        Self::reports_progress(self)
    }
}

/// A request, the workers it is for, and how long to wait for their answers.
///
/// ```
/// use rollmesh_core::{calls::ForEach, ids::WorkerId, time::Micros, worker::WorkerCommand};
///
/// // For all healthy workers, without a timeout.
/// let ping = ForEach::new(WorkerCommand::Ping);
/// // For these two, healthy or not; results of those that answer within a second.
/// let sample = ForEach::new(WorkerCommand::Sample)
///     .workers([WorkerId(1), WorkerId(2)])
///     .healthy_only(false)
///     .timeout(Micros::from_secs(1));
/// ```
#[derive(Clone, Debug)]
pub struct ForEach<R> {
    requests: Requests<R>,
    workers: Option<Vec<WorkerId>>,
    healthy_only: bool,
    timeout: Option<Micros>,
    mark_healthy: bool,
}

#[derive(Clone, Debug)]
enum Requests<R> {
    Same(Arc<R>),
    Each(Vec<Arc<R>>),
}

impl<R> ForEach<R> {
    /// Sends the same request to every worker.
    pub fn new(request: impl Into<Arc<R>>) -> Self {
        Self::of(Requests::Same(request.into()))
    }

    /// Sends each worker its own request: one per id, in the order of the ids. Without [`workers`](Self::workers), unhealthy
    /// workers count, too, and their requests are skipped.
    pub fn each<Q: Into<Arc<R>>>(requests: impl IntoIterator<Item = Q>) -> Self {
        Self::of(Requests::Each(requests.into_iter().map(Into::into).collect()))
    }

    fn of(requests: Requests<R>) -> Self {
        Self { requests, workers: None, healthy_only: true, timeout: None, mark_healthy: false }
    }

    /// Restricts the call to these workers. An id that occurs twice is called twice; an empty list calls no worker.
    #[doc(alias("remote_worker_ids", "remote_actor_ids"))]
    #[must_use]
    pub fn workers(self, workers: impl Into<Vec<WorkerId>>) -> Self {
        Self { workers: Some(workers.into()), ..self }
    }

    /// Includes unhealthy workers if `healthy_only` is false.
    #[must_use]
    pub fn healthy_only(self, healthy_only: bool) -> Self {
        Self { healthy_only, ..self }
    }

    /// Limits the time to wait for answers. With 0 the caller does not wait: workers do the calls and their results are
    /// discarded. Ignored by asynchronous calls.
    #[doc(alias = "timeout_seconds")]
    #[must_use]
    pub fn timeout(self, timeout: impl Into<Option<Micros>>) -> Self {
        Self { timeout: timeout.into(), ..self }
    }

    /// Marks every worker that answers as healthy. Asynchronous calls take this option [when they are
    /// fetched](CallManager::fetch_ready_async) instead.
    #[must_use]
    pub fn mark_healthy(self, mark_healthy: bool) -> Self {
        Self { mark_healthy, ..self }
    }
}

/// The reason why no call started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForEachError {
    /// No worker has this id.
    #[error("there is no worker {0}; ids begin with 1, and those of workers that were removed are not used again")]
    UnknownWorker(WorkerId),
    /// The number of requests differs from the number of ids.
    #[error("{requests} requests were given for {workers} workers: give one for all, or one for each")]
    Requests {
        /// Number of requests.
        requests: usize,
        /// Number of ids.
        workers: usize,
    },
    /// The worker is disconnected.
    #[error("worker {0} is not there: it cannot be healthy before it is back")]
    NotThere(WorkerId),
}

impl<R: CallRequest, T> CallManager<R, T> {
    /// Starts calls and waits for their answers, which [`poll_results`](Self::poll_results) returns.
    ///
    /// # Errors
    /// [`ForEachError`] for an unknown id, or if there are more or fewer requests than ids: no call starts then.
    #[doc(alias("foreach_actor", "foreach_worker", "foreach_worker_with_id"))]
    pub fn foreach(&mut self, what: ForEach<R>, now: Micros) -> Result<CallSetId, ForEachError> {
        let id = self.next_set;
        let is_awaited = what.timeout != Some(Micros(0));
        let mut set = CallSet::new(what.timeout.map(|timeout| now + timeout), what.mark_healthy);
        for (worker, request) in self.targets(what)? {
            if let Err(error) = self.may_begin(worker) {
                set.add(worker, Some(Err(error)));
            } else if is_awaited {
                let place = set.add(worker, None);
                self.begin(worker, request, Whose::Set(id, place), now);
            } else {
                self.counters.forgotten += 1;
                self.begin(worker, request, Whose::Forgotten, now);
            }
        }
        self.next_set = CallSetId(id.0 + 1);
        if is_awaited {
            self.forget_complete();
            self.sets.insert(id, set);
        }
        debug_assert!(self.is_consistent());
        Ok(id)
    }

    /// Starts calls without waiting; [`fetch_ready_async`](Self::fetch_ready_async) returns their answers. Skips workers
    /// that have as many asynchronous calls in flight as the limit allows. Returns the number of calls that started.
    ///
    /// # Errors
    /// As [`foreach`](Self::foreach).
    #[doc(alias("foreach_actor_async", "foreach_worker_async"))]
    pub fn foreach_async(&mut self, what: ForEach<R>, tag: Option<&str>, now: Micros) -> Result<usize, ForEachError> {
        let tag: Option<Arc<str>> = tag.map(Into::into);
        let mut begun = 0;
        for (worker, request) in self.targets(what)? {
            let is_below_limit =
                self.workers.get(&worker).is_some_and(|known| known.in_flight < self.config.max_in_flight);
            if !is_below_limit || self.may_begin(worker).is_err() {
                self.counters.not_begun += 1;
                continue;
            }
            self.begin(worker, request, Whose::Async(tag.clone()), now);
            if let Some(known) = self.workers.get_mut(&worker) {
                known.in_flight += 1;
            }
            begun += 1;
        }
        debug_assert!(self.is_consistent());
        Ok(begun)
    }

    /// Sends a request to the unhealthy workers to find out which ones are alive. Their answers are
    /// [results](Self::poll_results) as usual: a worker that answers can be given its state again. With `mark_healthy` an
    /// answer makes the worker healthy immediately; otherwise call [`set_worker_state`](Self::set_worker_state).
    #[doc(alias("probe_unhealthy_actors", "probe_unhealthy_workers"))]
    pub fn probe_unhealthy(
        &mut self,
        ping: impl Into<Arc<R>>,
        timeout: Option<Micros>,
        mark_healthy: bool,
        now: Micros,
    ) -> CallSetId {
        let workers: Vec<WorkerId> = self.unhealthy_worker_ids().collect();
        let what = ForEach::new(ping).workers(workers).healthy_only(false).timeout(timeout).mark_healthy(mark_healthy);
        // All ids are known and there is one request for all, so this cannot fail.
        self.foreach(what, now).unwrap_or_default()
    }

    /// Returns the workers to call with their requests, in the order of the ids.
    fn targets(&self, what: ForEach<R>) -> Result<Vec<(WorkerId, Arc<R>)>, ForEachError> {
        let ids = what.workers.unwrap_or_else(|| self.workers.keys().copied().collect());
        ids.iter().try_for_each(|&id| self.check_known(id))?;
        let requests = match what.requests {
            Requests::Same(request) => vec![request; ids.len()],
            Requests::Each(requests) if requests.len() == ids.len() => requests,
            Requests::Each(requests) => {
                return Err(ForEachError::Requests { requests: requests.len(), workers: ids.len() });
            }
        };
        let is_asked = |id: &WorkerId| !what.healthy_only || self.workers.get(id).is_some_and(|known| known.is_healthy);
        let mut targets: Vec<_> = ids.into_iter().zip(requests).filter(|(id, _)| is_asked(id)).collect();
        targets.sort_by_key(|(id, _)| *id);
        Ok(targets)
    }

    fn may_begin(&self, worker: WorkerId) -> Result<(), CallError> {
        match self.workers.get(&worker) {
            Some(known) if known.waiting.len() >= Self::MAX_WAITING => Err(CallError::Busy(known.waiting.len())),
            Some(known) if known.is_there => Ok(()),
            _ => Err(CallError::NotThere),
        }
    }

    fn begin(&mut self, worker: WorkerId, request: Arc<R>, whose: Whose, now: Micros) {
        let call = self.next_call;
        let Some(known) = self.workers.get_mut(&worker) else { return };
        self.next_call = CallId(call.0 + 1);
        let (is_sample, reports_progress) = (request.is_sample(), request.reports_progress());
        known.begin(Waiting { call, is_sample, reports_progress, whose }, now);
        self.commands.push_back(CallCommand { worker, call, request });
        self.counters.started += 1;
    }

    /// Drops the oldest complete sets that were never taken.
    fn forget_complete(&mut self) {
        if self.sets.len() < Self::MAX_COMPLETE {
            return;
        }
        let oldest = self.sets.iter().find(|(_, set)| set.is_complete()).map(|(&id, _)| id);
        if let Some(oldest) = oldest {
            self.sets.remove(&oldest);
        }
    }
}

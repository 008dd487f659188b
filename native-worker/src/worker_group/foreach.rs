//! Calls to all workers, waiting for their answers.

use std::time::Duration;

use rollmesh_core::{
    calls::{CallError, ForEach, ForEachError},
    ids::{CallSetId, WorkerId},
};

use super::{
    GroupError, LOCAL_WORKER, WorkerGroup, WorkerTask,
    setup::raised,
    task::{self, Request},
};

/// The workers to call, and the time to wait for them.
///
/// ```
/// use std::time::Duration;
///
/// use rollmesh::worker_group::ForEachWorker;
/// use rollmesh_core::ids::WorkerId;
///
/// // By default the local worker, then all that are healthy, with all the time in the world.
/// let two = ForEachWorker::default().remote_workers([WorkerId(1), WorkerId(2)]).timeout(Duration::from_secs(1));
/// assert!(two.local_worker && two.healthy_only);
/// assert!(!ForEachWorker::remote().local_worker);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForEachWorker {
    /// True if the local worker is called, before all others.
    pub local_worker: bool,
    /// True if only healthy workers are called.
    pub healthy_only: bool,
    /// The remote workers to call, in any order; a repeated id is called repeatedly. `None` for all.
    pub remote_worker_ids: Option<Vec<WorkerId>>,
    /// The time to wait for the remote workers. With 0 the answers are not collected.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Option<Duration>,
    /// True to mark workers that answer as healthy.
    pub mark_healthy: bool,
}

impl Default for ForEachWorker {
    fn default() -> Self {
        Self { local_worker: true, healthy_only: true, remote_worker_ids: None, timeout: None, mark_healthy: false }
    }
}

impl ForEachWorker {
    /// Selects all workers but the local one.
    #[must_use]
    pub fn remote() -> Self {
        Self { local_worker: false, ..Self::default() }
    }

    /// Selects these workers and the local one.
    #[must_use]
    pub fn remote_workers(self, ids: impl Into<Vec<WorkerId>>) -> Self {
        Self { remote_worker_ids: Some(ids.into()), ..self }
    }

    /// Excludes the local worker.
    #[must_use]
    pub fn without_local(self) -> Self {
        Self { local_worker: false, ..self }
    }

    /// Includes unhealthy workers.
    #[must_use]
    pub fn unhealthy_too(self) -> Self {
        Self { healthy_only: false, ..self }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Marks workers that answer as healthy.
    #[must_use]
    pub fn mark_healthy(self) -> Self {
        Self { mark_healthy: true, ..self }
    }
}

/// A worker's answer, or the error of its call.
#[doc(alias = "ResultOrError")]
pub type WorkerResult<A> = (WorkerId, Result<A, CallError>);

/// Calls whose results are taken later.
#[derive(Debug)]
#[doc(alias = "ObjectRef")]
#[must_use]
pub struct WorkerRefs(CallSetId);

impl WorkerGroup {
    /// Calls the local worker and all healthy remote workers, and returns their answers: the local one's first, then by id.
    ///
    /// A failure is returned as an error, unless [`ignore_worker_failures`](super::FailureSettings::ignore_worker_failures)
    /// is set; either way its worker stays healthy. Workers that are lost meanwhile have no answer, and become unhealthy.
    ///
    /// # Errors
    /// [`GroupError::Worker`], [`GroupError::NotInProcess`]; [`GroupError::NotSetUp`] if a
    /// [stopper](super::GroupStopper) stops the group.
    #[doc(alias = "foreach_env_runner")]
    pub fn foreach_worker<T: WorkerTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        self.foreach_worker_with(&ForEachWorker::default(), task)
    }

    /// Works like [`foreach_worker`](Self::foreach_worker), for selected workers.
    ///
    /// # Errors
    /// As there; [`GroupError::ForEach`] for an unknown id.
    pub fn foreach_worker_with<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        task: T,
    ) -> Result<Vec<T::Answer>, GroupError> {
        let said = self.ask(options, Self::same(task))?;
        Ok(self.settle::<T>(said)?.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Calls each worker with a task made from its id; the local one's is 0.
    ///
    /// # Errors
    /// As [`foreach_worker_with`](Self::foreach_worker_with).
    pub fn foreach_worker_with_id<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        mut task: impl FnMut(WorkerId) -> T,
    ) -> Result<Vec<(WorkerId, T::Answer)>, GroupError> {
        let said = self.ask(options, |id| task::shared(task(id)))?;
        self.settle::<T>(said)
    }

    /// Calls one worker, and returns its answer; the local one's id is 0. Its failure is an error in any case.
    ///
    /// # Errors
    /// [`GroupError::Worker`] for a failure, [`GroupError::Call`] if the worker is lost before it answers,
    /// [`GroupError::Unhealthy`], [`GroupError::NoLocalWorker`], [`GroupError::NotSetUp`], [`GroupError::NotInProcess`];
    /// [`GroupError::ForEach`] for an unknown id.
    pub fn call_worker<T: WorkerTask>(&mut self, worker: WorkerId, task: T) -> Result<T::Answer, GroupError> {
        let options = match worker {
            LOCAL_WORKER => ForEachWorker::default().remote_workers([]),
            id => ForEachWorker::remote().remote_workers([id]),
        };
        match self.ask(&options, Self::same(task))?.pop() {
            Some((_, Ok(answer))) => T::read(answer).ok_or(GroupError::OtherAnswer(worker)),
            Some((_, Err(error))) => Err(raised(worker, error)),
            None if self.is_stopped => Err(GroupError::NotSetUp),
            None if worker == LOCAL_WORKER => Err(GroupError::NoLocalWorker("the call")),
            None => Err(GroupError::Unhealthy(worker)),
        }
    }

    /// Calls each remote worker with a task of its own: as many tasks as there are ids, including unhealthy workers, whose
    /// tasks are skipped.
    ///
    /// # Errors
    /// As [`foreach_worker_with`](Self::foreach_worker_with); [`ForEachError::Requests`] for too many or too few.
    pub fn foreach_worker_each<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        tasks: Vec<T>,
    ) -> Result<Vec<(WorkerId, T::Answer)>, GroupError> {
        let workers = options.remote_worker_ids.as_ref().map_or(self.members.len(), Vec::len);
        if tasks.len() != workers {
            return Err(ForEachError::Requests { requests: tasks.len(), workers }.into());
        }
        let mut tasks = tasks.into_iter();
        let options = options.clone().without_local();
        let mut next = |_| match tasks.next() {
            Some(task) => task::shared(task),
            // There are exactly as many tasks as workers, checked above.
            None => std::sync::Arc::new(rollmesh_core::worker::WorkerCommand::Ping.into()),
        };
        let said = self.ask(&options, &mut next)?;
        self.settle::<T>(said)
    }

    /// Returns every worker's result, including failures and losses. The only errors are those that prevented the calls.
    ///
    /// # Errors
    /// [`GroupError::NotInProcess`], [`GroupError::ForEach`]; [`GroupError::NotSetUp`] if a
    /// [stopper](super::GroupStopper) stops the group.
    #[doc(alias = "RemoteCallResults")]
    pub fn try_foreach_worker<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        mut task: impl FnMut(WorkerId) -> T,
    ) -> Result<Vec<WorkerResult<T::Answer>>, GroupError> {
        let said = self.ask(options, |id| task::shared(task(id)))?;
        let read = |(id, result): (WorkerId, Result<_, _>)| match result {
            Ok(answer) => T::read(answer).map(|answer| (id, Ok(answer))).ok_or(GroupError::OtherAnswer(id)),
            Err(error) => Ok((id, Err(error))),
        };
        said.into_iter().map(read).collect()
    }

    /// Calls remote workers and returns a handle, with which the caller can [take](Self::take_results) the answers later.
    ///
    /// # Errors
    /// [`GroupError::LocalRefs`] unless the local worker is left out; as [`foreach_worker_with`](Self::foreach_worker_with).
    #[doc(alias = "return_obj_refs")]
    pub fn foreach_worker_refs<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        task: T,
    ) -> Result<WorkerRefs, GroupError> {
        if options.local_worker && self.local.is_some() {
            return Err(GroupError::LocalRefs);
        }
        self.take_notifications();
        self.check_stopper()?;
        let what: ForEach<Request> = self.what(options, &mut Self::same(task))?;
        let set = self.manager.foreach(what, self.now())?;
        self.pump();
        Ok(WorkerRefs(set))
    }

    /// Waits for the answers of earlier calls and returns them.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    #[doc(alias = "ray.get")]
    pub fn take_results<T: WorkerTask>(&mut self, refs: WorkerRefs) -> Result<Vec<(WorkerId, T::Answer)>, GroupError> {
        self.check_stopper()?;
        let said = self.wait_for_set(refs.0)?;
        self.settle::<T>(said)
    }
}

//! Asking all workers, and waiting for what they answer.

use std::time::Duration;

use rollmesh_core::{
    calls::{CallError, CallResult, ForEach, ForEachError},
    ids::{CallSetId, WorkerId},
};

use super::{
    GroupError, WorkerGroup, WorkerTask,
    task::{self, Request},
};

/// Whom to ask, and how long to wait.
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
    /// Whether the local worker is asked, before all others.
    pub local_worker: bool,
    /// Whether only healthy workers are asked.
    pub healthy_only: bool,
    /// Those who are asked, in any order, and twice if they are there twice; none for all.
    pub remote_worker_ids: Option<Vec<WorkerId>>,
    /// How long to wait for the others; with 0 nobody hears what becomes of the calls.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Option<Duration>,
    /// Whether whoever answers is healthy from then on.
    pub mark_healthy: bool,
}

impl Default for ForEachWorker {
    fn default() -> Self {
        Self { local_worker: true, healthy_only: true, remote_worker_ids: None, timeout: None, mark_healthy: false }
    }
}

impl ForEachWorker {
    /// All but the local worker.
    #[must_use]
    pub fn remote() -> Self {
        Self { local_worker: false, ..Self::default() }
    }

    /// Asks these and the local worker.
    #[must_use]
    pub fn remote_workers(self, ids: impl Into<Vec<WorkerId>>) -> Self {
        Self { remote_worker_ids: Some(ids.into()), ..self }
    }

    /// Leaves the local worker out.
    #[must_use]
    pub fn without_local(self) -> Self {
        Self { local_worker: false, ..self }
    }

    /// Asks unhealthy workers, too.
    #[must_use]
    pub fn unhealthy_too(self) -> Self {
        Self { healthy_only: false, ..self }
    }

    /// Waits no longer than this.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Whoever answers is healthy from then on.
    #[must_use]
    pub fn mark_healthy(self) -> Self {
        Self { mark_healthy: true, ..self }
    }
}

/// What a worker said, or why it did not.
#[doc(alias = "ResultOrError")]
pub type WorkerResult<A> = (WorkerId, Result<A, CallError>);

/// Calls whose results are taken later.
#[derive(Debug)]
#[doc(alias = "ObjectRef")]
#[must_use]
pub struct WorkerRefs(CallSetId);

impl WorkerGroup {
    /// Asks the local worker and all that are healthy, and gives their answers: the local one's first, then by id.
    ///
    /// A failure is raised, unless [`ignore_worker_failures`](super::FailureSettings::ignore_worker_failures) is set;
    /// either way its worker stays healthy. Workers that are lost meanwhile have no answer, and are unhealthy.
    ///
    /// # Errors
    /// [`GroupError::Worker`], [`GroupError::NotInProcess`].
    #[doc(alias = "foreach_env_runner")]
    pub fn foreach_worker<T: WorkerTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        self.foreach_worker_with(&ForEachWorker::default(), task)
    }

    /// [`foreach_worker`](Self::foreach_worker), of whom one likes.
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

    /// Asks each worker what is made of its id; that of the local one is 0.
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

    /// Asks each of the remote workers something else: as many tasks as there are ids, unhealthy ones included, whose
    /// tasks are passed over.
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
            // They were counted.
            None => std::sync::Arc::new(rollmesh_core::worker::WorkerCommand::Ping.into()),
        };
        let said = self.ask(&options, &mut next)?;
        self.settle::<T>(said)
    }

    /// What every worker said, failures and losses included. Nothing is raised but what kept the group from asking.
    ///
    /// # Errors
    /// [`GroupError::NotInProcess`], [`GroupError::ForEach`].
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

    /// Asks remote workers, and lets the caller [take](Self::take_results) what they answer later.
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
        self.take_news();
        let what: ForEach<Request> = self.what(options, &mut Self::same(task))?;
        let set = self.manager.foreach(what, self.now())?;
        self.pump();
        Ok(WorkerRefs(set))
    }

    /// Takes what was asked for before; waits for it.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    #[doc(alias = "ray.get")]
    pub fn take_results<T: WorkerTask>(&mut self, refs: WorkerRefs) -> Result<Vec<(WorkerId, T::Answer)>, GroupError> {
        let results = self.wait_for_set(refs.0);
        let said = results.into_iter().map(|CallResult { worker, result, .. }| (worker, result)).collect();
        self.settle::<T>(said)
    }
}

//! The single call path of all methods: the local worker is called first, in this thread, then the remote workers in the
//! order of their ids.

use std::{sync::Arc, time::Duration};

use rollmesh_core::{
    calls::{CallError, CallResult, ForEach},
    ids::{CallSetId, WorkerId},
    time::Micros,
};

use super::{
    ForEachWorker, GroupError, LOCAL_WORKER, SharedRequest, WorkerGroup, WorkerTask, setup::raised, task,
    task::TaskAnswer, thread::guarded,
};

/// The result of each worker.
pub(super) type TaskAnswers = Vec<(WorkerId, Result<TaskAnswer, CallError>)>;

impl WorkerGroup {
    /// Calls all selected workers; `request` makes each worker's request.
    pub(super) fn ask(
        &mut self,
        options: &ForEachWorker,
        mut request: impl FnMut(WorkerId) -> SharedRequest,
    ) -> Result<TaskAnswers, GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        let what = self.what(options, &mut request)?;
        let mut said = TaskAnswers::new();
        if options.local_worker
            && let Some(local) = &mut self.local
        {
            let request = request(LOCAL_WORKER);
            // A panic becomes an error, as in remote workers.
            let answer = guarded(|| task::run(LOCAL_WORKER, local, &request)).map_err(CallError::Failed);
            let failed = answer.is_err();
            said.push((LOCAL_WORKER, answer));
            if failed && !self.plan.failures.ignore_worker_failures {
                // The remote workers are not called, as after an error in the caller.
                return Ok(said);
            }
        }
        said.extend(self.call(what)?);
        Ok(said)
    }

    /// Builds the call manager's request from the options.
    pub(super) fn what(
        &mut self,
        options: &ForEachWorker,
        request: &mut dyn FnMut(WorkerId) -> SharedRequest,
    ) -> Result<ForEach<task::Request>, GroupError> {
        let ids = match &options.remote_worker_ids {
            Some(ids) => ids.clone(),
            None => self.members.keys().copied().collect(),
        };
        let requests: Vec<SharedRequest> = ids.iter().map(|&id| request(id)).collect();
        let abroad = ids.iter().zip(&requests).find(|(id, request)| {
            request.is_code() && self.members.get(id).is_some_and(|member| member.seat().is_some())
        });
        if let Some((&id, _)) = abroad {
            return Err(GroupError::NotInProcess(id));
        }
        Ok(ForEach::each(requests)
            .workers(ids)
            .healthy_only(options.healthy_only)
            .timeout(options.timeout.map(Micros::from))
            .mark_healthy(options.mark_healthy))
    }

    /// Calls the given workers, healthy or not, with an untyped request.
    pub(super) fn ask_these(
        &mut self,
        ids: &[WorkerId],
        request: SharedRequest,
        timeout: Duration,
    ) -> Result<TaskAnswers, GroupError> {
        self.call(ForEach::new(request).workers(ids).healthy_only(false).timeout(Micros::from(timeout)))
    }

    /// Calls remote workers, and waits for their results.
    pub(super) fn call(&mut self, what: ForEach<task::Request>) -> Result<TaskAnswers, GroupError> {
        let set = self.manager.foreach(what, self.now())?;
        self.wait_for_set(set)
    }

    /// Waits for the results of a call set.
    ///
    /// # Errors
    /// [`GroupError::NotSetUp`] if the group is stopped meanwhile.
    pub(super) fn wait_for_set(&mut self, set: CallSetId) -> Result<TaskAnswers, GroupError> {
        self.pump();
        let mut results = None;
        // A call set always ends, by its timeout or because its workers are lost.
        self.wait_until(None, |group| {
            results = group.manager.poll_results(set);
            results.is_some()
        })?;
        Ok(results.into_iter().flatten().map(|CallResult { worker, result, .. }| (worker, result)).collect())
    }

    /// Returns the answers that arrived. Failures are returned as an error unless they are to be ignored; workers that were
    /// lost have no answer and are marked unhealthy.
    pub(super) fn settle<T: WorkerTask>(
        &mut self,
        said: TaskAnswers,
    ) -> Result<Vec<(WorkerId, T::Answer)>, GroupError> {
        let mut answers = Vec::new();
        for (worker, result) in said {
            match result {
                Ok(answer) => answers.push((worker, T::read(answer).ok_or(GroupError::OtherAnswer(worker))?)),
                Err(CallError::Failed(error)) if self.plan.failures.ignore_worker_failures => {
                    self.notice(format_args!("worker {worker}: {error}"));
                }
                Err(error @ (CallError::Failed(_) | CallError::Busy(_))) => return Err(raised(worker, error)),
                Err(error) => self.notice(format_args!("worker {worker}: {error}")),
            }
        }
        Ok(answers)
    }

    /// Returns a request function that shares one request among all workers.
    pub(super) fn same(task: impl WorkerTask) -> impl FnMut(WorkerId) -> SharedRequest {
        let request = task::shared(task);
        move |_| Arc::clone(&request)
    }
}

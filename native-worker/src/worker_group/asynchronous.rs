//! Asynchronous calls to workers.

use std::time::Duration;

use rollmesh_core::{
    calls::{CallError, CallResult},
    ids::WorkerId,
};

use super::{ForEachWorker, GroupError, TaskAnswer, WorkerGroup, WorkerTask, setup::raised, task};

/// The selection of answers to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetch<'a> {
    /// Only answers of calls with one of these tags; all if empty.
    pub tags: &'a [&'a str],
    /// The time to wait for them; by default only answers that have arrived are fetched.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Duration,
    /// True to mark workers that have answered as healthy.
    pub mark_healthy: bool,
}

impl WorkerGroup {
    /// Calls remote workers without waiting, and returns the number of calls that began. Workers with the
    /// [maximum](super::FailureSettings::max_in_flight) number of calls in flight are skipped.
    /// [`fetch_ready_async_reqs`](Self::fetch_ready_async_reqs) returns the answers.
    ///
    /// # Errors
    /// [`GroupError::ForEach`], [`GroupError::NotInProcess`]; [`GroupError::NotSetUp`] if a
    /// [stopper](super::GroupStopper) stops the group.
    #[doc(alias("foreach_env_runner_async", "foreach_actor_async"))]
    pub fn foreach_worker_async<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        task: T,
        tag: Option<&str>,
    ) -> Result<usize, GroupError> {
        let request = task::shared(task);
        self.begin_async(options, |_| request.clone(), tag)
    }

    /// Works like [`foreach_worker_async`](Self::foreach_worker_async), with a task made from each worker's id.
    ///
    /// # Errors
    /// As there.
    pub fn foreach_worker_with_id_async<T: WorkerTask>(
        &mut self,
        options: &ForEachWorker,
        mut task: impl FnMut(WorkerId) -> T,
        tag: Option<&str>,
    ) -> Result<usize, GroupError> {
        self.begin_async(options, |id| task::shared(task(id)), tag)
    }

    fn begin_async(
        &mut self,
        options: &ForEachWorker,
        mut request: impl FnMut(WorkerId) -> super::SharedRequest,
        tag: Option<&str>,
    ) -> Result<usize, GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        let what = self.what(options, &mut request)?;
        let begun = self.manager.foreach_async(what, tag, self.now())?;
        self.pump();
        Ok(begun)
    }

    /// Returns the answers of asynchronous calls that have not been fetched yet, in order of arrival. Failures are returned
    /// as an error unless they are to be ignored; other answers are not lost by that, the next call returns them. Workers
    /// that were lost have no answers.
    ///
    /// # Errors
    /// [`GroupError::Worker`]; [`GroupError::NotSetUp`] if a [stopper](super::GroupStopper) stops the group.
    #[doc(alias("fetch_ready", "async_fetch_ready"))]
    pub fn fetch_ready_async_reqs(&mut self, fetch: &Fetch<'_>) -> Result<Vec<(WorkerId, TaskAnswer)>, GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        if !fetch.timeout.is_zero() {
            self.wait_until(Some(fetch.timeout), |group| group.manager.num_pending_async(fetch.tags) == 0)?;
        }
        let is_wanted = |result: &CallResult<TaskAnswer>| {
            fetch.tags.is_empty() || result.tag.as_deref().is_some_and(|tag| fetch.tags.contains(&tag))
        };
        // Answers that arrived together with a failure come first.
        let (mut answers, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.fetched).into_iter().partition(is_wanted);
        self.fetched = others;
        let mut failure = None;
        for ready in self.manager.fetch_ready_async(fetch.tags, fetch.mark_healthy) {
            match ready.result {
                Ok(_) => answers.push(ready),
                Err(error @ CallError::Failed(_))
                    if !self.plan.failures.ignore_worker_failures && failure.is_none() =>
                {
                    failure = Some(raised(ready.worker, error));
                }
                Err(error) => self.notice(format_args!("worker {}: {error}", ready.worker)),
            }
        }
        match failure {
            Some(failure) => {
                self.fetched.append(&mut answers);
                Err(failure)
            }
            None => Ok(answers
                .into_iter()
                .filter_map(|CallResult { worker, result, .. }| Some((worker, result.ok()?)))
                .collect()),
        }
    }

    /// Returns the number of asynchronous calls that were begun and not fetched.
    #[must_use]
    pub fn num_in_flight_async_reqs(&self) -> usize {
        self.manager.num_in_flight_async()
    }
}

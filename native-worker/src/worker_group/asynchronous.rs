//! Asking without waiting.

use std::time::Duration;

use rollmesh_core::{
    calls::{CallError, CallResult},
    ids::WorkerId,
};

use super::{ForEachWorker, GroupError, TaskAnswer, WorkerGroup, WorkerTask, setup::raised, task};

/// Which answers to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetch<'a> {
    /// Those of calls with one of these tags; of all, without any.
    pub tags: &'a [&'a str],
    /// How long to wait for them; by default only what is there is fetched.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Duration,
    /// Whether whoever has answered is healthy from then on.
    pub mark_healthy: bool,
}

impl WorkerGroup {
    /// Asks remote workers without waiting, and says how many calls began. Workers that have as many in flight as they
    /// [may](super::FailureSettings::max_in_flight) are passed over. [`fetch_ready_async_reqs`](Self::fetch_ready_async_reqs)
    /// has the answers.
    ///
    /// # Errors
    /// [`GroupError::ForEach`], [`GroupError::NotInProcess`].
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

    /// [`foreach_worker_async`](Self::foreach_worker_async), and each is asked what is made of its id.
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
        mut request: impl FnMut(WorkerId) -> super::Shared,
        tag: Option<&str>,
    ) -> Result<usize, GroupError> {
        self.take_news();
        let what = self.what(options, &mut request)?;
        let begun = self.manager.foreach_async(what, tag, self.now())?;
        self.pump();
        Ok(begun)
    }

    /// Answers of asynchronous calls that nobody has fetched, in the order in which they came. Failures are raised unless
    /// they are to be ignored, but none of the other answers is lost by that: they are there at the next call. Of workers
    /// that were lost there are no answers.
    ///
    /// # Errors
    /// [`GroupError::Worker`].
    #[doc(alias("fetch_ready", "async_fetch_ready"))]
    pub fn fetch_ready_async_reqs(&mut self, fetch: &Fetch<'_>) -> Result<Vec<(WorkerId, TaskAnswer)>, GroupError> {
        self.take_news();
        if !fetch.timeout.is_zero() {
            self.wait_until(Some(fetch.timeout), |group| group.manager.num_pending_async(fetch.tags) == 0);
        }
        let is_wanted = |result: &CallResult<TaskAnswer>| {
            fetch.tags.is_empty() || result.tag.as_deref().is_some_and(|tag| fetch.tags.contains(&tag))
        };
        // Those that came along with a failure come first.
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

    /// Asynchronous calls that were begun and not fetched.
    #[must_use]
    pub fn num_in_flight_async_reqs(&self) -> usize {
        self.manager.num_in_flight_async()
    }
}

//! Samples in flight: the workers that make them and their weights, the results, and the queue.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rollmesh_core::{
    batch::AnyBatch,
    calls::{CallError, ForEach},
    ids::{CallSetId, WeightsVersion, WorkerId},
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{GroupError, ParallelSample, Request, SampleCounters, TaskAnswer, WorkerGroup, setup::raised};

/// The time to wait for a sample before checking for an interruption.
const INTERRUPTION_SPAN: Duration = Duration::from_millis(50);

/// The samples of all remote workers.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Version of the latest weights: the number of syncs.
    pub(super) newest: WeightsVersion,
    asked: BTreeMap<WorkerId, PendingSample>,
    /// In the order in which they are handed over.
    made: VecDeque<ReceivedSample>,
    counters: SampleCounters,
    /// The latest failure.
    last_failure: Option<String>,
}

/// A sample in progress.
#[derive(Debug)]
struct PendingSample {
    set: CallSetId,
    weights: WeightsVersion,
    /// True if other samples of the same round have been handed over without it.
    is_late: bool,
}

/// A received sample that has not been handed over.
#[derive(Debug)]
struct ReceivedSample {
    weights: WeightsVersion,
    is_late: bool,
    batch: AnyBatch,
}

/// The outcome of a sample; `result` is `None` if the worker's calls were dropped.
pub(super) struct Came {
    worker: WorkerId,
    asked: PendingSample,
    result: Option<Result<TaskAnswer, CallError>>,
}

impl Samples {
    /// Returns the ledger.
    pub(super) fn counters(&self) -> SampleCounters {
        SampleCounters { outstanding: self.asked.len() as u64, queued: self.made.len() as u64, ..self.counters }
    }

    /// Returns true while samples are in progress.
    pub(super) fn is_any_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Counts the worker's sample in progress, if there is one, as lost.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.counters.lost += u64::from(self.asked.remove(&worker).is_some());
    }

    fn ask(&mut self, worker: WorkerId, set: CallSetId, weights: WeightsVersion) {
        self.asked.insert(worker, PendingSample { set, weights, is_late: false });
        self.counters.granted += 1;
    }

    fn commit(&mut self, asked: &PendingSample, batch: AnyBatch) {
        self.made.push_back(ReceivedSample { weights: asked.weights, is_late: asked.is_late, batch });
        self.counters.committed += 1;
    }

    /// Drops samples whose weights are more than `max_staleness` versions older than the latest.
    pub(super) fn drop_stale(&mut self, max_staleness: u64) {
        let before = self.made.len();
        let newest = self.newest.0;
        self.made.retain(|made| newest.saturating_sub(made.weights.0) <= max_staleness);
        self.counters.dropped_stale += (before - self.made.len()) as u64;
    }

    /// Returns the queued samples.
    pub(super) fn made(&self) -> impl ExactSizeIterator<Item = &AnyBatch> {
        self.made.iter().map(|made| &made.batch)
    }

    /// Returns the number of queued env steps.
    pub(super) fn env_steps(&self) -> u64 {
        self.made().map(|batch| batch.env_steps() as u64).sum()
    }

    /// Removes and returns the first queued samples, until they have this many env steps.
    pub(super) fn take(&mut self, env_steps: u64) -> Vec<AnyBatch> {
        let (mut batches, mut taken) = (Vec::new(), 0);
        while taken < env_steps
            && let Some(ReceivedSample { is_late, batch, .. }) = self.made.pop_front()
        {
            taken += batch.env_steps() as u64;
            self.counters.consumed += 1;
            self.counters.carried += u64::from(is_late);
            batches.push(batch);
        }
        self.asked.values_mut().for_each(|asked| asked.is_late = true);
        debug_assert!(self.counters().balances(), "{:?}", self.counters());
        batches
    }

    pub(super) fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }
}

impl WorkerGroup {
    /// Requests a sample from every healthy worker that has none in progress. Returns whether any worker makes one
    /// then.
    pub(super) fn begin_samples(&mut self) -> Result<bool, GroupError> {
        for worker in self.healthy_worker_ids() {
            let Some(member) = self.members.get(&worker).filter(|_| !self.samples.asked.contains_key(&worker)) else {
                continue;
            };
            let weights = member.weights;
            let sample = ForEach::new(Request::from(WorkerCommand::Sample)).workers([worker]);
            let set = self.manager.foreach(sample, self.now())?;
            self.samples.ask(worker, set, weights);
        }
        self.pump();
        Ok(self.samples.is_any_asked())
    }

    /// Waits until all samples in progress are done, or any is, and queues the results by worker; all successful ones,
    /// even if others have failed.
    ///
    /// # Errors
    /// The first failure, unless failures are to be ignored.
    pub(super) fn wait_for_samples(&mut self, timeout: Option<Duration>, all: bool) -> Result<(), GroupError> {
        let mut came = Vec::new();
        let waited = self.wait_until(timeout, |group| {
            came.extend(group.poll_samples());
            !group.samples.is_any_asked() || (!all && !came.is_empty())
        });
        self.take_all_in(came)?;
        waited.map(|_| ())
    }

    /// Samples like [`synchronous_parallel_sample`](Self::synchronous_parallel_sample), or returns `None` once
    /// `is_interrupted` returns true. The next call of any method that samples returns the samples that were made until
    /// then.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn sample_unless(
        &mut self,
        env_steps: usize,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<Option<Vec<AnyBatch>>, GroupError> {
        let sample = ParallelSample::env_steps(env_steps);
        let mut batches = Vec::new();
        while self.members.is_empty() {
            if is_interrupted() {
                return Ok(None);
            }
            batches.extend(self.watch_local(|worker| worker.sample_within(INTERRUPTION_SPAN.into()))?);
            if !batches.is_empty() && sample.is_enough(batches.iter()) {
                return Ok(Some(batches));
            }
        }
        loop {
            self.take_notifications();
            if !self.begin_samples()? {
                return Err(self.no_worker());
            }
            let mut came = Vec::new();
            let mut have_all_come = |group: &mut Self| {
                came.extend(group.poll_samples());
                !group.samples.is_any_asked()
            };
            let mut waited = Ok(false);
            while matches!(waited, Ok(false)) && !is_interrupted() {
                waited = self.wait_until(Some(INTERRUPTION_SPAN), &mut have_all_come);
            }
            self.take_all_in(came)?;
            waited?;
            if self.samples.is_any_asked() {
                return Ok(None);
            }
            if sample.is_enough(self.samples.made()) {
                return Ok(Some(self.samples.take(u64::MAX)));
            }
        }
    }

    /// Queues the results by worker and returns the first failure.
    fn take_all_in(&mut self, mut came: Vec<Came>) -> Result<(), GroupError> {
        came.sort_by_key(|came| came.worker);
        let mut failure = None;
        for came in came {
            let taken = self.take_in(came);
            failure = failure.or_else(|| taken.err());
        }
        failure.map_or(Ok(()), Err)
    }

    fn poll_samples(&mut self) -> Vec<Came> {
        let (mut came, asked) = (Vec::new(), std::mem::take(&mut self.samples.asked));
        for (worker, asked) in asked {
            match self.manager.poll_results(asked.set) {
                Some(mut results) => {
                    came.push(Came { worker, asked, result: results.pop().map(|result| result.result) })
                }
                None => _ = self.samples.asked.insert(worker, asked),
            }
        }
        came
    }

    fn take_in(&mut self, Came { worker, asked, result }: Came) -> Result<(), GroupError> {
        match result.map(|result| result.map(TaskAnswer::answer)) {
            Some(Ok(Some(WorkerAnswer::Sample(batch)))) => {
                self.samples.commit(&asked, batch);
                return Ok(());
            }
            Some(Ok(_)) => {
                self.samples.counters.lost += 1;
                return Err(GroupError::OtherAnswer(worker));
            }
            None => self.samples.counters.lost += 1,
            Some(Err(error)) => {
                self.samples.counters.lost += 1;
                self.samples.last_failure = Some(format!("worker {worker}: {error}"));
                self.notice(format_args!("a sample of worker {worker} was lost: {error}"));
                if matches!(error, CallError::Failed(_)) && !self.plan.failures.ignore_worker_failures {
                    return Err(raised(worker, error));
                }
            }
        }
        Ok(())
    }
}

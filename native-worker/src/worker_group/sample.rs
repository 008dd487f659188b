//! Sampling on all workers.

use std::time::Duration;

use rollmesh_core::{
    batch::AnyBatch,
    episode::EpisodeSummary,
    group::SamplingMode,
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{GroupError, WorkerGroup};

/// The amount to sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParallelSample {
    /// Samples rounds until the batches have this many agent steps.
    pub max_agent_steps: Option<usize>,
    /// Samples rounds until the batches have this many env steps.
    pub max_env_steps: Option<usize>,
    /// Timeout of a round, `None` to wait for all samples. Late samples are handed over in a later round.
    #[doc(alias = "sample_timeout_s")]
    pub timeout: Option<Duration>,
}

impl ParallelSample {
    /// Samples rounds until the batches have this many env steps.
    #[must_use]
    pub fn env_steps(steps: usize) -> Self {
        Self { max_env_steps: Some(steps), ..Self::default() }
    }

    /// Samples rounds until the batches have this many agent steps.
    #[must_use]
    pub fn agent_steps(steps: usize) -> Self {
        Self { max_agent_steps: Some(steps), ..Self::default() }
    }

    pub(super) fn is_enough<'a>(&self, batches: impl Iterator<Item = &'a AnyBatch>) -> bool {
        match (self.max_env_steps, self.max_agent_steps) {
            (Some(most), _) => batches.map(AnyBatch::env_steps).sum::<usize>() >= most,
            (None, Some(most)) => batches.map(AnyBatch::agent_steps).sum::<usize>() >= most,
            (None, None) => true,
        }
    }
}

impl WorkerGroup {
    /// Returns a summary of the episodes that have ended since the last call.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    #[doc(alias("collect_metrics", "summarize_episodes"))]
    pub fn metrics(&mut self) -> Result<EpisodeSummary, GroupError> {
        let answers = self.foreach_worker(WorkerCommand::Metrics)?.into_iter();
        let episodes = answers.flat_map(|answer| match answer {
            WorkerAnswer::Metrics(metrics) => metrics.episodes,
            _ => Vec::new(),
        });
        Ok(EpisodeSummary::of(&episodes.collect::<Vec<_>>()))
    }

    /// Returns the next batch according to the group's [mode](super::WorkerGroupBuilder::sampling_mode), or of the local
    /// worker if it is the only one.
    ///
    /// - Synchronous: [one](Self::synchronous_parallel_sample) sample of each healthy worker.
    /// - Asynchronous: the samples that arrived first, until they are enough. Workers continue while the caller learns,
    ///   unless a whole batch is queued already.
    /// - Deadline: the samples that have arrived at the deadline, at most one of each worker, but at least one; or all
    ///   samples, if they arrive earlier. A straggler continues, and its sample goes into a later batch.
    ///
    /// In the latter two modes, samples whose weights are too many [syncs](Self::sync_weights) old are dropped and counted;
    /// [`sample_counters`](Self::sample_counters) returns the ledger.
    ///
    /// # Errors
    /// As [`synchronous_parallel_sample`](Self::synchronous_parallel_sample). Samples of other workers are returned by the
    /// next call.
    pub fn sample(&mut self) -> Result<Vec<AnyBatch>, GroupError> {
        match self.plan.sampling_mode {
            SamplingMode::Synchronous => self.synchronous_parallel_sample(ParallelSample::default()),
            SamplingMode::Asynchronous { batch_env_steps, .. } if self.members.is_empty() => {
                let enough = usize::try_from(batch_env_steps).unwrap_or(usize::MAX);
                self.synchronous_parallel_sample(ParallelSample::env_steps(enough))
            }
            SamplingMode::Deadline { .. } if self.members.is_empty() => {
                self.synchronous_parallel_sample(ParallelSample::default())
            }
            SamplingMode::Asynchronous { batch_env_steps, max_staleness } => {
                self.sample_asynchronously(batch_env_steps, max_staleness)
            }
            SamplingMode::Deadline { after, max_staleness } => self.sample_until(after.into(), max_staleness),
        }
    }

    fn sample_asynchronously(&mut self, batch_env_steps: u64, max_staleness: u64) -> Result<Vec<AnyBatch>, GroupError> {
        self.samples.drop_stale(max_staleness);
        while self.samples.env_steps() < batch_env_steps {
            self.take_notifications();
            self.wait_for_one()?;
            self.samples.drop_stale(max_staleness);
        }
        let batches = self.samples.take(batch_env_steps);
        if self.samples.env_steps() < batch_env_steps {
            self.begin_samples()?;
        }
        Ok(batches)
    }

    fn sample_until(&mut self, after: Duration, max_staleness: u64) -> Result<Vec<AnyBatch>, GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        self.begin_samples()?;
        self.wait_for_samples(Some(after), true)?;
        self.samples.drop_stale(max_staleness);
        while self.samples.made().len() == 0 {
            self.wait_for_one()?;
            self.samples.drop_stale(max_staleness);
        }
        Ok(self.samples.take(u64::MAX))
    }

    fn wait_for_one(&mut self) -> Result<(), GroupError> {
        if self.begin_samples()? { self.wait_for_samples(None, false) } else { Err(self.no_worker()) }
    }

    /// Samples on each healthy remote worker, or on the local one if it is the only one; once, or until a limit is reached.
    /// Batches are ordered by id, round by round, so that they do not depend on the workers' speed, unless there is a
    /// timeout. [`AnyBatch::concat`] joins them.
    ///
    /// A worker that has not finished when a round's timeout is over continues, and its sample is returned in the round in
    /// which it finishes; see [`SampleCounters`](super::SampleCounters). A failed sample is returned as an error, or skipped
    /// if failures are ignored; a worker becomes unhealthy after [this many](super::FailureSettings::max_sample_failures)
    /// consecutive failures.
    ///
    /// # Errors
    /// [`GroupError::BothLimits`]; [`GroupError::NoHealthyWorkers`] if all remote workers have failed;
    /// [`GroupError::Worker`]. Samples of other workers are returned by the next call.
    pub fn synchronous_parallel_sample(&mut self, sample: ParallelSample) -> Result<Vec<AnyBatch>, GroupError> {
        if sample.max_agent_steps.is_some() && sample.max_env_steps.is_some() {
            return Err(GroupError::BothLimits);
        }
        if self.members.is_empty() {
            return self.sample_alone(&sample);
        }
        loop {
            self.take_notifications();
            self.sample_round(sample.timeout)?;
            if sample.is_enough(self.samples.made()) {
                return Ok(self.samples.take(u64::MAX));
            }
        }
    }

    fn sample_round(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let before = self.samples.made().len();
        if !self.begin_samples()? {
            return Err(self.no_worker());
        }
        self.wait_for_samples(timeout, true)?;
        let is_over = self.samples.made().len() == before && self.manager.num_healthy_workers() == 0;
        if is_over { Err(self.no_worker()) } else { Ok(()) }
    }

    /// Returns the error for a group without healthy workers.
    pub(super) fn no_worker(&self) -> GroupError {
        if self.is_stopped {
            return GroupError::NotSetUp;
        }
        let why = self.samples.last_failure().map_or_else(String::new, |why| format!(": {why}"));
        GroupError::NoHealthyWorkers { workers: self.num_remote_workers(), why }
    }
}

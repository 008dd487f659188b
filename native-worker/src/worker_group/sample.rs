//! Samples of all workers.

use std::time::Duration;

use rollmesh_core::{
    batch::AnyBatch,
    episode::EpisodeSummary,
    group::SamplingMode,
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{GroupError, WorkerGroup};

/// How much to sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParallelSample {
    /// Rounds until the batches have so many rows of agents.
    pub max_agent_steps: Option<usize>,
    /// Rounds until the batches have so many env steps.
    pub max_env_steps: Option<usize>,
    /// How long a round may take; as long as it takes, if none. What comes later is handed over in a later round.
    #[doc(alias = "sample_timeout_s")]
    pub timeout: Option<Duration>,
}

impl ParallelSample {
    /// Rounds until the batches have so many env steps.
    #[must_use]
    pub fn env_steps(steps: usize) -> Self {
        Self { max_env_steps: Some(steps), ..Self::default() }
    }

    /// Rounds until the batches have so many rows of agents.
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
    /// A summary of the episodes that have ended since the last call.
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

    /// The next batch, as the group's [mode](super::WorkerGroupBuilder::sampling_mode) has it; of the local worker if it is
    /// alone.
    ///
    /// - Synchronous: a sample of each healthy worker, [once](Self::synchronous_parallel_sample).
    /// - Asynchronous: what came first, as many samples as it takes. Workers go on while the caller learns, unless a whole
    ///   batch waits already.
    /// - Deadline: what is there when the time is up, at most one sample of each worker, but at least one; or what all have
    ///   made, if that is earlier. Who is not done goes on, and hands in for a later batch.
    ///
    /// In the latter two what was made with weights that are too many [syncs](Self::sync_weights) old is dropped and counted;
    /// [`sample_counters`](Self::sample_counters) has the books.
    ///
    /// # Errors
    /// As [`synchronous_parallel_sample`](Self::synchronous_parallel_sample). What others have made is handed over the next
    /// time.
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
            SamplingMode::Deadline { after, max_staleness } => {
                self.sample_until(Duration::from_micros(after.0), max_staleness)
            }
        }
    }

    fn sample_asynchronously(&mut self, batch_env_steps: u64, max_staleness: u64) -> Result<Vec<AnyBatch>, GroupError> {
        self.samples.drop_stale(max_staleness);
        while self.samples.env_steps() < batch_env_steps {
            self.take_news();
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
        self.take_news();
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
        if self.begin_samples()? { self.wait_for_samples(None, false) } else { Err(self.nobody()) }
    }

    /// A sample of each healthy remote worker, or of the local one if it is alone; once, or until there is as much as is
    /// wanted. Batches come in the order of ids, round by round, so that they are the same ones however fast workers are,
    /// unless time is limited. [`AnyBatch::concat`] makes one of them.
    ///
    /// A worker that is not done when a round's time is up goes on, and what it makes is handed over in the round in which
    /// it is done; [`SampleCounters`](super::SampleCounters) tell. A failed sample is raised, or, if failures are ignored,
    /// passed over; a worker whose samples fail [as often as that may happen](super::FailureSettings::max_sample_failures)
    /// is unhealthy.
    ///
    /// # Errors
    /// [`GroupError::BothLimits`]; [`GroupError::NoHealthyWorkers`] if all remote workers have failed;
    /// [`GroupError::Worker`]. What others have made is handed over the next time.
    pub fn synchronous_parallel_sample(&mut self, sample: ParallelSample) -> Result<Vec<AnyBatch>, GroupError> {
        if sample.max_agent_steps.is_some() && sample.max_env_steps.is_some() {
            return Err(GroupError::BothLimits);
        }
        if self.members.is_empty() {
            return self.sample_alone(&sample);
        }
        loop {
            self.take_news();
            self.sample_round(sample.timeout)?;
            if sample.is_enough(self.samples.made()) {
                return Ok(self.samples.take(u64::MAX));
            }
        }
    }

    fn sample_alone(&mut self, sample: &ParallelSample) -> Result<Vec<AnyBatch>, GroupError> {
        self.need_local("sampling")?;
        let mut batches = self.samples.take(u64::MAX);
        loop {
            batches.push(self.need_local("sampling")?.sample()?);
            if sample.is_enough(batches.iter()) {
                return Ok(batches);
            }
        }
    }

    fn sample_round(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let before = self.samples.made().len();
        if !self.begin_samples()? {
            return Err(self.nobody());
        }
        self.wait_for_samples(timeout, true)?;
        let is_over = self.samples.made().len() == before && self.manager.num_healthy_workers() == 0;
        if is_over { Err(self.nobody()) } else { Ok(()) }
    }

    /// Nobody is healthy.
    pub(super) fn nobody(&self) -> GroupError {
        let why = self.samples.last_failure().map_or_else(String::new, |why| format!(": {why}"));
        GroupError::NoHealthyWorkers { workers: self.num_remote_workers(), why }
    }
}

//! Iteration over samples, by one reader or by several that share a worker.

use super::RolloutWorker;
use crate::{batch::AnyBatch, prelude::*, time::Micros, worker::RolloutError};

impl RolloutWorker {
    /// Returns an endless iterator over the samples from now on.
    ///
    /// ```
    /// # use rollmesh_core::worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace};
    /// # let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(10).single_policy("random");
    /// # let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL)?;
    /// let steps: Result<Vec<usize>, _> = worker.samples().take(3).map(|batch| Ok(batch?.env_steps())).collect();
    /// assert_eq!(steps, Ok::<_, rollmesh_core::worker::RolloutError>(vec![10, 10, 10]));
    /// # Ok::<(), rollmesh_core::worker::SetupError>(())
    /// ```
    #[doc(alias = "par_iter_init")]
    pub fn samples(&mut self) -> Samples<'_> {
        Samples { worker: self }
    }

    /// Drops the batches that wait for a sample or for a reader, and counts their steps.
    pub(super) fn discard_waiting(&mut self) {
        let waiting = core::mem::take(&mut self.slice_readers).waiting;
        for batch in core::mem::take(&mut self.read).into_iter().chain(waiting.into_values()) {
            self.discard(batch.env_steps(), batch.agent_steps());
        }
    }
}

/// The samples of a worker. Samples for other readers are kept in the worker.
#[derive(Debug)]
pub struct Samples<'a> {
    worker: &'a mut RolloutWorker,
}

/// Positions of the readers of a worker's samples.
#[derive(Debug, Default)]
pub(super) struct SliceReaders {
    /// Index of the next sample.
    next: u64,
    /// Samples that a reader skipped, by index.
    waiting: BTreeMap<u64, AnyBatch>,
}

impl Samples<'_> {
    /// Most samples kept for other readers; beyond it the oldest ones are dropped, and counted as discarded.
    pub const MAX_WAITING: usize = 1_024;

    /// Returns up to `most` samples, at least one; fewer if `within` has passed on the worker's clock (0: no limit).
    ///
    /// # Errors
    /// As [`RolloutWorker::sample`].
    #[doc(alias = "par_iter_next_batch")]
    pub fn next_batch(&mut self, most: usize, within: Micros) -> Result<Vec<AnyBatch>, RolloutError> {
        self.batch(most, within, |samples| samples.take())
    }

    /// Returns the next one of the samples `start`, `start + step`, `start + 2 step`, …, so that several readers can share a
    /// worker, each with its own `start`. All must use the same `step`; they may read in any order.
    ///
    /// # Errors
    /// [`RolloutError::BadSlice`] unless `start < step`, with `step` at most [`MAX_WAITING`](Self::MAX_WAITING); as
    /// [`RolloutWorker::sample`].
    #[doc(alias = "par_iter_slice")]
    pub fn next_of_slice(&mut self, step: u64, start: u64) -> Result<AnyBatch, RolloutError> {
        if start >= step || step > Self::MAX_WAITING as u64 {
            return Err(RolloutError::BadSlice);
        }
        let waiting = &mut self.worker.slice_readers.waiting;
        let first = waiting.keys().find(|number| **number % step == start).copied();
        if let Some(batch) = first.and_then(|number| waiting.remove(&number)) {
            return Ok(batch);
        }
        loop {
            let number = self.worker.slice_readers.next;
            let batch = self.take()?;
            if number % step == start {
                return Ok(batch);
            }
            let waiting = &mut self.worker.slice_readers.waiting;
            waiting.insert(number, batch);
            let oldest = if waiting.len() > Self::MAX_WAITING { waiting.pop_first() } else { None };
            if let Some((_, batch)) = oldest {
                self.worker.discard(batch.env_steps(), batch.agent_steps());
            }
        }
    }

    /// Returns up to `most` results of [`next_of_slice`](Self::next_of_slice), at least one; fewer if `within` has passed.
    ///
    /// # Errors
    /// As [`next_of_slice`](Self::next_of_slice).
    #[doc(alias = "par_iter_slice_batch")]
    pub fn next_batch_of_slice(
        &mut self,
        step: u64,
        start: u64,
        most: usize,
        within: Micros,
    ) -> Result<Vec<AnyBatch>, RolloutError> {
        self.batch(most, within, |samples| samples.next_of_slice(step, start))
    }

    fn take(&mut self) -> Result<AnyBatch, RolloutError> {
        let batch = self.worker.sample()?;
        self.worker.slice_readers.next += 1;
        Ok(batch)
    }

    fn batch(
        &mut self,
        most: usize,
        within: Micros,
        mut next: impl FnMut(&mut Self) -> Result<AnyBatch, RolloutError>,
    ) -> Result<Vec<AnyBatch>, RolloutError> {
        let clock = self.worker.parts.clock.clone();
        let begun = clock();
        let mut batches = vec![next(self)?];
        while batches.len() < most && (within == Micros(0) || clock().since(begun) < within) {
            batches.push(next(self)?);
        }
        Ok(batches)
    }
}

impl Iterator for Samples<'_> {
    type Item = Result<AnyBatch, RolloutError>;

    #[doc(alias = "par_iter_next")]
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.take())
    }
}

//! Samples one after the other, for one reader or for several in turn.

use super::RolloutWorker;
use crate::{batch::AnyBatch, prelude::*, time::Micros, worker::RolloutError};

impl RolloutWorker {
    /// All samples from now on, without end.
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
}

/// Samples of a worker. What several readers do not take yet waits for them in the worker.
#[derive(Debug)]
pub struct Samples<'a> {
    worker: &'a mut RolloutWorker,
}

/// How far the readers of a worker's samples are.
#[derive(Debug, Default)]
pub(super) struct SliceReaders {
    /// Number of the next sample.
    next: u64,
    /// Samples that were skipped, by number.
    waiting: BTreeMap<u64, AnyBatch>,
}

impl Samples<'_> {
    /// The most samples that wait for other readers; beyond it the oldest ones are forgotten.
    pub const MAX_WAITING: usize = 1_024;

    /// Up to `most` samples, fewer where `within` has passed on the worker's clock (0: however long it takes); at least one.
    ///
    /// # Errors
    /// As [`RolloutWorker::sample`].
    #[doc(alias = "par_iter_next_batch")]
    pub fn next_batch(&mut self, most: usize, within: Micros) -> Result<Vec<AnyBatch>, RolloutError> {
        self.batch(most, within, |samples| samples.take())
    }

    /// The next one of the samples `start`, `start + step`, `start + 2 step`, …: so that several readers share a worker,
    /// each with a `start` of its own. All must take the same `step`, and take turns as they like.
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
            if waiting.len() > Self::MAX_WAITING {
                waiting.pop_first();
            }
        }
    }

    /// Up to `most` of [`next_of_slice`](Self::next_of_slice), fewer where `within` has passed; at least one.
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

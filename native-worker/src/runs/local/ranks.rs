//! Data-parallel ranks: their messages besides gradients, and each rank's part of a checkpoint.

use std::sync::atomic::Ordering;

use rollmesh_core::{encoding, worker::DataParallelConfig};
use serde::{Serialize, de::DeserializeOwned};

use super::{Before, Filters, LocalWorker};
use crate::learner::LearnError;

/// Upper bound of the encoding of a number and a flag.
const NUMBER_BYTES: usize = 16;
/// Limit in bytes for the states of all ranks' samplers together, below that of a message between ranks.
const RANK_STATES_BYTES: usize = 48 << 20;

impl LocalWorker {
    /// Joins the other ranks, all of which resume from one checkpoint or start a new run.
    pub(super) fn join(&mut self, config: &DataParallelConfig) -> Result<(), LearnError> {
        let learner = self.rows.learner()?;
        learner.setup_data_parallel(config)?;
        if !self.filters.is_empty() {
            // Its current filters are those of rank 0.
            learner.filters(true)?;
            learner.sync_filters(&std::mem::take(&mut self.filters))?;
        }
        let begun = learner.global_vars().timestep;
        let all: Vec<(u64, bool)> = self.gather("beginning of the run", (begun, self.is_saved), NUMBER_BYTES)?;
        for (rank, (steps, is_saved)) in (0..).zip(all) {
            if steps != begun {
                let text = format!("rank {rank} begins after {steps} env steps, rank {} after {begun}", config.rank);
                return Err(LearnError::Rows(format!("{text}: resume all ranks from the same run directory, or none")));
            }
            self.is_saved |= is_saved;
        }
        if self.is_saved {
            self.before = Some(self.look_back_together()?);
        }
        Ok(())
    }

    /// Returns the samplers' states of all ranks, for a checkpoint of rank 0; the inner error means that they exceed the
    /// limit.
    pub(super) fn look_back_together(&mut self) -> Result<Result<Before, LearnError>, LearnError> {
        let Before { mut samplers, worker, .. } = self.look_back()?;
        let mut filters = Filters::new();
        if worker.is_some() {
            filters = self.rows.learner()?.filters(false)?.into_iter().map(|(id, own)| (id, own.encode())).collect();
        }
        let limit = RANK_STATES_BYTES / self.ranks.as_ref().map_or(1, |ranks| ranks.world_size.max(1)) as usize;
        let own = Some((samplers.pop().flatten(), filters)).filter(|own| encoding::encode(own).len() < limit);
        let mut before = Before { samplers, worker, filters: Vec::new() };
        for (rank, state) in self.gather("states of samplers", own, limit)?.into_iter().enumerate() {
            let Some((sampler, filters)) = state else {
                let text = format!("the state of rank {rank}'s sampler has more than {limit} bytes");
                return Ok(Err(LearnError::Rows(text)));
            };
            before.samplers.push(sampler);
            before.filters.push(filters);
        }
        Ok(Ok(before))
    }

    /// Exchanges forms of at most `limit` bytes with all ranks; without others returns its own.
    fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        step: &str,
        own: T,
        limit: usize,
    ) -> Result<Vec<T>, LearnError> {
        match self.rows.learner()?.data_parallel() {
            Some(ranks) => Ok(ranks.gather(step, &own, limit)?),
            None => Ok(vec![own]),
        }
    }

    /// Returns the env steps of all ranks together; `None` if any of them was interrupted.
    pub(super) fn agree(&mut self, steps: u64) -> Result<Option<u64>, LearnError> {
        let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
        let all: Vec<(u64, bool)> = self.gather("env steps of an iteration", (steps, is_interrupted), NUMBER_BYTES)?;
        Ok(all
            .into_iter()
            .try_fold(0u64, |sum, (steps, is_interrupted)| Some(sum.saturating_add(steps)).filter(|_| !is_interrupted)))
    }
}

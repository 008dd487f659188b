//! Data-parallel ranks: what they exchange besides their gradients, and each rank's part of a checkpoint.

use std::sync::atomic::Ordering;

use rollmesh_core::{policy::AllReduceError, worker::DataParallelConfig};

use super::{Before, Filters, LocalWorker, not_a_state};
use crate::learner::LearnError;

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
        let own = [&begun.to_le_bytes()[..], &[u8::from(self.is_saved)]].concat();
        for (rank, bytes) in (0..).zip(self.gather("beginning of the run", &own, own.len())?) {
            let (steps, is_saved) = number_and_flag(rank, &bytes)?;
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
        let own = postcard::to_allocvec(&(samplers.pop().flatten(), filters)).map_err(|_| not_a_state())?;
        let limit = RANK_STATES_BYTES / self.ranks.as_ref().map_or(1, |ranks| ranks.world_size.max(1)) as usize;
        let fitting = if own.len() > limit { &[] } else { own.as_slice() };
        let mut before = Before { samplers, worker, filters: Vec::new() };
        for (rank, bytes) in self.gather("states of samplers", fitting, limit)?.into_iter().enumerate() {
            let Ok((sampler, filters)) = postcard::from_bytes(&bytes) else {
                let text = format!("the state of rank {rank}'s sampler has more than {limit} bytes");
                return Ok(Err(LearnError::Rows(text)));
            };
            before.samplers.push(sampler);
            before.filters.push(filters);
        }
        Ok(Ok(before))
    }

    /// Exchanges bytes with all ranks; without others returns its own.
    fn gather(&mut self, step: &str, own: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, LearnError> {
        match self.rows.learner()?.data_parallel() {
            Some(ranks) => Ok(ranks.all_gather(step, own, limit)?),
            None => Ok(vec![own.to_vec()]),
        }
    }

    /// Returns the env steps of all ranks together; `None` if any of them was interrupted.
    pub(super) fn agree(&mut self, steps: u64) -> Result<Option<u64>, LearnError> {
        let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
        let own = [&steps.to_le_bytes()[..], &[u8::from(is_interrupted)]].concat();
        let mut sum = Some(0u64);
        for (rank, bytes) in (0..).zip(self.gather("env steps of an iteration", &own, own.len())?) {
            let (steps, is_interrupted) = number_and_flag(rank, &bytes)?;
            sum = sum.filter(|_| !is_interrupted).map(|sum| sum.saturating_add(steps));
        }
        Ok(sum)
    }
}

/// Decodes a rank's message: a number, and a byte that is 0 or 1.
fn number_and_flag(rank: u32, bytes: &[u8]) -> Result<(u64, bool), AllReduceError> {
    let protocol = || AllReduceError::Protocol { rank, reason: "a number of env steps was expected".into() };
    let (number, flag) = bytes.split_first_chunk().ok_or_else(protocol)?;
    Ok((u64::from_le_bytes(*number), flag == [1]))
}

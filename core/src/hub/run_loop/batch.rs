//! Complete iterations as batches, and the consequences of a batch that was consumed.

use core::iter;

use super::{BatchConsumer, RunLoop};
use crate::{
    batch::{EpisodeMetrics, MultiAgentBatch, SlotFragment},
    filter::{FilterError, RunFilter},
    ids::{PolicyId, WeightsVersion},
    policy::Postprocessing,
    postprocess::{Finisher, PostprocessError, train_batch, train_batch_by_policy},
    prelude::*,
    protocol::Phase,
    time::Micros,
    weights::Weights,
};

/// The processing of a batch by the driver.
#[derive(Debug)]
pub enum BatchWork {
    /// The learner learns from a batch.
    Learn(TrainRows),
    /// The run's own worker makes a batch and learns from it.
    Iterate,
    /// The caller takes the fragments, in slot order.
    HandOver(Vec<SlotFragment>),
}

impl BatchWork {
    /// Returns the fragments of the batch, in slot order; none of a batch that is still to be made.
    #[must_use]
    pub fn fragments(&self) -> &[SlotFragment] {
        match self {
            Self::Learn(rows) => rows.fragments(),
            Self::HandOver(fragments) => fragments,
            Self::Iterate => &[],
        }
    }
}

/// The rows of a complete iteration, which any thread can join to a train batch: that takes long.
#[derive(Clone, Debug)]
pub struct TrainRows {
    fragments: Vec<SlotFragment>,
    postprocessing: Postprocessing,
    filter: Option<RunFilter>,
}

/// The state of a run's filter after the rows of a batch are counted, for [`RunLoop::handle_learned`].
#[derive(Clone, Debug, Default)]
pub struct Observed(Option<RunFilter>);

impl TrainRows {
    /// Returns the rows as the environments gave them, in slot order.
    #[must_use]
    pub fn fragments(&self) -> &[SlotFragment] {
        &self.fragments
    }

    /// Joins the rows to a train batch, as the policies saw them and with advantages.
    ///
    /// # Errors
    /// [`TrainBatchError`].
    pub fn join(self) -> Result<(MultiAgentBatch, Observed), TrainBatchError> {
        let Self { fragments, postprocessing, filter } = self;
        let Some(mut filter) = filter else { return Ok((joined(&fragments, &postprocessing)?, Observed::default())) };
        filter.observe(&fragments)?;
        let batch = joined(&filter.normalized(&fragments)?, &postprocessing)?;
        Ok((batch, Observed(Some(filter))))
    }
}

/// The reason why a complete iteration is no train batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainBatchError {
    /// Its rows cannot be postprocessed.
    #[error(transparent)]
    Postprocess(#[from] PostprocessError),
    /// Its observations cannot be normalised.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl RunLoop {
    /// Returns the batch of the iteration once it is complete and the run is not consuming another one. Its episodes are
    /// counted; [`handle_learned`](Self::handle_learned), [`handle_taken`](Self::handle_taken) or
    /// [`forget_batch`](Self::forget_batch) must follow.
    pub fn poll_batch(&mut self) -> Option<Result<BatchWork, TrainBatchError>> {
        if self.is_over() {
            return None;
        }
        let fragments = if self.is_local() { self.take_due()? } else { self.group.poll_batch()? };
        self.episodes.count(&fragments);
        self.batch_env_steps = fragments.iter().map(SlotFragment::env_steps).sum();
        self.is_consuming = true;
        Some(match self.consumer {
            BatchConsumer::OwnWorker => Ok(BatchWork::Iterate),
            BatchConsumer::Caller => self.as_seen(fragments).map(BatchWork::HandOver),
            BatchConsumer::Learner(postprocessing) => {
                Ok(BatchWork::Learn(TrainRows { fragments, postprocessing, filter: self.filter.clone() }))
            }
        })
    }

    /// Returns fragments with the observations as the policies saw them. A filter adds the raw observations to its
    /// statistics.
    fn as_seen(&mut self, fragments: Vec<SlotFragment>) -> Result<Vec<SlotFragment>, TrainBatchError> {
        let Some(filter) = &mut self.filter else { return Ok(fragments) };
        filter.observe(&fragments)?;
        Ok(filter.normalized(&fragments)?)
    }

    /// Returns no fragments if the next batch of the run's own worker is due.
    fn take_due(&mut self) -> Option<Vec<SlotFragment>> {
        (self.phase == Phase::Running && core::mem::take(&mut self.is_batch_due)).then(Vec::new)
    }

    /// Makes the next batch of the run's own worker due although the run is paused or draining: other ranks wait for it.
    pub fn force_due_batch(&mut self) -> Option<BatchWork> {
        let is_due = self.is_local() && core::mem::take(&mut self.is_batch_due);
        self.is_consuming |= is_due;
        is_due.then_some(BatchWork::Iterate)
    }

    /// Counts a batch that the caller has taken. With a filter the next weights have the statistics of its rows, too.
    pub fn handle_taken(&mut self, now: Micros) {
        if self.filter.is_none() {
            return self.count_batch(now);
        }
        let next = self.next_weights.take();
        let next = next.unwrap_or_else(|| self.weights.with_version(WeightsVersion(self.weights.version().0 + 1)));
        self.take_weights(next, now);
    }

    fn count_batch(&mut self, now: Micros) {
        let steps = self.batch_env_steps;
        self.is_consuming = false;
        self.iteration += 1;
        self.env_steps += steps;
        let took = self.stopwatch.elapsed(now).since(self.iteration_began);
        self.steps_per_s = steps as f64 / took.as_secs_f64().max(1e-9);
    }

    /// Takes the weights that the learner has computed from the batch, and counts the batch.
    pub fn handle_learned(&mut self, weights: Weights, Observed(filter): Observed, now: Micros) {
        if filter.is_some() {
            self.filter = filter;
        }
        self.take_weights(weights, now);
    }

    fn take_weights(&mut self, weights: Weights, now: Micros) {
        self.keep_weights();
        let weights = match &mut self.filter {
            None => weights,
            Some(filter) => {
                let weights = filter.publish(&weights);
                filter.forget_before(self.group.oldest_weights().unwrap_or_else(|| weights.version()));
                weights
            }
        };
        self.put_weights(weights);
        self.count_batch(now);
    }

    /// Takes the env steps and ended episodes that the run's own worker has sampled or read for the batch.
    pub fn handle_iterated(&mut self, env_steps: u64, episodes: Vec<EpisodeMetrics>) {
        self.batch_env_steps = env_steps;
        episodes.into_iter().for_each(|episode| self.episodes.push(episode));
    }

    /// Drops a batch before the learner has used it.
    pub fn forget_batch(&mut self) {
        (self.is_consuming, self.batch_env_steps) = (false, 0);
    }
}

/// Joins fragments to one train batch. Workers have already postprocessed rows by policy; fragments of policies with their
/// own postprocessing, or none, already have every column.
fn joined(fragments: &[SlotFragment], postprocessing: &Postprocessing) -> Result<MultiAgentBatch, PostprocessError> {
    if fragments.iter().any(|fragment| fragment.agents.is_some()) {
        return train_batch_by_policy(fragments);
    }
    let batch = match postprocessing {
        Postprocessing::Advantages(config) => train_batch(fragments, config)?,
        Postprocessing::None | Postprocessing::Custom => Finisher::default().finish(fragments, None)?,
    };
    let env_steps = batch.len();
    Ok(MultiAgentBatch::new(iter::once((PolicyId::DEFAULT, batch)).collect_ordered(), env_steps))
}

//! What is different in a run whose own worker makes its batches: it has no slots.

use std::sync::atomic::Ordering;

use rollmesh_core::{batch::SlotFragment, protocol::Phase};

use super::{
    super::{consumer::Consumer, local::Iterated, metrics::IterationMetrics},
    Run,
};

impl Run {
    /// True if the run's own worker makes its batches: it has no slots.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.consumer, Some(Consumer::Local(..)))
    }

    /// Keeps the run's own worker from completing the batch that it is making.
    pub(crate) fn interrupt(&self) {
        if let Some(Consumer::Local(_, is_interrupted)) = &self.consumer {
            is_interrupted.store(true, Ordering::Relaxed);
        }
    }

    /// True if it learns together with other processes, which must hear of its end.
    pub(crate) fn has_ranks(&self) -> bool {
        self.request.data_parallel.is_some() && !self.is_over()
    }

    /// True if other processes have not heard yet that it was interrupted.
    pub(crate) fn has_ranks_to_tell(&self) -> bool {
        let is_interrupted = match &self.consumer {
            Some(Consumer::Local(_, is_interrupted)) => is_interrupted.load(Ordering::Relaxed),
            _ => false,
        };
        self.has_ranks() && is_interrupted
    }

    /// No fragments, if it is time for the next batch of the run's own worker.
    pub(super) fn take_due(&mut self) -> Option<Vec<SlotFragment>> {
        let may_begin = self.phase == Phase::Running || self.has_ranks_to_tell();
        (may_begin && std::mem::take(&mut self.is_batch_due)).then(Vec::new)
    }

    /// The run's own worker has made a batch and learned from it. What people should be told is first.
    pub(crate) fn handle_iterated(&mut self, iterated: Iterated) -> (Vec<String>, IterationMetrics) {
        let Iterated { env_steps, episodes, read, warnings, learned } = iterated;
        self.batch_env_steps = env_steps;
        episodes.into_iter().for_each(|episode| self.episodes.push(episode));
        self.read = read;
        (warnings, self.handle_update(learned))
    }

    /// The batch was given up before anything was learned from it.
    pub(crate) fn forget_batch(&mut self) {
        (self.is_learning, self.batch_env_steps) = (false, 0);
    }

    /// Ends the batch that the run's own worker is making if the run's time is used up.
    pub(crate) fn interrupt_if_late(&self) {
        if self.is_local() && self.is_late() {
            self.interrupt();
        }
    }
}

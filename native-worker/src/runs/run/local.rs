//! Runs whose own worker makes the batches: they have no slots.

use std::sync::atomic::Ordering;

use rollmesh_core::{
    hub::{HubRun as _, Observed},
    time::Micros,
};

use super::{
    super::{consumer::Consumer, local::Iterated, metrics::IterationMetrics, own_sampler::Watchdog},
    Run,
};

impl Run {
    /// Returns true if the run's own worker makes its batches: it has no slots.
    pub(crate) fn is_local(&self) -> bool {
        self.state.is_local()
    }

    /// Returns true in a data-parallel run, whose other ranks must be notified of its end.
    pub(crate) fn has_ranks(&self) -> bool {
        self.request.data_parallel.is_some() && !self.is_over()
    }

    /// Returns whether the other ranks have not been notified yet that it was interrupted.
    pub(crate) fn has_ranks_to_notify(&self) -> bool {
        let is_interrupted = match &self.consumer {
            Some(Consumer::Local { is_interrupted, .. }) => is_interrupted.load(Ordering::Relaxed),
            _ => false,
        };
        self.has_ranks() && is_interrupted
    }

    /// Handles a batch that the run's own worker has made and learned from; also returns warnings for the user.
    pub(crate) fn handle_iterated(&mut self, iterated: Iterated, now: Micros) -> (Vec<String>, IterationMetrics) {
        let Iterated { env_steps, episodes, read, warnings, disturbances, abandoned, learned } = iterated;
        self.state.handle_iterated(env_steps, episodes);
        self.state.count_disturbances(disturbances);
        self.state.group.count_abandoned(abandoned);
        self.read = read;
        (warnings, self.handle_update(learned, Observed::default(), now))
    }

    /// Records the failures of the run's own worker.
    pub(crate) fn record_own_failures(&mut self) {
        let failures = self.watchdog.as_ref().map_or_else(Vec::new, |dog| dog.watch().take_failures());
        failures.into_iter().for_each(|failure| self.state.group.record_failure(failure));
    }

    /// Returns the error of a run whose own worker hangs.
    pub(crate) fn own_hang(&mut self) -> Option<String> {
        let fatal = self.watchdog.as_mut().and_then(Watchdog::check)?;
        self.state.group.record_failure(fatal.failure.clone());
        Some(fatal.explain(&self.config().rollout))
    }

    /// Interrupts the current batch of the run's own worker if the run's time limit is over.
    pub(crate) fn interrupt_if_late(&self, now: Micros) {
        if self.is_local() && self.state.is_late(now) {
            self.interrupt();
        }
    }
}

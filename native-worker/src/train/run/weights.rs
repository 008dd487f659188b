//! The weights of a run: what workers were sent, and what they act with.

use rollmesh_core::{
    group::WorkerState,
    ids::{WeightsVersion, WorkerId},
    protocol::{Frame, TooLarge, convert, message::WeightsApplied},
    time::Micros,
    weights::{Weights, WeightsError},
};

use super::Run;

/// Why weights could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// There is no run that takes weights from outside.
    #[error("no run of rows alone is going on: begin one with Hub::sample")]
    NoRun,
    /// The policy of the run has other tensors.
    #[error("the run's policy has other tensors: {0}")]
    Misfit(#[from] WeightsError),
    /// The weights are too many for a message.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The run or the hub ended before all workers had applied them.
    #[error("the run ended before all workers had applied the weights")]
    Ended,
}

impl Run {
    pub(crate) fn weights_frame(&self) -> Result<Frame, TooLarge> {
        convert::weights_frame(self.number, &self.weights)
    }

    /// True if weights were set that need not wait any longer.
    pub(crate) fn has_next_weights(&self) -> bool {
        self.next_weights.is_some() && self.is_between_iterations()
    }

    /// True if weights may go out that act from the next iteration on: nothing is being made, nor will be before it.
    pub(crate) fn is_between_iterations(&self) -> bool {
        self.terms.mode.is_synchronous() && self.group.fragment().is_none()
    }

    /// The weights, if they have changed since they were sent to everybody. Not while a fragment is being made: whoever
    /// has newer ones cannot help with it.
    pub(crate) fn news(&mut self) -> Result<Option<Frame>, TooLarge> {
        if self.group.fragment().is_some() || self.is_local() {
            return Ok(None);
        }
        if let Some(next) = self.next_weights.take() {
            self.weights = next;
        }
        if self.weights.version() == self.published {
            return Ok(None);
        }
        self.published = self.weights.version();
        self.weights_frame().map(Some)
    }

    /// Sets weights of a run without a learner; the version that they get. They act from the next iteration on
    /// that has not begun.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<WeightsVersion, SyncError> {
        if !self.has_taker() {
            return Err(SyncError::NoRun);
        }
        let newest = self.next_weights.as_ref().unwrap_or(&self.weights);
        weights.check_like(newest)?;
        let version = WeightsVersion(newest.version().0 + 1);
        self.next_weights = Some(weights.with_version(version));
        Ok(version)
    }

    /// Notes what a worker says it acts with; nobody acts with weights that were never sent.
    pub(crate) fn handle_weights_applied(&mut self, worker: WorkerId, applied: &WeightsApplied) {
        let version = WeightsVersion(applied.version);
        if applied.run == self.number && version <= self.weights.version() {
            self.group.handle_weights_applied(worker, version);
        }
    }

    /// True once all workers that get leases act with these weights, or newer ones. One in quarantine acts no more, and one
    /// that has not answered or is unable has not begun.
    pub(crate) fn have_applied(&self, version: WeightsVersion, now: Micros) -> bool {
        let acts = |state| !matches!(state, WorkerState::Quarantined | WorkerState::Unanswered | WorkerState::Unable);
        let mut acting = self.group.workers(now).filter(|worker| acts(worker.state));
        self.published >= version && acting.all(|worker| worker.weights_version >= Some(version))
    }

    /// Updates between a worker's weights and the newest.
    pub(crate) fn weights_lag(&self, version: Option<WeightsVersion>) -> u64 {
        self.weights.version().0.saturating_sub(version.map_or(0, |version| version.0))
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{group::WorkerProfile, ids::LeaseId, kernels::Kernels, run::RunConfig, worker::Registry};
    use tokio::sync::mpsc;

    use super::{super::Task, *};

    #[test]
    fn nobody_acts_with_weights_that_were_not_sent() {
        let (batches, _taker) = mpsc::channel(1);
        let config = Box::new(RunConfig::sampling("CartPole-v1", 2).fcnet_hiddens(&[4]).into());
        let known = (&Registry::builtin(), Kernels::PORTABLE);
        let mut run = Run::new(1, Task::Sample(config, batches), known, LeaseId(0)).unwrap();
        let (worker, now) = (WorkerId(1), Micros(0));
        run.group.handle_joined(worker, WorkerProfile::NATIVE, now);
        run.group.handle_answer(worker, Ok(()), now);
        let weights = run.weights.clone();
        let version = run.set_weights(&weights).unwrap();
        let say = |run: &mut Run, number: u32, version: u64| {
            run.handle_weights_applied(worker, &WeightsApplied { run: number, version });
        };
        say(&mut run, 1, u64::MAX);
        say(&mut run, 1, version.0);
        assert!(run.news().unwrap().is_some());
        assert!(!run.have_applied(version, now), "said before they were sent");
        say(&mut run, 2, version.0);
        assert!(!run.have_applied(version, now), "of another run");
        say(&mut run, 1, version.0);
        assert!(run.have_applied(version, now));
    }
}

//! The weights of a run: those sent to workers, and those that they act with.

use super::RunLoop;
use crate::{
    filter::RunFilter,
    group::WorkerState,
    hash::{Hash128, run_weights_hash, weights_hash},
    ids::{PolicyId, SlotId, WeightsVersion, WorkerId},
    prelude::*,
    protocol::{
        Message, MessageFrame, TooLarge, convert,
        message::{WeightsApplied, WeightsNotice},
    },
    run::{RunConfig, WeightsDtype},
    time::Micros,
    weights::{Weights, WeightsError},
};

/// Returns the weights that workers act with, if they are others than the learner's.
pub(super) fn acting(config: &RunConfig, weights: &Weights) -> Option<Weights> {
    (config.weights_dtype == WeightsDtype::Float16).then(|| weights.in_halves())
}

/// Weights kept to recompute fragments that arrive late, …
const MAX_RECENT_WEIGHTS: usize = 64;
/// … and if only the watched slot's fragments are recomputed, to be shown.
const MAX_SHOWN_WEIGHTS: usize = 4;

/// The reason why weights could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// No run takes weights from outside.
    #[error("no run of rows alone is in progress: begin one with Hub::sample")]
    NoRun,
    /// The policy of the run has other tensors.
    #[error("the run's policy has other tensors: {0}")]
    Misfit(#[from] WeightsError),
    /// The weights do not fit into a message.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The run or the hub ended before all workers had applied them.
    #[error("the run ended before all workers had applied the weights")]
    Ended,
}

impl RunLoop {
    /// Returns the newest weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Returns the newest weights as workers act with them.
    #[must_use]
    pub fn acting_weights(&self) -> &Weights {
        self.acting.as_ref().unwrap_or(&self.weights)
    }

    pub(super) fn put_weights(&mut self, weights: Weights) {
        self.acting = acting(&self.config, &weights);
        self.weights = weights;
        (self.frame, self.notice) = (None, None);
    }

    /// Returns the notice of the newest weights, for peers that get them from a relay.
    ///
    /// # Errors
    /// [`TooLarge`] for weights that no message can hold.
    pub fn weights_notice(&mut self) -> Result<WeightsNotice, TooLarge> {
        if let Some(notice) = self.notice {
            return Ok(notice);
        }
        let (frame, version) = (self.weights_frame()?, self.weights.version().0);
        let notice = WeightsNotice { run: self.number, version, bytes: frame.num_bytes() as u32, hash: frame.sha256() };
        self.notice = Some(notice);
        Ok(notice)
    }

    /// Returns the newest weights as workers are sent them. They are encoded once.
    ///
    /// # Errors
    /// [`TooLarge`] for weights that no message can hold.
    pub fn weights_frame(&mut self) -> Result<MessageFrame, TooLarge> {
        if let Some(frame) = &self.frame {
            return Ok(frame.clone());
        }
        let frame = match self.config.weights_dtype {
            WeightsDtype::Float32 => convert::weights_frame(self.number, self.acting_weights()),
            WeightsDtype::Float16 => {
                let update = convert::half_weights_update(self.number, self.acting_weights());
                MessageFrame::new(&Message::HalfWeightsUpdate(update))
            }
        }?;
        self.frame = Some(frame.clone());
        Ok(frame)
    }

    /// Returns the hash of all weights. A run's weights are those of its policies.
    #[must_use]
    pub fn weights_hash(&self) -> Hash128 {
        run_weights_hash(&self.weights, &self.policies).unwrap_or_else(|_| weights_hash(&self.weights))
    }

    /// Returns the hash of each policy's weights, where there are several.
    #[must_use]
    pub fn policy_hashes(&self) -> BTreeMap<PolicyId, Hash128> {
        let weights = if self.has_one_policy() { None } else { self.weights.of_policies(&self.policies).ok() };
        weights.into_iter().flatten().map(|(id, weights)| (id, weights_hash(&weights))).collect_ordered()
    }

    /// Returns true if weights were set and may be published now.
    #[must_use]
    pub fn has_next_weights(&self) -> bool {
        self.next_weights.is_some() && self.is_between_iterations()
    }

    /// Returns true if weights may be sent that act from the next iteration on: no fragment is being sampled.
    #[must_use]
    pub fn is_between_iterations(&self) -> bool {
        self.mode.is_synchronous() && self.group.fragment().is_none()
    }

    /// Returns the weights if they have changed since they were last sent to all workers; `None` while a fragment is being
    /// sampled, since a worker with newer weights could not help with it.
    ///
    /// # Errors
    /// [`TooLarge`] for weights that no message can hold.
    pub fn poll_weights(&mut self) -> Result<Option<MessageFrame>, TooLarge> {
        if self.group.fragment().is_some() || self.is_local() {
            return Ok(None);
        }
        if let Some(next) = self.next_weights.take() {
            let weights = match &mut self.filter {
                None => next,
                Some(filter) => filter.publish(&next),
            };
            self.put_weights(weights);
        }
        if self.weights.version() == self.published {
            return Ok(None);
        }
        self.published = self.weights.version();
        self.weights_frame().map(Some)
    }

    /// Sets weights of a run without a learner and returns their version. They take effect with the next iteration that has
    /// not begun. Statistics of a filter among these weights are ignored: those of the run's filter stay.
    ///
    /// # Errors
    /// [`SyncError::NoRun`] in a run that learns, [`SyncError::Misfit`] for other tensors.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<WeightsVersion, SyncError> {
        if !self.is_sampling_only() {
            return Err(SyncError::NoRun);
        }
        let newest = self.next_weights.as_ref().unwrap_or(&self.weights);
        let version = WeightsVersion(newest.version().0 + 1);
        let weights = self.without_filter(weights);
        weights.check_like(&self.without_filter(newest))?;
        self.next_weights = Some(weights.with_version(version));
        Ok(version)
    }

    /// Returns the weights without the statistics of the run's filter.
    fn without_filter(&self, weights: &Weights) -> Weights {
        let split = self.filter.as_ref().and_then(|_| RunFilter::split_from(weights, &self.policies).ok());
        split.map_or_else(|| weights.clone(), |(plain, _)| plain)
    }

    /// Records which weights a worker reports to act with. Weights that were never sent are ignored.
    pub fn handle_weights_applied(&mut self, worker: WorkerId, applied: &WeightsApplied) {
        let version = WeightsVersion(applied.version);
        if applied.run == self.number && version <= self.weights.version() {
            self.group.handle_weights_applied(worker, version);
        }
    }

    /// Returns true once all workers that get leases act with these weights, or newer ones. Quarantined, unable and
    /// unanswered workers do not count.
    #[must_use]
    pub fn have_applied(&self, version: WeightsVersion, now: Micros) -> bool {
        let acts = |state| !matches!(state, WorkerState::Quarantined | WorkerState::Unanswered | WorkerState::Unable);
        let mut acting = self.group.workers(now).filter(|worker| acts(worker.state));
        self.published >= version && acting.all(|worker| worker.weights_version >= Some(version))
    }

    /// Returns the number of updates between a worker's weights and the newest.
    #[must_use]
    pub fn weights_lag(&self, version: Option<WeightsVersion>) -> u64 {
        self.weights.version().0.saturating_sub(version.map_or(0, |version| version.0))
    }

    /// Returns the weights of a version as workers act with them, if they are not too old.
    #[must_use]
    pub fn weights_of(&self, version: WeightsVersion) -> Option<Weights> {
        let mut known = self.recent_weights.iter().chain([self.acting_weights()]);
        known.find(|weights| weights.version() == version).cloned()
    }

    /// Keeps the weights that are being replaced, if fragments may be recomputed with them: any fragment by an audit or to be
    /// recorded, those of the watched slot to be shown.
    pub(super) fn keep_weights(&mut self) {
        let recomputes_all = self.group.has_untrusted() || self.config.rollout.monitor_path.is_some();
        let (group, slot, is_watched) = (&self.group, SlotId(self.watched_slot), self.is_watched);
        let oldest = group.oldest_weights().filter(|_| recomputes_all);
        let is_needed = |version: WeightsVersion| {
            oldest.is_some_and(|oldest| version >= oldest) || (is_watched && group.needs_weights_for(slot, version))
        };
        let replaced = self.acting.as_ref().unwrap_or(&self.weights);
        if is_needed(replaced.version()) {
            self.recent_weights.push_back(replaced.clone());
        }
        self.recent_weights.retain(|weights| is_needed(weights.version()));
        let most = if recomputes_all { MAX_RECENT_WEIGHTS } else { MAX_SHOWN_WEIGHTS };
        let over = self.recent_weights.len().saturating_sub(most);
        self.recent_weights.drain(..over);
    }
}

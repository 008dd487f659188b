//! Iterations: each begins with weights and ends with a batch.

use super::{BeginError, LeaseGroup, Mode, SamplingMode, grant::Iteration};
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
    time::Micros,
};

impl LeaseGroup {
    /// Requests the next batch, made with these weights. Without workers it waits for some.
    ///
    /// In synchronous mode the batch is the next fragment of every slot. While one iteration is open another one may begin
    /// with the same weights: then no worker waits for its upload to be committed, see [the rules](super).
    ///
    /// In the other modes these weights become the newest ones, with which new leases are granted. Leases already granted
    /// continue. The number returned is the batch's.
    ///
    /// # Errors
    /// [`BeginError`] while the previous iteration is not over, except in the case above, and after [`stop`](Self::stop); in
    /// the asynchronous and deadline modes also if the weights are older than the newest so far.
    #[doc(alias = "sample")]
    #[doc(alias = "synchronous_parallel_sample")]
    pub fn begin_iteration(&mut self, weights_version: WeightsVersion, now: Micros) -> Result<FragmentNo, BeginError> {
        if self.mode == Mode::Stopped {
            return Err(BeginError::Stopped);
        }
        if let Some(first) = self.open.front()
            && !self.may_begin(weights_version)
        {
            return Err(BeginError::Unfinished(first.fragment));
        }
        if self.is_free() {
            self.publish(weights_version, now)?;
        }
        let fragment = self.next_fragment;
        self.next_fragment = FragmentNo(fragment.0 + 1);
        self.open.push_back(Iteration { fragment, weights_version });
        self.advance(now);
        Ok(fragment)
    }

    /// Returns the fragments of the first open iteration once they are complete: in synchronous mode in slot order, in the
    /// others by slot and number. The next iteration may begin then.
    pub fn poll_batch(&mut self) -> Option<Vec<SlotFragment>> {
        let batch = if self.is_free() { self.take_free_batch()? } else { self.take_round()? };
        self.ledger.consume(batch.iter().map(SlotFragment::env_steps).sum());
        if self.is_free() {
            // The queue has free places again.
            self.advance(self.flow.now);
        }
        debug_assert!(self.is_consistent(), "the group's ledger is wrong: {self:#?}");
        Some(batch)
    }

    fn take_round(&mut self) -> Option<Vec<SlotFragment>> {
        self.open.pop_front_if(|first| self.slots.all_committed(first.fragment))?;
        Some(self.slots.take_fragments())
    }

    /// Returns the fragment in progress, if any; the first of two. `None`, too, while all open iterations wait to be taken.
    /// In the asynchronous and deadline modes it is the number of the incomplete batch.
    #[must_use]
    pub fn fragment(&self) -> Option<FragmentNo> {
        if self.is_free() {
            return self.open.front().filter(|_| self.free_batch_len().is_none()).map(|iteration| iteration.fragment);
        }
        self.being_made().map(|iteration| iteration.fragment)
    }

    /// Returns the number of iterations that have begun and whose batches were not taken.
    #[must_use]
    pub fn open_iterations(&self) -> usize {
        self.open.len()
    }

    /// Returns true if an iteration with these weights could begin now.
    #[must_use]
    pub fn may_begin(&self, weights_version: WeightsVersion) -> bool {
        if self.is_free() {
            return self.mode != Mode::Stopped && self.open.is_empty() && self.check_newest(weights_version).is_ok();
        }
        let has_same_weights = self.open.iter().all(|iteration| iteration.weights_version == weights_version);
        self.mode != Mode::Stopped && self.open.len() < Self::MAX_OPEN && has_same_weights
    }

    /// Returns the oldest weights of which a batch may still hold fragments; `None` before the first iteration and between
    /// two.
    #[must_use]
    pub fn oldest_weights(&self) -> Option<WeightsVersion> {
        let begun = self.open.iter().map(|iteration| iteration.weights_version);
        let leased = self.leases.iter().map(|(_, lease)| lease.weights_version);
        let queued = self.slots.iter().flat_map(|(_, slot)| slot.fragments()).map(|fragment| fragment.weights_version);
        begun.chain(leased).chain(queued).min()
    }

    /// Returns true if a batch may still hold a fragment of this slot that these weights made.
    #[must_use]
    pub fn needs_weights_for(&self, slot: SlotId, version: WeightsVersion) -> bool {
        let begun = self.open.iter().any(|iteration| iteration.weights_version == version);
        let mut leases = self.leases.iter().filter(|(_, lease)| lease.weights_version == version);
        begun
            || leases.any(|(_, lease)| lease.slots.contains(&slot))
            || self.slots.get(slot).is_some_and(|known| known.fragments().any(|made| made.weights_version == version))
    }

    /// Returns true in the asynchronous and deadline modes, in which slots advance independently.
    pub(super) fn is_free(&self) -> bool {
        self.config.mode != SamplingMode::Synchronous
    }

    /// Returns the first open iteration that is not complete, in synchronous mode.
    pub(super) fn being_made(&self) -> Option<Iteration> {
        let mut open = self.open.iter().copied().filter(|_| !self.is_free());
        open.find(|iteration| !self.slots.all_committed(iteration.fragment))
    }
}

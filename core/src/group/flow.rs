//! The asynchronous and the deadline mode, in which slots advance independently: a worker that has finished continues at
//! once, and batches take the fragments that are ready.

use super::{
    BeginError, GroupEvent, JournalEntry, LeaseGroup, SamplingMode, grant::Iteration, script::Script, slot_table::Slot,
    worker::Worker,
};
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, SlotId, WeightsVersion, WorkerId},
    prelude::*,
    protocol::WorkerState,
    time::Micros,
};

/// State of a group whose slots advance independently.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The newest weights; `None` before the first iteration.
    pub(super) newest: Option<WeightsVersion>,
    /// The queued fragments in commit order.
    pub(super) order: VecDeque<(SlotId, WeightsVersion)>,
    /// When the latest iteration ends, in deadline mode.
    ends_at: Option<Micros>,
    /// The latest time passed to the group.
    pub(super) now: Micros,
    /// Journal entries that were not polled yet.
    pub(super) journal: VecDeque<JournalEntry>,
    /// The journal that the group replays, if any.
    pub(super) script: Option<Script>,
}

impl LeaseGroup {
    /// The maximum number of fragments by which the slots whose states a worker holds may be ahead of other open slots
    /// before the worker takes over those.
    const LEAD: u64 = 1;

    /// Publishes weights as the newest ones.
    pub(super) fn publish(&mut self, version: WeightsVersion, now: Micros) -> Result<(), BeginError> {
        self.check_newest(version)?;
        self.flow.newest = Some(version);
        if let SamplingMode::Deadline { after, .. } = self.config.mode {
            self.flow.ends_at = Some(now + after);
        }
        match &mut self.flow.script {
            Some(script) => script.begin(),
            None => self.flow.journal.push_back(JournalEntry::Began { weights_version: version }),
        }
        self.follow_script();
        self.drop_stale(version);
        Ok(())
    }

    /// Checks that these weights may become the newest ones.
    pub(super) fn check_newest(&self, asked: WeightsVersion) -> Result<(), BeginError> {
        if let Some(newest) = self.flow.newest.filter(|&newest| newest > asked) {
            return Err(BeginError::Older { newest, asked });
        }
        match self.flow.script.as_ref().and_then(Script::begins_with) {
            Some(journalled) if journalled != asked => Err(BeginError::NotJournalled { journalled, asked }),
            _ => Ok(()),
        }
    }

    /// Returns how many versions weights are behind the newest.
    pub(super) fn lag(&self, version: WeightsVersion) -> u64 {
        self.flow.newest.map_or(0, |newest| newest.0.saturating_sub(version.0))
    }

    /// Returns true for a fragment that is too old to be accepted. A fragment of a replayed journal never is: it was
    /// accepted before.
    pub(super) fn is_stale(&self, version: WeightsVersion) -> bool {
        self.flow.script.is_none() && !self.config.mode.allows(self.lag(version))
    }

    /// Drops queued fragments that are too old for any batch. A slot's versions only grow, so these are the first ones of
    /// their slots.
    fn drop_stale(&mut self, newest: WeightsVersion) {
        let mode = self.config.mode;
        let (stale, fresh): (VecDeque<_>, VecDeque<_>) =
            self.flow.order.drain(..).partition(|(_, version)| !mode.allows(newest.0.saturating_sub(version.0)));
        self.flow.order = fresh;
        for &(slot, _) in &stale {
            let dropped = self.slots.take_fragment(slot);
            self.ledger.drop_stale(dropped.map_or(0, |fragment| fragment.env_steps()));
        }
        if !stale.is_empty() {
            self.event(GroupEvent::FragmentsDropped { fragments: stale.len() as u32, newest });
        }
    }

    /// Records the place of a committed fragment in the commit order.
    pub(super) fn record_commit(&mut self, slot: SlotId, fragment: FragmentNo, weights_version: WeightsVersion) {
        if !self.is_free() {
            return;
        }
        match &mut self.flow.script {
            Some(script) => script.committed(slot),
            None => {
                self.flow.order.push_back((slot, weights_version));
                self.flow.journal.push_back(JournalEntry::Committed { slot, fragment, weights_version });
            }
        }
        self.follow_script();
    }

    /// Returns how many of the queued fragments the open iteration's batch takes, `None` while it cannot be taken.
    pub(super) fn free_batch_len(&self) -> Option<usize> {
        self.open.front()?;
        let queued = self.flow.order.len();
        if let Some(script) = &self.flow.script {
            return script.batch_len();
        }
        let is_up = || self.flow.ends_at.is_some_and(|at| at <= self.flow.now);
        match self.config.mode {
            SamplingMode::Synchronous => None,
            SamplingMode::Asynchronous { .. } => Some(self.fragments_per_batch()).filter(|&wanted| wanted <= queued),
            SamplingMode::Deadline { .. } => {
                let is_complete = || self.slots.iter().all(|(_, slot)| slot.queued() > 0);
                (queued > 0 && (is_up() || is_complete())).then_some(queued)
            }
        }
    }

    /// Returns the number of fragments that complete a batch; in deadline mode only the deadline ends it.
    fn fragments_per_batch(&self) -> usize {
        match self.config.mode {
            SamplingMode::Asynchronous { batch_env_steps, .. } => {
                let fragments = batch_env_steps.div_ceil(u64::from(self.config.rollout_fragment_length));
                usize::try_from(fragments).unwrap_or(usize::MAX)
            }
            SamplingMode::Synchronous | SamplingMode::Deadline { .. } => usize::MAX,
        }
    }

    /// Takes the fragments that were committed first as a batch.
    pub(super) fn take_free_batch(&mut self) -> Option<Vec<SlotFragment>> {
        let len = self.free_batch_len()?;
        self.open.pop_front();
        let order: Vec<(SlotId, WeightsVersion)> = self.flow.order.drain(..len.min(self.flow.order.len())).collect();
        let mut batch: Vec<SlotFragment> =
            order.into_iter().filter_map(|(slot, _)| self.slots.take_fragment(slot)).collect();
        batch.sort_by_key(|fragment| (fragment.slot, fragment.fragment));
        match &mut self.flow.script {
            Some(script) => script.take_batch(),
            None => self.flow.journal.push_back(JournalEntry::Batch { fragments: batch.len() as u64 }),
        }
        self.follow_script();
        Some(batch)
    }

    /// Returns when the open iteration ends, unless that time has been handled.
    pub(super) fn iteration_ends_at(&self) -> Option<Micros> {
        self.flow.ends_at.filter(|&at| !self.open.is_empty() && at > self.flow.now)
    }

    /// Grants unleased slots to idle workers.
    pub(super) fn grant_free(&mut self, now: Micros) {
        if self.is_full() {
            return;
        }
        let idle: Vec<WorkerId> =
            self.workers.iter().filter(|(_, worker)| worker.state() == WorkerState::Idle).map(|(&id, _)| id).collect();
        if idle.is_empty() {
            return;
        }
        let shares = self.fair_shares();
        for worker in idle {
            let share = shares.get(&worker).copied().unwrap_or(1).min(self.config.max_slots_per_lease as usize);
            let Some((iteration, slots)) = self.next_lease(worker, share) else { break };
            self.grant(iteration, worker, &slots, now);
        }
    }

    /// Returns true while nothing should be granted: a complete batch waits to be taken, and further fragments would only
    /// become stale; or, in deadline mode, no batch was requested.
    pub(super) fn is_full(&self) -> bool {
        let is_asked = !matches!(self.config.mode, SamplingMode::Deadline { .. }) || self.fragment().is_some();
        self.flow.script.is_none() && !(is_asked && self.flow.order.len() < self.fragments_per_batch())
    }

    /// Returns how many slots each sound worker would have if all slots were to finish at about the same time.
    fn fair_shares(&self) -> BTreeMap<WorkerId, usize> {
        let first = Iteration { fragment: FragmentNo(0), weights_version: WeightsVersion(0) };
        let candidates = self.candidates(first, Worker::is_sound);
        let together: u128 = candidates.iter().map(|candidate| u128::from(candidate.speed)).sum();
        let share = |speed| (u128::from(self.config.num_slots) * u128::from(speed)).div_ceil(together.max(1));
        candidates.iter().map(|candidate| (candidate.worker, share(candidate.speed).max(1) as usize)).collect_ordered()
    }

    /// Returns the next lease for a worker. All its slots are at the same fragment: the slots that are furthest behind come
    /// first, and among these the ones whose states the worker holds.
    fn next_lease(&self, worker: WorkerId, share: usize) -> Option<(Iteration, Vec<SlotId>)> {
        let next = |(id, slot): (SlotId, &Slot)| Some((slot.next(), self.version_to_make(id, slot)?, slot.held_by, id));
        let open: Vec<_> = self.slots.iter().filter(|(id, _)| !self.is_alone(*id)).filter_map(next).collect();
        let (behind, _, _, _) = *open.iter().min()?;
        let own = open.iter().filter(|(_, _, holder, _)| *holder == Some(worker)).min();
        let own = own.filter(|(fragment, _, _, _)| fragment.0 <= behind.0.saturating_add(Self::LEAD));
        let (fragment, weights_version, _, _) = *own.or_else(|| open.iter().min())?;
        let mut fitting: Vec<(bool, SlotId)> = open
            .into_iter()
            .filter(|(number, version, _, _)| (*number, *version) == (fragment, weights_version))
            .map(|(_, _, holder, slot)| (holder != Some(worker), slot))
            .collect();
        fitting.sort_unstable();
        let mut slots: Vec<SlotId> = fitting.into_iter().take(share).map(|(_, slot)| slot).collect();
        slots.sort_unstable();
        Some((Iteration { fragment, weights_version }, slots))
    }

    /// Returns the weights for a slot's next fragment, if it should be granted now and is not leased yet.
    pub(super) fn version_to_make(&self, id: SlotId, slot: &Slot) -> Option<WeightsVersion> {
        let newest = self.flow.newest.filter(|_| slot.leases.is_empty())?;
        if let Some(script) = &self.flow.script {
            return script.version(id, slot.next()).filter(|&version| version <= newest);
        }
        match self.config.mode {
            SamplingMode::Synchronous => None,
            SamplingMode::Asynchronous { .. } => Some(newest),
            SamplingMode::Deadline { .. } => (slot.queued() == 0).then_some(newest),
        }
    }
}

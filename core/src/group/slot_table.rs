//! The slots of a run: their last commits, and the leases of their next fragments.

use super::{replay::Principal, state::SlotMark};
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::{FailedStep, FragmentStart, SlotSource},
    prelude::*,
    sampler::position_in,
};

/// The lease and worker of a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    pub(super) fragment: FragmentNo,
    pub(super) lease: LeaseId,
    pub(super) worker: WorkerId,
}

/// Result of the audit of a fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Checked {
    /// Not audited.
    #[default]
    No,
    /// The recomputed fragment is bit-identical.
    Agrees,
    /// The fragment could not be recomputed.
    Unknown,
}

/// A committed fragment that no batch has taken.
#[derive(Debug)]
struct Queued {
    fragment: SlotFragment,
    start: FragmentStart,
    /// Number of leases that included it.
    asked: u32,
    /// The worker that made it and the principal, if the worker is untrusted.
    by: Option<(WorkerId, Principal)>,
    checked: Checked,
}

/// A committed fragment of an untrusted worker.
pub(super) struct Untrusted<'a> {
    /// The worker that made it, and its principal.
    pub(super) by: (WorkerId, Principal),
    pub(super) start: &'a FragmentStart,
    pub(super) checked: Checked,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// State after the last committed fragment; `None` before the first.
    state: Option<Vec<u8>>,
    /// The worker that still holds this state, since it committed it in its latest lease.
    pub(super) held_by: Option<WorkerId>,
    pub(super) last_commit: Option<Commit>,
    /// Leases below this id may build on a fragment that is no longer committed, or were granted before it was known where
    /// the environment is restarted.
    rewound: LeaseId,
    /// The fragment to commit next.
    next: FragmentNo,
    /// The committed fragments that no batch has taken, in order; in synchronous mode at most one for each open iteration.
    committed: VecDeque<Queued>,
    /// The last committed fragment if its batch was taken and other leases included it, so that their fragments can be
    /// compared with it.
    witness: Option<Queued>,
    /// Number of leases that included the next fragment, waiting follow-ups excluded.
    asked: u32,
    /// The live leases of this slot that do not wait: none, one, or two when it is hedged.
    pub(super) leases: Vec<LeaseId>,
}

#[derive(Debug)]
pub(super) struct SlotTable {
    slots: Vec<Slot>,
    /// All slots that a worker may hold, so that it need not be looked for among all of them.
    held: BTreeMap<WorkerId, BTreeSet<SlotId>>,
    /// See [`LeaseGroup::moved_slots`](super::LeaseGroup::moved_slots).
    pub(super) moved: u64,
}

impl Slot {
    /// Returns the committed fragments that are kept.
    pub(super) fn fragments(&self) -> impl Iterator<Item = &SlotFragment> {
        self.committed.iter().chain(&self.witness).map(|queued| &queued.fragment)
    }

    /// Returns a kept committed fragment's audit state, if the worker that made it is untrusted.
    pub(super) fn untrusted(&self, fragment: FragmentNo) -> Option<Untrusted<'_>> {
        let mut known = self.committed.iter().chain(&self.witness);
        let found = known.find(|queued| queued.fragment.fragment == fragment)?;
        found.by.map(|by| Untrusted { by, start: &found.start, checked: found.checked })
    }

    /// Returns the state that a fragment begins with, if it is kept; `None` for the first one.
    pub(super) fn start_of(&self, fragment: FragmentNo) -> Option<&Vec<u8>> {
        if fragment == self.next {
            return self.state.as_ref();
        }
        let mut known = self.committed.iter().chain(&self.witness);
        known.find(|queued| queued.fragment.fragment == fragment)?.start.state.as_ref()
    }

    /// Returns the state after the last committed fragment.
    pub(super) fn state(&self) -> Option<&Vec<u8>> {
        self.state.as_ref()
    }

    /// Returns the number of the fragment to commit next.
    pub(super) fn next(&self) -> FragmentNo {
        self.next
    }

    /// Returns the number of committed fragments that no batch has taken.
    pub(super) fn queued(&self) -> usize {
        self.committed.len()
    }

    /// Returns the sum of their env steps.
    pub(super) fn queued_env_steps(&self) -> u64 {
        env_steps(&self.committed)
    }

    /// Returns the slot's position when the last batch was taken.
    fn mark(&self) -> SlotMark {
        match self.committed.front() {
            Some(first) => SlotMark { next: first.fragment.fragment, state: first.start.state.clone() },
            None => SlotMark { next: self.next, state: self.state.clone() },
        }
    }

    /// Returns true if fragments of this lease must be equal to what is committed.
    pub(super) fn is_comparable(&self, lease: LeaseId) -> bool {
        lease >= self.rewound
    }

    /// Returns true if this fragment comes next and is not leased.
    pub(super) fn is_open(&self, fragment: FragmentNo) -> bool {
        self.leases.is_empty() && self.next() == fragment
    }

    fn take_fragment(&mut self) -> Option<SlotFragment> {
        let Queued { fragment, start, asked, by, checked } = self.committed.pop_front()?;
        // Clones share buffers, and few slots are leased twice.
        self.witness = (asked > 1 && self.committed.is_empty()).then(|| Queued {
            fragment: fragment.clone(),
            start,
            asked,
            by,
            checked,
        });
        Some(fragment)
    }
}

impl SlotTable {
    pub(super) fn new(num_slots: u32) -> Self {
        Self { slots: (0..num_slots).map(|_| Slot::default()).collect(), held: BTreeMap::new(), moved: 0 }
    }

    /// Restores slots without leases, whose states no worker holds.
    pub(super) fn restore(marks: Vec<SlotMark>) -> Self {
        let slot = |SlotMark { next, state }| Slot { next, state, ..Slot::default() };
        Self { slots: marks.into_iter().map(slot).collect(), held: BTreeMap::new(), moved: 0 }
    }

    pub(super) fn marks(&self) -> Vec<SlotMark> {
        self.slots.iter().map(Slot::mark).collect()
    }

    pub(super) fn get(&self, slot: SlotId) -> Option<&Slot> {
        self.slots.get(slot.0 as usize)
    }

    pub(super) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(slot.0 as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        (0..).map(SlotId).zip(&self.slots)
    }

    /// Returns true once the slot's fragment of this number is committed.
    pub(super) fn is_committed(&self, slot: SlotId, fragment: FragmentNo) -> bool {
        self.get(slot).is_some_and(|slot| slot.next() > fragment)
    }

    pub(super) fn all_committed(&self, fragment: FragmentNo) -> bool {
        self.slots.iter().all(|slot| slot.next() > fragment)
    }

    /// Records the lease and returns where the worker finds the state to start from.
    pub(super) fn lease(&mut self, slot: SlotId, worker: WorkerId, lease: LeaseId) -> SlotSource {
        self.begin_lease(slot, lease);
        let Some(slot) = self.get(slot) else { return SlotSource::New };
        match &slot.state {
            Some(_) if slot.held_by == Some(worker) => SlotSource::Held,
            Some(state) => SlotSource::State(state.clone()),
            None => SlotSource::New,
        }
    }

    pub(super) fn end_lease(&mut self, slot: SlotId, lease: LeaseId) {
        if let Some(slot) = self.get_mut(slot) {
            slot.leases.retain(|&id| id != lease);
        }
    }

    /// Records that a waiting lease has begun.
    pub(super) fn begin_lease(&mut self, slot: SlotId, lease: LeaseId) {
        if let Some(slot) = self.get_mut(slot) {
            slot.leases.push(lease);
            slot.asked = slot.asked.saturating_add(1);
        }
    }

    /// Returns the most steps that a worker may have to replay to restore these slots: each takes at least a byte of a
    /// state.
    pub(super) fn most_replays(&self, slots: &[SlotId]) -> u64 {
        let states = slots.iter().filter_map(|slot| self.get(*slot)?.state.as_ref());
        states.map(|state| state.len() as u64).sum()
    }

    /// Returns how many episodes of the slot were abandoned where a fragment begins: those between the open one of the
    /// slot's state and the first one of the fragment, as far as they did not end in the fragment.
    pub(super) fn abandoned_before(&self, fragment: &SlotFragment) -> u64 {
        let episode = |state: &Vec<u8>| position_in(state, fragment.slot).map(|(episode, _)| episode);
        let before = self.get(fragment.slot).and_then(|slot| slot.state.as_ref()).map_or(Some(0), episode);
        let (Some(before), Some(after)) = (before, episode(&fragment.state)) else { return 0 };
        u64::from(after.wrapping_sub(before).saturating_sub(fragment.episodes.len() as u32))
    }

    /// Fragments of leases below this id are no longer compared with the slot's committed ones.
    pub(super) fn compare_from(&mut self, slot: SlotId, lease: LeaseId) {
        if let Some(slot) = self.get_mut(slot) {
            slot.rewound = lease;
        }
    }

    /// Commits a fragment, whose environment was restarted at these steps. `is_held` says whether the worker still holds the
    /// state at its end.
    pub(super) fn commit(
        &mut self,
        fragment: SlotFragment,
        (lease, worker, principal): (LeaseId, WorkerId, Option<Principal>),
        restarts: Vec<FailedStep>,
        is_held: bool,
    ) {
        let id = fragment.slot;
        let Some(slot) = self.get_mut(id) else { return };
        let start = FragmentStart { state: slot.state.replace(fragment.state.clone()), restarts };
        let is_new_here = slot.last_commit.is_some_and(|last| last.worker != worker);
        let opened = start.state.as_ref().filter(|_| is_new_here).and_then(|start| position_in(start, fragment.slot));
        let has_moved = opened.is_some_and(|(_, env_steps)| env_steps > 0);
        slot.next = FragmentNo(fragment.fragment.0 + 1);
        slot.held_by = is_held.then_some(worker);
        slot.last_commit = Some(Commit { fragment: fragment.fragment, lease, worker });
        slot.committed.push_back(Queued {
            fragment,
            start,
            asked: core::mem::take(&mut slot.asked),
            by: principal.map(|principal| (worker, principal)),
            checked: Checked::No,
        });
        slot.witness = None;
        self.moved += u64::from(has_moved);
        if is_held {
            self.held.entry(worker).or_default().insert(id);
        }
    }

    /// Takes back the queued fragments of a principal, and those that build on them. Returns, for each slot, its fragment
    /// number afterwards, the number of fragments and their env steps. `next_lease` is the id of the first lease that cannot
    /// have begun before.
    pub(super) fn drop_commits_of(
        &mut self,
        principal: Principal,
        next_lease: LeaseId,
    ) -> Vec<(SlotId, FragmentNo, u32, u64)> {
        let mut dropped = Vec::new();
        for (id, slot) in (0..).map(SlotId).zip(&mut self.slots) {
            let Some(first) = slot.committed.iter().position(|queued| queued.by.is_some_and(|(_, by)| by == principal))
            else {
                continue;
            };
            let mut taken = slot.committed.split_off(first);
            let (fragments, env_steps) = (taken.len() as u32, env_steps(&taken));
            let Some(Queued { fragment, start, .. }) = taken.pop_front() else { continue };
            slot.state = start.state;
            slot.next = fragment.fragment;
            slot.rewound = next_lease;
            (slot.held_by, slot.last_commit, slot.asked) = (None, None, slot.leases.len() as u32);
            dropped.push((id, slot.next, fragments, env_steps));
        }
        dropped
    }

    /// Records the result of an audit of a worker's fragment, if that is kept.
    pub(super) fn check(&mut self, (slot, fragment): (SlotId, FragmentNo), worker: WorkerId, checked: Checked) {
        let Some(slot) = self.get_mut(slot) else { return };
        let is_meant = |queued: &&mut Queued| {
            queued.fragment.fragment == fragment && queued.by.is_some_and(|(by, _)| by == worker)
        };
        if let Some(queued) = slot.committed.iter_mut().chain(&mut slot.witness).find(is_meant) {
            queued.checked = checked;
        }
    }

    /// Records that the worker holds no slot's state any more.
    pub(super) fn forget_holder(&mut self, worker: WorkerId) {
        for id in self.held.remove(&worker).unwrap_or_default() {
            if let Some(slot) = self.get_mut(id) {
                slot.held_by.take_if(|holder| *holder == worker);
            }
        }
    }

    /// Takes the first queued fragment of a slot.
    pub(super) fn take_fragment(&mut self, slot: SlotId) -> Option<SlotFragment> {
        self.get_mut(slot)?.take_fragment()
    }

    /// Takes the fragments of the first open iteration in slot order.
    pub(super) fn take_fragments(&mut self) -> Vec<SlotFragment> {
        self.slots.iter_mut().filter_map(Slot::take_fragment).collect()
    }
}

fn env_steps(queued: &VecDeque<Queued>) -> u64 {
    queued.iter().map(|queued| queued.fragment.env_steps()).sum()
}

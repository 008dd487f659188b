//! The slots of a run: what was committed last, and who works on what comes next.

use super::{replay::Party, state::SlotMark};
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::SlotSource,
    prelude::*,
    sampler::position_in,
};

/// Who committed a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    pub(super) fragment: FragmentNo,
    pub(super) lease: LeaseId,
    pub(super) worker: WorkerId,
}

/// What came of making a fragment again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Checked {
    /// Nobody has.
    #[default]
    No,
    /// It is what it should be.
    Agrees,
    /// It could not be made again.
    Unknown,
}

/// A committed fragment that no batch has taken.
#[derive(Debug)]
struct Queued {
    fragment: SlotFragment,
    /// The state that it began with.
    start: Option<Vec<u8>>,
    /// Leases that were asked for it.
    asked: u32,
    /// Who made it and who answers for that, if that one is not trusted.
    by: Option<(WorkerId, Party)>,
    checked: Checked,
}

/// A committed fragment of somebody who is not trusted.
pub(super) struct Untrusted<'a> {
    /// Who made it, and who answers for that.
    pub(super) by: (WorkerId, Party),
    /// The state that it began with.
    pub(super) start: Option<&'a Vec<u8>>,
    pub(super) checked: Checked,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// State after the last committed fragment; none before the first.
    state: Option<Vec<u8>>,
    /// The worker that still has this very state: it committed it in its latest lease.
    pub(super) held_by: Option<WorkerId>,
    pub(super) last_commit: Option<Commit>,
    /// Leases before this one may go on from a fragment that is no longer committed.
    rewound: LeaseId,
    /// The fragment to commit next.
    next: FragmentNo,
    /// The committed fragments that no batch has taken, in order; in synchronous mode at most one for each open iteration.
    committed: VecDeque<Queued>,
    /// The fragment committed last, if its batch was taken and if somebody else was asked for it too, to compare theirs with.
    witness: Option<Queued>,
    /// Leases that were asked for the fragment to come; those that wait for the end of another one not counted.
    asked: u32,
    /// The live leases of this slot that do not wait: none, one, or two when it is hedged.
    pub(super) leases: Vec<LeaseId>,
}

#[derive(Debug)]
pub(super) struct SlotTable {
    slots: Vec<Slot>,
    /// See [`LeaseGroup::moved_slots`](super::LeaseGroup::moved_slots).
    pub(super) moved: u64,
}

impl Slot {
    /// The committed fragments that are still of use.
    pub(super) fn fragments(&self) -> impl Iterator<Item = &SlotFragment> {
        self.committed.iter().chain(&self.witness).map(|queued| &queued.fragment)
    }

    /// What is known of a committed fragment that is still of use, if whoever made it is not trusted.
    pub(super) fn untrusted(&self, fragment: FragmentNo) -> Option<Untrusted<'_>> {
        let mut known = self.committed.iter().chain(&self.witness);
        let found = known.find(|queued| queued.fragment.fragment == fragment)?;
        found.by.map(|by| Untrusted { by, start: found.start.as_ref(), checked: found.checked })
    }

    /// The state that a fragment begins with, if it is still of use; none for the first one.
    pub(super) fn start_of(&self, fragment: FragmentNo) -> Option<&Vec<u8>> {
        if fragment == self.next {
            return self.state.as_ref();
        }
        let mut known = self.committed.iter().chain(&self.witness);
        known.find(|queued| queued.fragment.fragment == fragment)?.start.as_ref()
    }

    /// State after the last committed fragment.
    pub(super) fn state(&self) -> Option<&Vec<u8>> {
        self.state.as_ref()
    }

    /// The fragment to commit next.
    pub(super) fn next(&self) -> FragmentNo {
        self.next
    }

    /// Committed fragments that no batch has taken.
    pub(super) fn queued(&self) -> usize {
        self.committed.len()
    }

    /// Their env steps.
    pub(super) fn queued_env_steps(&self) -> u64 {
        env_steps(&self.committed)
    }

    /// Where the slot was when the last batch was taken.
    fn mark(&self) -> SlotMark {
        match self.committed.front() {
            Some(first) => SlotMark { next: first.fragment.fragment, state: first.start.clone() },
            None => SlotMark { next: self.next, state: self.state.clone() },
        }
    }

    /// True if what this lease brings must be equal to what is committed.
    pub(super) fn is_comparable(&self, lease: LeaseId) -> bool {
        lease >= self.rewound
    }

    /// True if nobody works on this fragment, and it comes next.
    pub(super) fn is_open(&self, fragment: FragmentNo) -> bool {
        self.leases.is_empty() && self.next() == fragment
    }

    fn take_fragment(&mut self) -> Option<SlotFragment> {
        let Queued { fragment, start, asked, by, checked } = self.committed.pop_front()?;
        // Clones share buffers, and few slots are asked for twice.
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
        Self { slots: (0..num_slots).map(|_| Slot::default()).collect(), moved: 0 }
    }

    /// Slots that nobody works on and whose states nobody holds.
    pub(super) fn restore(marks: Vec<SlotMark>) -> Self {
        let slot = |SlotMark { next, state }| Slot { next, state, ..Slot::default() };
        Self { slots: marks.into_iter().map(slot).collect(), moved: 0 }
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

    /// True once the slot's fragment of this number is there.
    pub(super) fn is_committed(&self, slot: SlotId, fragment: FragmentNo) -> bool {
        self.get(slot).is_some_and(|slot| slot.next() > fragment)
    }

    pub(super) fn all_committed(&self, fragment: FragmentNo) -> bool {
        self.slots.iter().all(|slot| slot.next() > fragment)
    }

    /// Notes the lease and says where the worker finds the state to start from.
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

    /// Notes that a lease which waited is worked on.
    pub(super) fn begin_lease(&mut self, slot: SlotId, lease: LeaseId) {
        if let Some(slot) = self.get_mut(slot) {
            slot.leases.push(lease);
            slot.asked = slot.asked.saturating_add(1);
        }
    }

    /// The most steps that it may take to bring these slots back: each takes a byte of a state at least.
    pub(super) fn most_replays(&self, slots: &[SlotId]) -> u64 {
        let states = slots.iter().filter_map(|slot| self.get(*slot)?.state.as_ref());
        states.map(|state| state.len() as u64).sum()
    }

    /// How many episodes of its slot were given up where a fragment begins: those between the open one of the slot's state and
    /// the one after the fragment that are not among those that ended in it.
    pub(super) fn abandoned_before(&self, fragment: &SlotFragment) -> u64 {
        let episode = |state: &Vec<u8>| position_in(state, fragment.slot).map(|(episode, _)| episode);
        let before = self.get(fragment.slot).and_then(|slot| slot.state.as_ref()).map_or(Some(0), episode);
        let (Some(before), Some(after)) = (before, episode(&fragment.state)) else { return 0 };
        u64::from(after.wrapping_sub(before).saturating_sub(fragment.episodes.len() as u32))
    }

    /// Takes a fragment. `is_held` tells whether the worker still has the state at its end.
    pub(super) fn commit(
        &mut self,
        fragment: SlotFragment,
        (lease, worker, party): (LeaseId, WorkerId, Option<Party>),
        is_held: bool,
    ) {
        let Some(slot) = self.get_mut(fragment.slot) else { return };
        let start = slot.state.replace(fragment.state.clone());
        let is_new_here = slot.last_commit.is_some_and(|last| last.worker != worker);
        let opened = start.as_ref().filter(|_| is_new_here).and_then(|start| position_in(start, fragment.slot));
        let has_moved = opened.is_some_and(|(_, env_steps)| env_steps > 0);
        slot.next = FragmentNo(fragment.fragment.0 + 1);
        slot.held_by = is_held.then_some(worker);
        slot.last_commit = Some(Commit { fragment: fragment.fragment, lease, worker });
        slot.committed.push_back(Queued {
            fragment,
            start,
            asked: core::mem::take(&mut slot.asked),
            by: party.map(|party| (worker, party)),
            checked: Checked::No,
        });
        slot.witness = None;
        self.moved += u64::from(has_moved);
    }

    /// Takes back the queued fragments of a party, and those that go on from them: the slots, where they are again, and how
    /// many fragments these were. `next_lease` is the first lease that cannot have begun before.
    pub(super) fn drop_commits_of(&mut self, party: Party, next_lease: LeaseId) -> Vec<(SlotId, FragmentNo, u32, u64)> {
        let mut dropped = Vec::new();
        for (id, slot) in (0..).map(SlotId).zip(&mut self.slots) {
            let Some(first) = slot.committed.iter().position(|queued| queued.by.is_some_and(|(_, by)| by == party))
            else {
                continue;
            };
            let mut taken = slot.committed.split_off(first);
            let (fragments, env_steps) = (taken.len() as u32, env_steps(&taken));
            let Some(Queued { fragment, start, .. }) = taken.pop_front() else { continue };
            slot.state = start;
            slot.next = fragment.fragment;
            slot.rewound = next_lease;
            (slot.held_by, slot.last_commit, slot.asked) = (None, None, slot.leases.len() as u32);
            dropped.push((id, slot.next, fragments, env_steps));
        }
        dropped
    }

    /// Notes what came of making a worker's fragment again, if that is still of use.
    pub(super) fn check(&mut self, (slot, fragment): (SlotId, FragmentNo), worker: WorkerId, checked: Checked) {
        let Some(slot) = self.get_mut(slot) else { return };
        let is_meant = |queued: &&mut Queued| {
            queued.fragment.fragment == fragment && queued.by.is_some_and(|(by, _)| by == worker)
        };
        if let Some(queued) = slot.committed.iter_mut().chain(&mut slot.witness).find(is_meant) {
            queued.checked = checked;
        }
    }

    /// The worker has no state of any slot any more.
    pub(super) fn forget_holder(&mut self, worker: WorkerId) {
        for slot in &mut self.slots {
            slot.held_by.take_if(|holder| *holder == worker);
        }
    }

    /// The first queued fragment of a slot.
    pub(super) fn take_fragment(&mut self, slot: SlotId) -> Option<SlotFragment> {
        self.get_mut(slot)?.take_fragment()
    }

    /// The fragments of the first open iteration in slot order.
    pub(super) fn take_fragments(&mut self) -> Vec<SlotFragment> {
        self.slots.iter_mut().filter_map(Slot::take_fragment).collect()
    }
}

fn env_steps(queued: &VecDeque<Queued>) -> u64 {
    queued.iter().map(|queued| queued.fragment.env_steps()).sum()
}

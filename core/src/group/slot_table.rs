//! The slots of a run: what was committed last, and who works on what comes next.

use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::SlotSource,
    prelude::*,
};

/// Who committed a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    pub(super) fragment: FragmentNo,
    pub(super) lease: LeaseId,
    pub(super) worker: WorkerId,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// State after the last committed fragment; none before the first.
    state: Option<Vec<u8>>,
    /// The worker that still has this very state: it committed it in its latest lease.
    pub(super) held_by: Option<WorkerId>,
    pub(super) last_commit: Option<Commit>,
    /// The committed fragment, until the batch is taken.
    pub(super) fragment: Option<SlotFragment>,
    /// The fragment committed before, if somebody else was asked for it too, to compare theirs with.
    witness: Option<SlotFragment>,
    /// Leases that were asked for the fragment to come.
    asked: u32,
    /// The live leases of this slot: none, one, or two when it is hedged.
    pub(super) leases: Vec<LeaseId>,
}

#[derive(Debug)]
pub(super) struct SlotTable {
    slots: Vec<Slot>,
}

impl Slot {
    /// The fragment committed last, as long as it is of use.
    pub(super) fn last_fragment(&self) -> Option<&SlotFragment> {
        self.fragment.as_ref().or(self.witness.as_ref())
    }

    fn take_fragment(&mut self) -> Option<SlotFragment> {
        let fragment = self.fragment.take();
        // Clones share buffers, and few slots are asked for twice.
        self.witness = fragment.clone().filter(|_| self.asked > 1);
        self.asked = 0;
        fragment
    }
}

impl SlotTable {
    pub(super) fn new(num_slots: u32) -> Self {
        Self { slots: (0..num_slots).map(|_| Slot::default()).collect() }
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

    /// True once the slot's fragment of the open iteration is there.
    pub(super) fn is_committed(&self, slot: SlotId) -> bool {
        self.get(slot).is_some_and(|slot| slot.fragment.is_some())
    }

    pub(super) fn all_committed(&self) -> bool {
        self.slots.iter().all(|slot| slot.fragment.is_some())
    }

    /// Notes the lease and says where the worker finds the state to start from.
    pub(super) fn lease(&mut self, slot: SlotId, worker: WorkerId, lease: LeaseId) -> SlotSource {
        let Some(slot) = self.get_mut(slot) else { return SlotSource::New };
        slot.leases.push(lease);
        slot.asked = slot.asked.saturating_add(1);
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

    pub(super) fn commit(&mut self, fragment: SlotFragment, lease: LeaseId, worker: WorkerId) {
        let Some(slot) = self.get_mut(fragment.slot) else { return };
        slot.state = Some(fragment.state.clone());
        slot.held_by = Some(worker);
        slot.last_commit = Some(Commit { fragment: fragment.fragment, lease, worker });
        slot.fragment = Some(fragment);
        slot.witness = None;
    }

    /// The worker has no state of any slot any more.
    pub(super) fn forget_holder(&mut self, worker: WorkerId) {
        for slot in &mut self.slots {
            slot.held_by.take_if(|holder| *holder == worker);
        }
    }

    /// The fragments of the iteration in slot order.
    pub(super) fn take_fragments(&mut self) -> Vec<SlotFragment> {
        self.slots.iter_mut().filter_map(Slot::take_fragment).collect()
    }
}

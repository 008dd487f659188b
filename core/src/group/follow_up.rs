//! Follow-up leases: they wait behind a worker's current lease, so that it continues while its upload travels.

use super::{
    ExpiryCause, GroupCommand, LeaseGroup, Mode,
    assign::{Candidate, assign},
    grant::Iteration,
    lease_table::LiveLease,
    worker::Worker,
};
use crate::{
    ids::{LeaseId, SlotId, WorkerId},
    lease::{Lease, SlotSource},
    prelude::*,
    protocol::WorkerState,
    time::Micros,
};

impl LeaseGroup {
    /// Grants the second open iteration while the first is in progress, as long as every slot stays where it is: a worker
    /// that is busy with its slots of the first gets those of the second as a follow-up, and a worker that has finished gets
    /// them immediately. If balance requires another split, the second iteration waits for the end of the first.
    pub(super) fn grant_ahead(&mut self, now: Micros) {
        let (Mode::Running, Some(&second)) = (self.mode, self.open.get(1)) else { return };
        let split = self.split();
        let able: Vec<WorkerId> = split.keys().copied().filter(|&id| self.may_go_ahead(second, id, &split)).collect();
        if able.is_empty() || !self.stays(&split, &self.candidates(second, Worker::is_sound)) {
            return;
        }
        for worker in able {
            let Some(slots) = split.get(&worker) else { continue };
            match self.workers.get(&worker).and_then(|known| known.lease) {
                Some(before) => self.grant_follow_up(second, worker, before, slots, now),
                None => _ = self.grant(second, worker, slots, now),
            }
        }
    }

    /// Returns the slots by worker: the worker that leased the slot first, else the one that holds its state.
    fn split(&self) -> BTreeMap<WorkerId, Vec<SlotId>> {
        let mut split = BTreeMap::<WorkerId, Vec<SlotId>>::new();
        for (id, slot) in self.slots.iter() {
            let leased = slot.leases.first().and_then(|&lease| self.leases.get(lease)).map(|lease| lease.worker);
            if let Some(worker) = leased.or(slot.held_by) {
                split.entry(worker).or_default().push(id);
            }
        }
        split
    }

    /// Returns true if balance leaves all slots where they are.
    fn stays(&self, split: &BTreeMap<WorkerId, Vec<SlotId>>, candidates: &[Candidate]) -> bool {
        let homes = split.iter().flat_map(|(&worker, slots)| slots.iter().map(move |&slot| (slot, Some(worker))));
        let mut homes: Vec<_> = homes.collect();
        homes.sort_unstable();
        homes.len() == self.config.num_slots as usize && assign(&homes, candidates, self.split_rule()) == *split
    }

    /// Returns true if a worker could get its slots of the second iteration now.
    fn may_go_ahead(&self, second: Iteration, worker: WorkerId, split: &BTreeMap<WorkerId, Vec<SlotId>>) -> bool {
        let (Some(known), Some(slots)) = (self.workers.get(&worker), split.get(&worker)) else { return false };
        match (known.state(), known.lease) {
            (WorkerState::Idle, _) => {
                let is_open = |&slot: &SlotId| self.slots.get(slot).is_some_and(|slot| slot.is_open(second.fragment));
                slots.iter().all(is_open)
            }
            (WorkerState::Sampling, Some(before)) if known.follow_up.is_none() => {
                self.leases.get(before).is_some_and(|live| {
                    live.fragment.0 + 1 == second.fragment.0
                        && live.leaves_states
                        && live.slots == *slots
                        && live.open.len() == slots.len()
                        && self.unhedged(live).count() == slots.len()
                })
            }
            _ => false,
        }
    }

    fn grant_follow_up(
        &mut self,
        Iteration { fragment, weights_version }: Iteration,
        worker: WorkerId,
        before: LeaseId,
        slots: &[SlotId],
        now: Micros,
    ) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        let env_steps = u64::from(self.config.rollout_fragment_length) * slots.len() as u64;
        let replays = self.slots.most_replays(slots);
        let id =
            self.leases.insert(worker, (fragment, weights_version), slots, (env_steps, replays), now, known.patience());
        self.leases.let_follow(id, before);
        known.follow_up = Some(id);
        known.latest = Some(fragment);
        self.ledger.open(env_steps);
        let slots = self.with_restarts(id, slots.iter().map(|&slot| (slot, SlotSource::Held)).collect());
        let lease = Lease { id, fragment, weights_version, slots };
        self.commands.push_back(GroupCommand::Grant { worker, lease });
    }

    /// Begins the follow-ups whose workers have finished the lease before, and revokes those that have no state to start
    /// from.
    pub(super) fn turn_to_follow_ups(&mut self, now: Micros) {
        let due = self.workers.iter().filter(|(_, worker)| worker.lease.is_none());
        let due: Vec<(WorkerId, LeaseId)> = due.filter_map(|(&id, worker)| Some((id, worker.follow_up?))).collect();
        for (worker, id) in due {
            if self.leases.get(id).is_some_and(|lease| self.can_begin(lease)) {
                self.begin_follow_up(worker, id, now);
            } else {
                self.expire(id, ExpiryCause::Revoked);
            }
        }
    }

    /// Returns true if the lease before has committed all slots that this one continues.
    fn can_begin(&self, lease: &LiveLease) -> bool {
        let commit = |&slot: &SlotId| self.slots.get(slot).and_then(|slot| slot.last_commit);
        lease.slots.iter().all(|slot| {
            commit(slot).is_some_and(|commit| (commit.worker, Some(commit.lease)) == (lease.worker, lease.follows))
        })
    }

    fn begin_follow_up(&mut self, worker: WorkerId, id: LeaseId, now: Micros) {
        let (Some(known), Some(lease)) = (self.workers.get_mut(&worker), self.leases.get(id)) else { return };
        for &slot in &lease.open {
            self.slots.begin_lease(slot, id);
        }
        known.follow_up = None;
        known.lease = Some(id);
        self.leases.begin(id, known.done, known.patience(), now);
        // The follow-up continues from the states that the worker held, so it no longer has those.
        self.slots.forget_holder(worker);
    }

    /// Revokes a worker's follow-up, if it has one.
    pub(super) fn take_back_follow_up(&mut self, worker: WorkerId) {
        if let Some(id) = self.workers.get(&worker).and_then(|known| known.follow_up) {
            self.expire(id, ExpiryCause::Revoked);
        }
    }

    /// Records that a worker has no follow-up any more. The worker may have begun it, so the group assumes that the states
    /// it started from are lost, also those of slots it has already uploaded.
    pub(super) fn record_end_of_follow_up(&mut self, lease: &LiveLease) {
        if let Some(worker) = self.workers.get_mut(&lease.worker) {
            worker.follow_up = None;
        }
        self.slots.forget_holder(lease.worker);
        if let Some(before) = lease.follows.and_then(|before| self.leases.get_mut(before)) {
            before.leaves_states = false;
        }
    }

    /// Returns true if leases and their follow-ups are consistent.
    pub(super) fn follow_ups_are_consistent(&self) -> bool {
        self.workers.iter().filter_map(|(&id, worker)| Some((id, worker, worker.follow_up?))).all(
            |(id, worker, next)| {
                let pair = worker.lease.and_then(|lease| Some((self.leases.of(id, lease)?, self.leases.of(id, next)?)));
                pair.is_some_and(|(lease, next)| {
                    next.follows == worker.lease
                        && !lease.is_waiting()
                        && (lease.fragment.0 + 1, lease.weights_version) == (next.fragment.0, next.weights_version)
                        && lease.slots == next.slots
                })
            },
        )
    }
}

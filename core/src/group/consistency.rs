//! Invariants that hold after every call, checked by recounting.

use super::{LeaseGroup, worker::Worker};
use crate::ids::WorkerId;

impl LeaseGroup {
    /// Returns true if ledger, slots, leases and workers agree with each other.
    pub(super) fn is_consistent(&self) -> bool {
        self.ledger_is_right()
            && self.leases_are_in_place()
            && self.follow_ups_are_consistent()
            && self.flow_is_in_order()
    }

    fn ledger_is_right(&self) -> bool {
        let length = u64::from(self.config.rollout_fragment_length);
        let open: usize = self.leases.iter().map(|(_, lease)| lease.open.len()).sum();
        self.ledger.balances()
            && self.ledger.outstanding == open as u64 * length
            && self.ledger.queued == self.slots.iter().map(|(_, slot)| slot.queued_env_steps()).sum::<u64>()
    }

    fn leases_are_in_place(&self) -> bool {
        let running = self.leases.iter().filter(|(_, lease)| !lease.is_waiting());
        let running: usize = running.map(|(_, lease)| lease.open.len()).sum();
        let by_slot: usize = self.slots.iter().map(|(_, slot)| slot.leases.len()).sum();
        let of_worker =
            |(&id, worker): (&WorkerId, &Worker)| [worker.lease, worker.follow_up].map(|lease| Some((id, lease?)));
        let by_worker = self.workers.iter().flat_map(of_worker).flatten();
        by_slot == running
            && by_worker.clone().count() == self.leases.iter().count()
            && by_worker.clone().all(|(worker, lease)| self.leases.of(worker, lease).is_some())
            && self.workers.values().all(|worker| worker.overtaken.is_none() || worker.lease.is_none())
            && self.slots.iter().all(|(_, slot)| slot.leases.len() <= 2)
    }

    /// Checks the asynchronous modes: no queued fragment is stale, and no slot is leased twice.
    fn flow_is_in_order(&self) -> bool {
        let queued: usize = self.slots.iter().map(|(_, slot)| slot.queued()).sum();
        let is_all = self.flow.script.is_some() || self.flow.order.len() == queued;
        !self.is_free()
            || is_all
                && self.flow.order.iter().all(|&(_, version)| self.config.mode.allows(self.lag(version)))
                && self.slots.iter().all(|(_, slot)| slot.leases.len() <= 1)
    }
}

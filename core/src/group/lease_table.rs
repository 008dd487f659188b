//! The live leases: for each worker at most one in progress, and one follow-up.

use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::FailedStep,
    prelude::*,
    time::Micros,
};

/// A lease whose fragments may still be accepted.
#[derive(Debug)]
pub(super) struct LiveLease {
    pub(super) worker: WorkerId,
    pub(super) fragment: FragmentNo,
    pub(super) weights_version: WeightsVersion,
    /// The lease that must end first, with all slots committed. `None` once this one has begun.
    pub(super) follows: Option<LeaseId>,
    /// All its slots, ascending.
    pub(super) slots: Vec<SlotId>,
    /// Slots whose grant has not ended.
    pub(super) open: BTreeSet<SlotId>,
    /// Where the environments of some of its slots are restarted.
    pub(super) restarts: BTreeMap<SlotId, Vec<FailedStep>>,
    /// Env steps of all its slots.
    pub(super) env_steps: u64,
    /// Most env steps that its worker may have to replay before it makes new ones.
    replays: u64,
    /// Env steps that the worker has reported.
    reported: u64,
    /// When it began.
    pub(super) granted_at: Micros,
    pub(super) deadline: Micros,
    /// Start time and env steps from which the worker's speed is measured; includes the lease before, if this is a
    /// follow-up.
    pub(super) measured: (Micros, u64),
    /// False if its worker may not hold the lease's final states any more, since it may have continued from them.
    pub(super) leaves_states: bool,
}

impl LiveLease {
    /// Returns where the environment of a slot is restarted, ascending.
    pub(super) fn restarts_of(&self, slot: SlotId) -> &[FailedStep] {
        self.restarts.get(&slot).map_or(&[], Vec::as_slice)
    }

    /// Returns true if it waits for the end of another lease. It has no deadline then and is not overdue.
    pub(super) fn is_waiting(&self) -> bool {
        self.follows.is_some()
    }

    /// Begins a follow-up, since the lease before it has finished.
    fn begin(&mut self, (since, env_steps): (Micros, u64), patience: Micros, now: Micros) {
        self.follows = None;
        self.granted_at = now;
        self.deadline = now + patience;
        // Two uploads may be committed at nearly the same time, so the speed is measured over both leases.
        self.measured = (since, env_steps + self.env_steps);
    }

    /// Extends the deadline if the worker has made progress; replayed steps count. Reporting the same number again is a sign
    /// of life, but no progress. More than twice the steps that fragments of `most` env steps and their replays can have is
    /// ignored, so no worker can hold a lease for ever.
    pub(super) fn progress(&mut self, env_steps: u64, most: u32, patience: Micros, now: Micros) {
        // After a failure each slot is run a second time, on its own.
        let most = u64::from(most) * self.slots.len() as u64 + self.replays;
        if env_steps > self.reported && env_steps <= 2 * most {
            self.reported = env_steps;
            self.deadline = now + patience;
        }
    }
}

#[derive(Debug)]
pub(super) struct LeaseTable {
    live: BTreeMap<LeaseId, LiveLease>,
    next: LeaseId,
}

impl LeaseTable {
    pub(super) fn new(first: LeaseId) -> Self {
        Self { live: BTreeMap::new(), next: first }
    }

    /// Returns the id that the next lease will have.
    pub(super) fn next_id(&self) -> LeaseId {
        self.next
    }

    pub(super) fn insert(
        &mut self,
        worker: WorkerId,
        (fragment, weights_version): (FragmentNo, WeightsVersion),
        slots: &[SlotId],
        (env_steps, replays): (u64, u64),
        now: Micros,
        patience: Micros,
    ) -> LeaseId {
        let id = self.next;
        self.next = LeaseId(id.0 + 1);
        let lease = LiveLease {
            worker,
            fragment,
            weights_version,
            follows: None,
            slots: slots.to_vec(),
            open: slots.iter().copied().collect(),
            restarts: BTreeMap::new(),
            env_steps,
            replays,
            reported: 0,
            granted_at: now,
            deadline: now + patience,
            measured: (now, env_steps),
            leaves_states: true,
        };
        self.live.insert(id, lease);
        id
    }

    /// Makes a lease the follow-up of another one.
    pub(super) fn let_follow(&mut self, id: LeaseId, before: LeaseId) {
        if let Some(lease) = self.get_mut(id) {
            lease.follows = Some(before);
        }
    }

    /// Begins a follow-up. `measured` is that of the lease before.
    pub(super) fn begin(&mut self, id: LeaseId, measured: (Micros, u64), patience: Micros, now: Micros) {
        if let Some(lease) = self.get_mut(id) {
            lease.begin(measured, patience, now);
        }
    }

    pub(super) fn get(&self, id: LeaseId) -> Option<&LiveLease> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut LiveLease> {
        self.live.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<LiveLease> {
        self.live.remove(&id)
    }

    /// Returns the lease if it is live and belongs to this worker.
    pub(super) fn of(&self, worker: WorkerId, id: LeaseId) -> Option<&LiveLease> {
        self.get(id).filter(|lease| lease.worker == worker)
    }

    /// Returns it as [`of`](Self::of) does, mutably.
    pub(super) fn of_mut(&mut self, worker: WorkerId, id: LeaseId) -> Option<&mut LiveLease> {
        self.get_mut(id).filter(|lease| lease.worker == worker)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LeaseId, &LiveLease)> {
        self.live.iter().map(|(&id, lease)| (id, lease))
    }

    /// Returns the ids of the live leases for which `wanted` holds.
    pub(super) fn ids(&self, wanted: impl Fn(&LiveLease) -> bool) -> Vec<LeaseId> {
        self.iter().filter(|(_, lease)| wanted(lease)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_env_steps_move_the_deadline() {
        let mut table = LeaseTable::new(LeaseId(7));
        let work = (FragmentNo(0), WeightsVersion(0));
        let id = table.insert(WorkerId(1), work, &[SlotId(0)], (10, 3), Micros(0), Micros(5));
        assert_eq!((id, table.next_id()), (LeaseId(7), LeaseId(8)));
        let lease = table.get_mut(id).unwrap();
        lease.progress(4, 10, Micros(5), Micros(3));
        assert_eq!(lease.deadline, Micros(8));
        lease.progress(4, 10, Micros(5), Micros(4));
        lease.progress(3, 10, Micros(5), Micros(4));
        lease.progress(27, 10, Micros(5), Micros(4));
        assert_eq!(lease.deadline, Micros(8));
    }
}

//! Granting slots to workers, and taking them back.

use super::{
    End, ExpiryCause, FragmentOutcome, GroupCommand, GroupEvent, LeaseGroup, Mode,
    assign::{Candidate, Split, assign},
    lease_table::LiveLease,
    worker::{Overtaken, Worker},
};
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::WorkerState,
    time::Micros,
};

/// One fragment of every slot, with one version of the weights. In the asynchronous and deadline modes its number is the
/// batch's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Iteration {
    pub(super) fragment: FragmentNo,
    pub(super) weights_version: WeightsVersion,
}

/// If no worker needs longer than this for an equal share, all get equal shares.
const EVEN_SPLIT: Micros = Micros::from_millis(10);

impl LeaseGroup {
    /// Iterations without a lease after which a slow worker gets one slot, so that its speed is measured again.
    const PROBE_AFTER: u64 = 8;

    /// Runs what follows every call, in this order: begins or revokes follow-ups, grants failed slots, then open ones,
    /// hedges overdue ones, grants those of the next iteration, and dismisses removed workers that have finished.
    pub(super) fn advance(&mut self, now: Micros) {
        self.flow.now = self.flow.now.max(now);
        self.turn_to_follow_ups(now);
        if self.may_grant() {
            self.grant_failed(now);
            if self.is_free() {
                self.grant_free(now);
            } else if let Some(iteration) = self.being_made() {
                self.grant_open(iteration, now);
                self.hedge(iteration, now);
                self.grant_ahead(now);
            }
        }
        self.dismiss_leavers();
        debug_assert!(self.is_consistent(), "the group's ledger is wrong: {self:#?}");
    }

    fn may_grant(&self) -> bool {
        self.mode == Mode::Running && self.fatal_failure().is_none()
    }

    /// Grants the slots that are not leased.
    fn grant_open(&mut self, iteration: Iteration, now: Micros) {
        if self.has_idle() {
            let open = self.slots.iter();
            let open = open.filter(|(id, slot)| slot.is_open(iteration.fragment) && !self.is_alone(*id));
            let open = open.map(|(id, slot)| (id, slot.held_by)).collect();
            self.grant_all(iteration, open, now);
        }
    }

    /// Grants the slots of overdue leases a second time.
    fn hedge(&mut self, iteration: Iteration, now: Micros) {
        if self.has_idle() && self.config.reproducible {
            let overdue_after = self.durations.overdue_after();
            let overdue = self.leases.iter().filter(|(_, lease)| lease.fragment == iteration.fragment);
            let overdue = overdue.filter(|(_, lease)| !lease.is_waiting() && lease.granted_at + overdue_after <= now);
            let slots: BTreeSet<SlotId> = overdue.flat_map(|(_, lease)| self.hedgeable(lease)).collect_ordered();
            let (alone, slots): (Vec<_>, Vec<_>) = slots.into_iter().partition(|slot| self.is_alone(*slot));
            let slots = slots.into_iter().map(|slot| (slot, None)).collect();
            let mut granted = self.grant_all(iteration, slots, now);
            for slot in alone {
                if let Some(worker) = self.next_after_failure(slot)
                    && let Some(lease) = self.grant(iteration, worker, &[slot], now)
                {
                    granted.push((worker, lease, 1));
                }
            }
            for (worker, lease, slots) in granted {
                self.event(GroupEvent::LeaseHedged { worker, lease, slots });
            }
        }
    }

    /// Grants slots to idle workers until either run out. Returns the worker, lease and number of slots of each grant.
    fn grant_all(
        &mut self,
        iteration: Iteration,
        mut slots: Vec<(SlotId, Option<WorkerId>)>,
        now: Micros,
    ) -> Vec<(WorkerId, LeaseId, u32)> {
        let is_idle = |worker: &Worker| worker.state() == WorkerState::Idle;
        let mut granted = Vec::new();
        // One pass, unless leases are too small for all slots: further passes include workers that a good split would leave
        // out.
        while !slots.is_empty() && self.has_idle() {
            let shares = assign(&slots, &self.candidates(iteration, is_idle), self.split_rule());
            let assigned: BTreeSet<SlotId> = shares.values().flatten().copied().collect_ordered();
            slots.retain(|(slot, _)| !assigned.contains(slot));
            for (worker, share) in shares {
                if let Some(lease) = self.grant(iteration, worker, &share, now) {
                    granted.push((worker, lease, share.len() as u32));
                }
            }
        }
        granted
    }

    /// Returns the limits of an assignment.
    pub(super) fn split_rule(&self) -> Split {
        let slack = if self.config.reproducible { Split::SLACK } else { Split::SLACK_OF_EPISODES };
        Split { max_slots_per_lease: self.config.max_slots_per_lease, slack }
    }

    fn has_idle(&self) -> bool {
        self.workers.values().any(|worker| worker.state() == WorkerState::Idle)
    }

    /// Returns the workers among which an iteration is split.
    pub(super) fn candidates(&self, iteration: Iteration, is_one: impl Fn(&Worker) -> bool) -> Vec<Candidate> {
        let mean = self.mean_speed();
        let workers = self.workers.iter().filter(|(_, worker)| is_one(worker));
        let probe_at = |latest: FragmentNo| latest.0 + Self::PROBE_AFTER;
        let mut candidates: Vec<Candidate> = workers
            .map(|(&id, worker)| Candidate {
                worker: id,
                speed: worker.speed().unwrap_or(mean).max(1),
                probe: worker.latest.is_some_and(|latest| iteration.fragment.0 >= probe_at(latest)),
            })
            .collect();
        if self.may_split_evenly(&candidates) {
            candidates.iter_mut().for_each(|candidate| candidate.speed = 1);
        }
        candidates
    }

    /// Returns true if even the slowest worker would finish an equal share within [`EVEN_SPLIT`]. Speeds measured in such
    /// short leases depend more on latency than on the worker, and more so the smaller the lease was: a worker that was
    /// late once would never get a larger lease again.
    fn may_split_evenly(&self, candidates: &[Candidate]) -> bool {
        let slots = u64::from(self.config.num_slots).div_ceil((candidates.len() as u64).max(1));
        let env_steps = slots * u64::from(self.config.rollout_fragment_length);
        let slowest = candidates.iter().map(|candidate| candidate.speed).min().unwrap_or(1);
        env_steps.saturating_mul(1_000_000) <= slowest.saturating_mul(EVEN_SPLIT.0)
    }

    /// Returns the speed assumed for a worker that was never measured, in env steps per second; 0 if none was.
    pub(super) fn mean_speed(&self) -> u64 {
        let known: Vec<u128> = self.workers.values().filter_map(Worker::speed).map(u128::from).collect();
        (known.iter().sum::<u128>() / (known.len() as u128).max(1)) as u64
    }

    pub(super) fn grant(
        &mut self,
        iteration: Iteration,
        worker: WorkerId,
        slots: &[SlotId],
        now: Micros,
    ) -> Option<LeaseId> {
        let known = self.workers.get_mut(&worker)?;
        let length = u64::from(self.config.rollout_fragment_length);
        let Iteration { fragment, weights_version } = iteration;
        let env_steps = length * slots.len() as u64;
        let replays = self.slots.most_replays(slots);
        let id =
            self.leases.insert(worker, (fragment, weights_version), slots, (env_steps, replays), now, known.patience());
        known.lease = Some(id);
        known.latest = Some(fragment);
        self.ledger.open(env_steps);
        let slots = slots.iter().map(|&slot| (slot, self.slots.lease(slot, worker, id))).collect();
        let slots = self.with_restarts(id, slots);
        // With this lease the worker drops the states of the one before.
        self.slots.forget_holder(worker);
        let lease = Lease { id, fragment, weights_version, slots };
        self.commands.push_back(GroupCommand::Grant { worker, lease });
        Some(id)
    }

    /// Records where the environments of a lease's slots are restarted, and returns the slots as the lease names them.
    pub(super) fn with_restarts(&mut self, id: LeaseId, slots: Vec<(SlotId, SlotSource)>) -> Vec<LeasedSlot> {
        let Some(live) = self.leases.get_mut(id) else { return Vec::new() };
        let leased = |(slot, source)| {
            let restarts = self.failures.restarts(slot, live.fragment);
            if !restarts.is_empty() {
                live.restarts.insert(slot, restarts.to_vec());
            }
            LeasedSlot { slot, source, restarts: restarts.to_vec() }
        };
        slots.into_iter().map(leased).collect()
    }

    /// Returns when the next lease becomes overdue whose slots an idle worker could take.
    pub(super) fn next_hedge(&self) -> Option<Micros> {
        let iteration = self.being_made().filter(|_| self.may_grant() && self.has_idle())?;
        let live = self.leases.iter().filter(|(_, lease)| !lease.is_waiting() && lease.fragment == iteration.fragment);
        let helped = live.filter(|(_, lease)| self.hedgeable(lease).next().is_some());
        helped.map(|(_, lease)| lease.granted_at + self.durations.overdue_after()).min()
    }

    /// Returns the open slots of a lease that no other lease holds.
    pub(super) fn unhedged<'a>(&'a self, lease: &'a LiveLease) -> impl Iterator<Item = SlotId> + 'a {
        let waiting = |slot| self.slots.get(slot).is_some_and(|s| s.next() == lease.fragment && s.leases.len() == 1);
        lease.open.iter().copied().filter(move |&slot| waiting(slot))
    }

    /// Returns those of them that an idle worker may be granted. A failed fragment is not granted again to the worker on
    /// which it failed last: two failures there would count as the environment's own. Nor is one whose lease was granted
    /// before the environment failed for the second time: the two workers would make different fragments.
    fn hedgeable<'a>(&'a self, lease: &'a LiveLease) -> impl Iterator<Item = SlotId> + 'a {
        let is_same = |&slot: &SlotId| self.failures.restarts(slot, lease.fragment) == lease.restarts_of(slot);
        let may_fail = |&slot: &SlotId| !self.is_alone(slot) || self.next_after_failure(slot).is_some();
        self.unhedged(lease).filter(is_same).filter(may_fail)
    }

    /// Ends leases all of whose open slots were committed by other workers. Their workers get no new lease before they have
    /// answered: otherwise a hung worker would cost its share of every iteration without being detected.
    pub(super) fn retire_losers(&mut self, now: Micros) {
        for id in self.leases.ids(|lease| lease.open.iter().all(|&slot| self.slots.is_committed(slot, lease.fragment)))
        {
            let Some(lease) = self.end_lease(id, End::Came(FragmentOutcome::Superseded)) else { continue };
            let assumed = self.mean_speed();
            if let Some(worker) = self.workers.get_mut(&lease.worker) {
                worker.lost(lease.env_steps, now.since(lease.granted_at), assumed);
            }
            if self.revoke(lease.worker, id)
                && let Some(worker) = self.workers.get_mut(&lease.worker)
            {
                worker.overtaken = Some(Overtaken { lease: id, until: lease.deadline });
            }
        }
    }

    /// Ends one grant of a live lease and ledger its env steps.
    pub(super) fn end_grant(&mut self, lease: LeaseId, slot: SlotId, env_steps: u64, end: End) {
        if self.leases.get_mut(lease).is_some_and(|lease| lease.open.remove(&slot)) {
            self.slots.end_lease(slot, lease);
            self.ledger.close(env_steps, end);
        }
    }

    /// Ends a lease with all its open grants. Its follow-up begins with [`advance`](Self::advance).
    pub(super) fn end_lease(&mut self, id: LeaseId, end: End) -> Option<LiveLease> {
        let lease = self.leases.remove(id)?;
        for &slot in &lease.open {
            self.slots.end_lease(slot, id);
            self.ledger.close(u64::from(self.config.rollout_fragment_length), end);
        }
        if lease.is_waiting() {
            self.record_end_of_follow_up(&lease);
        } else if let Some(worker) = self.workers.get_mut(&lease.worker) {
            worker.lease = None;
            worker.done = (lease.granted_at, lease.env_steps);
            if !lease.open.is_empty() {
                // The worker drops the lease together with the states of the slots that it has uploaded before.
                self.slots.forget_holder(lease.worker);
            }
        }
        Some(lease)
    }

    fn dismiss_leavers(&mut self) {
        for (&worker, known) in &mut self.workers {
            if known.leaving && known.lease.is_none() && !known.dismissed {
                known.dismissed = true;
                self.commands.push_back(GroupCommand::Dismiss { worker });
            }
        }
    }

    /// Ends a lease before it is complete, with an event and a revocation for the worker.
    pub(super) fn expire(&mut self, id: LeaseId, cause: ExpiryCause) {
        let worker = self.leases.get(id).map(|lease| lease.worker);
        self.expire_unsaid(id, cause);
        if let Some(worker) = worker {
            self.revoke(worker, id);
        }
    }

    /// Does the same as [`expire`](Self::expire) for a worker that already knows or is disconnected.
    pub(super) fn expire_unsaid(&mut self, id: LeaseId, cause: ExpiryCause) {
        self.expire_because(id, cause, "");
    }

    /// Does the same as [`expire_unsaid`](Self::expire_unsaid), with the reason that the worker gave.
    pub(super) fn expire_because(&mut self, id: LeaseId, cause: ExpiryCause, reason: &str) {
        if let Some(lease) = self.end_lease(id, End::Expired(cause)) {
            let (slots, reason) = (lease.open.len() as u32, reason.into());
            self.event(GroupEvent::LeaseExpired { worker: lease.worker, lease: id, slots, cause, reason });
        }
    }

    /// Sends a worker the revocation of a lease; if the grant was not sent yet, removes that instead. Returns true if the
    /// worker has something to answer.
    fn revoke(&mut self, worker: WorkerId, lease: LeaseId) -> bool {
        let waiting = self.commands.len();
        self.commands.retain(|command| !matches!(command, GroupCommand::Grant { lease: l, .. } if l.id == lease));
        let was_sent = self.commands.len() == waiting;
        if was_sent {
            self.commands.push_back(GroupCommand::Revoke { worker, lease });
        }
        was_sent
    }
}

//! Inputs of a group: workers join, answer, leave, report progress, refuse, time out.

use core::mem;

use super::{
    End, ExpiryCause, FragmentOutcome, GroupCommand, GroupEvent, LeaseGroup, Mode, QuarantineCause, RejectReason,
    worker::{Answer, Worker, WorkerProfile},
};
use crate::{
    ids::{LeaseId, WeightsVersion, WorkerId},
    prelude::*,
    protocol::{Inability, WorkerState},
    time::Micros,
};

impl LeaseGroup {
    /// Consecutive failures after which a worker is quarantined.
    const MAX_STRIKES: u32 = 3;

    /// Handles a worker that joined and was sent the run. It gets leases once it has [answered](Self::handle_answer). If the
    /// id is known, the former worker is disconnected and this is its replacement, which keeps its principal.
    pub fn handle_joined(&mut self, worker: WorkerId, profile: WorkerProfile, now: Micros) {
        let principal = self.audits.principal(worker);
        self.forget(worker);
        if let Some(principal) = principal {
            self.distrust(worker, principal);
        }
        self.workers.insert(worker, Worker::new(profile, now));
        self.advance(now);
    }

    /// Handles a worker's answer whether it can run the leases of this run; only its first answer counts. A worker that is
    /// unable gets no lease and stays connected, which is no failure. Returns false if no answer of this worker was awaited.
    pub fn handle_answer(&mut self, worker: WorkerId, answer: Result<(), Inability>, now: Micros) -> bool {
        let known = self.workers.get_mut(&worker).filter(|known| matches!(known.answer, Answer::None));
        let Some(known) = known else { return false };
        match answer {
            Ok(()) => {
                known.answer = Answer::Able;
                self.hints.all_unable = false;
                self.hint_at_too_few_slots();
            }
            Err(inability) => {
                known.answer = Answer::Unable(inability.clone());
                self.event(GroupEvent::WorkerUnable { worker, inability });
                self.hint_that_all_are_unable();
            }
        }
        self.advance(now);
        true
    }

    /// Emits an event, once, if slots and not workers are the limit.
    fn hint_at_too_few_slots(&mut self) {
        if let Some(few) = self.too_few_slots(self.num_leasable())
            && !mem::replace(&mut self.hints.too_few_slots, true)
        {
            self.event(GroupEvent::TooFewSlots(few));
        }
    }

    /// Emits an event, once until a worker is able, if no worker is able.
    fn hint_that_all_are_unable(&mut self) {
        let is_unable = |known: &Worker| known.state() == WorkerState::Unable;
        if self.mode != Mode::Stopped
            && !self.workers.is_empty()
            && self.workers.values().all(is_unable)
            && !mem::replace(&mut self.hints.all_unable, true)
        {
            self.event(GroupEvent::AllUnable { workers: self.workers.len() as u32 });
        }
    }

    /// Handles a worker's disconnect. Its lease expires immediately.
    pub fn handle_left(&mut self, worker: WorkerId, now: Micros) {
        self.forget(worker);
        self.hint_that_all_are_unable();
        self.advance(now);
    }

    /// Handles a worker's report of how many env steps of a lease it has done so far.
    pub fn handle_progress(&mut self, worker: WorkerId, lease: LeaseId, env_steps: u64, now: Micros) {
        self.record_contact(worker);
        let patience = self.workers.get(&worker).map(Worker::patience);
        if let (Some(patience), Some(live)) = (patience, self.leases.of_mut(worker, lease)) {
            live.progress(env_steps, self.config.max_fragment_steps, patience, now);
        }
        self.advance(now);
    }

    /// Handles a worker that waits for what another one computes: its lease gets the time that progress would give it.
    pub fn handle_waiting(&mut self, worker: WorkerId, now: Micros) {
        let known = self.workers.get(&worker);
        if let Some((lease, patience)) = known.and_then(|known| Some((known.lease?, known.patience())))
            && let Some(live) = self.leases.of_mut(worker, lease)
        {
            live.deadline = live.deadline.max(now + patience);
        }
    }

    /// Handles a worker's report that it acts with these weights from now on. It does not extend the worker's lease.
    pub fn handle_weights_applied(&mut self, worker: WorkerId, version: WeightsVersion) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.applied = known.applied.max(Some(version));
        }
    }

    /// Handles a worker's refusal of a lease, or its confirmation that it has dropped a revoked one.
    ///
    /// The slots are granted again with their states, so a worker that lost a state that it should hold can refuse and
    /// recover. After three consecutive failures it is quarantined. Refusing a lease whose weights are superseded is no
    /// failure. `reason` is for logs; it must be [printable](crate::protocol::printable).
    pub fn handle_refused(&mut self, worker: WorkerId, lease: LeaseId, reason: &str, now: Micros) {
        self.record_contact(worker);
        if let Some(live) = self.leases.of(worker, lease) {
            let is_overtaken = self.lag(live.weights_version) > 0;
            self.expire_because(lease, ExpiryCause::Refused, reason);
            if !is_overtaken {
                self.strike(worker);
            }
        }
        self.advance(now);
    }

    /// Handles an upload for a lease that could not be decoded.
    pub fn handle_invalid(&mut self, worker: WorkerId, lease: LeaseId, now: Micros) {
        self.record_contact(worker);
        self.event(GroupEvent::FragmentsRejected { worker, lease, fragments: 0, reason: RejectReason::Corrupt });
        if self.leases.of(worker, lease).is_some() {
            self.end_lease(lease, End::Came(FragmentOutcome::Rejected(RejectReason::Corrupt)));
        } else {
            self.ledger.count_uninvited(Some(RejectReason::Corrupt));
        }
        self.strike(worker);
        self.advance(now);
    }

    /// Handles an upload for a lease that ended so long ago, or belonged to another connection, that the hub has no context
    /// to decode it. It counts as one late fragment.
    pub fn handle_forgotten(&mut self, worker: WorkerId, lease: LeaseId, now: Micros) {
        self.record_contact(worker);
        if self.leases.of(worker, lease).is_none() {
            self.ledger.count_uninvited(Some(RejectReason::Late));
        }
        self.advance(now);
    }

    /// Handles timeouts that are due: ends the leases whose workers made no progress, and asks hung workers for a sign of
    /// life.
    pub fn handle_timeout(&mut self, now: Micros) {
        for id in self.leases.ids(|lease| !lease.is_waiting() && lease.deadline <= now) {
            self.time_out(id, now);
        }
        self.give_up_on_overtaken(now);
        self.ask_hung_workers(now);
        self.advance(now);
    }

    fn time_out(&mut self, id: LeaseId, now: Micros) {
        let Some(lease) = self.leases.get(id) else { return };
        let (worker, env_steps, took) = (lease.worker, lease.env_steps, now.since(lease.granted_at));
        let assumed = self.mean_speed();
        if let Some(known) = self.workers.get_mut(&worker) {
            known.lost(env_steps, took, assumed);
            let patience = known.timed_out(id, now);
            self.event(GroupEvent::WorkerHung { worker, patience });
            self.suspect_of_hanging(id, patience);
        }
        self.expire(id, ExpiryCause::TimedOut);
    }

    /// Marks overtaken workers as hung if they are still silent when their lost lease would have expired.
    fn give_up_on_overtaken(&mut self, now: Micros) {
        let is_due = |known: &Worker| known.hangs_at().is_some_and(|at| at <= now);
        let due: Vec<WorkerId> = self.workers.iter().filter(|(_, known)| is_due(known)).map(|(&id, _)| id).collect();
        for worker in due {
            let Some(known) = self.workers.get_mut(&worker) else { continue };
            if let Some(overtaken) = known.overtaken.take() {
                let patience = known.timed_out(overtaken.lease, now);
                self.event(GroupEvent::WorkerHung { worker, patience });
            }
        }
    }

    /// Revokes the lost lease of hung workers again, which a live worker answers, see [`GroupCommand::Revoke`].
    fn ask_hung_workers(&mut self, now: Micros) {
        for (&worker, known) in &mut self.workers {
            if known.ask_at().is_some_and(|at| at <= now)
                && let Some(hung) = &mut known.hung
            {
                let question = GroupCommand::Revoke { worker, lease: hung.lease };
                if !self.commands.contains(&question) {
                    self.commands.push_back(question);
                }
                known.schedule_next_ping(now);
            }
        }
    }

    /// Removes a worker, with its lease, the states it held and the commands not yet sent to it.
    fn forget(&mut self, worker: WorkerId) {
        self.keep_unfinished(worker);
        let Some(known) = self.workers.get(&worker) else { return };
        for lease in [known.lease, known.follow_up].into_iter().flatten() {
            self.expire_unsaid(lease, ExpiryCause::Left);
        }
        self.workers.remove(&worker);
        self.audits.forget_worker(worker);
        self.slots.forget_holder(worker);
        self.commands.retain(|command| command.worker() != worker);
    }

    /// Records a sign of life: any message about a lease, old or new, shows that a hung worker has recovered, and that an
    /// overtaken one does not hang.
    pub(super) fn record_contact(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.overtaken = None;
        if known.hung.take().is_some() {
            self.forgive_silence(worker);
            self.event(GroupEvent::WorkerRecovered { worker });
        }
    }

    pub(super) fn strike(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.strikes += 1;
        if known.strikes >= Self::MAX_STRIKES {
            self.quarantine(worker, QuarantineCause::Failures);
        }
    }

    pub(super) fn quarantine(&mut self, worker: WorkerId, cause: QuarantineCause) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        if known.quarantined.is_some() {
            return;
        }
        known.quarantined = Some(cause);
        let leases = [known.lease, known.follow_up];
        self.event(GroupEvent::WorkerQuarantined { worker, cause });
        for lease in leases.into_iter().flatten() {
            self.expire(lease, ExpiryCause::Revoked);
        }
    }
}

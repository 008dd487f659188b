//! Failed fragments: they are granted again, to another worker if there is one.
//!
//! If the same slot fails twice at the same step with the same failure, the user's code is the cause: the run cannot
//! continue, unless its failed environments are restarted. Then the fragment is granted with that step, where every worker
//! restarts the environment and drops the episode, so it does not depend on the worker and on transient failures. Other
//! failures are transient, up to [`MAX_ATTEMPTS`] consecutive ones of a fragment. Only reports of trusted workers are
//! evidence: an untrusted worker that reports a failure gets a strike, and the fragment goes to another worker.

use super::{End, ExpiryCause, GroupEvent, LeaseGroup, Receipt, grant::Iteration, slot_table::Slot, worker::Worker};
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::FailedStep,
    prelude::*,
    protocol::{FailureKind, FatalFailure, FragmentFailure, MAX_ATTEMPTS, WorkerState},
    sampler::position_in,
    time::Micros,
};

/// Number of latest failures kept, and of latest workers that disconnected in the middle of a lease.
const MAX_LATEST: usize = 16;

/// Failures of a group so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    suspects: BTreeMap<SlotId, Suspect>,
    count: u64,
    latest: VecDeque<(WorkerId, FragmentFailure)>,
    /// Workers that disconnected with a lease, and its unfinished fragments.
    left: VecDeque<(WorkerId, Unfinished)>,
    fatal: Option<FatalFailure>,
}

/// The unfinished fragments of a lease: one number for all its open slots.
type Unfinished = (FragmentNo, BTreeSet<SlotId>);

/// A slot whose next fragment has failed.
#[derive(Debug)]
struct Suspect {
    fragment: FragmentNo,
    /// Consecutive failed attempts, since the last step was confirmed.
    attempts: u32,
    /// The worker on which it failed last.
    worker: WorkerId,
    /// Trusted workers that were silent with it and have sent nothing since: each counts as one attempt.
    silent: Vec<WorkerId>,
    /// The last failure that a trusted worker reported.
    last: Option<FragmentFailure>,
    /// The steps at which the environment has failed twice in the same way, ascending: it is restarted there.
    confirmed: Vec<FailedStep>,
    /// The slot is granted in a lease of its own.
    is_alone: bool,
}

impl Suspect {
    fn new(fragment: FragmentNo, worker: WorkerId) -> Self {
        let (silent, confirmed) = (Vec::new(), Vec::new());
        Self { fragment, attempts: 0, worker, silent, last: None, confirmed, is_alone: false }
    }

    /// Records that the environment fails at this step. Returns false if it was to be restarted there, but fails nevertheless,
    /// or if it fails at too many steps.
    fn confirm(&mut self, step: FailedStep) -> bool {
        match self.confirmed.binary_search(&step) {
            Err(place) if self.confirmed.len() < FailedStep::MAX => {
                self.confirmed.insert(place, step);
                self.attempts = 0;
                true
            }
            _ => false,
        }
    }
}

impl Failures {
    /// Returns the steps of a slot's fragment at which its environment is restarted, ascending.
    pub(super) fn restarts(&self, slot: SlotId, fragment: FragmentNo) -> &[FailedStep] {
        let suspect = self.suspects.get(&slot).filter(|suspect| suspect.fragment == fragment);
        suspect.map_or(&[], |suspect| &suspect.confirmed)
    }

    /// Drops what is known about a slot whose committed fragments were taken back.
    pub(super) fn forget(&mut self, slot: SlotId) {
        self.suspects.remove(&slot);
    }
}

/// Evidence that a fragment has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// Its worker reported a failure.
    Report,
    /// Its lease, with this number of open slots, made no progress. A slow worker may only need more time.
    Silence { slots: usize },
    /// Its worker's process crashed in the middle of a lease with this number of open slots.
    Crash { slots: usize },
}

impl LeaseGroup {
    /// Handles a worker's report that one fragment of a lease failed; the lease's other slots continue. That is no strike
    /// for a trusted worker.
    ///
    /// The fragment is granted again, in a lease of its own and to another worker if one is able, and with the steps at which
    /// its environment is [restarted](crate::lease::LeasedSlot::restarts). If the group concludes that no worker can ever
    /// make it, it grants nothing more, see [`fatal_failure`](Self::fatal_failure).
    pub fn handle_failed(&mut self, worker: WorkerId, lease: LeaseId, failure: FragmentFailure, now: Micros) {
        self.record_contact(worker);
        let live = self.leases.of(worker, lease);
        let slot = failure.slot.filter(|_| !failure.is_together());
        let step = failure.step();
        let is_restarted = |slot: &SlotId| live.is_some_and(|live| live.restarts_of(*slot).contains(&step));
        let is_restarted = slot.as_ref().is_some_and(is_restarted);
        match (slot, live.map(|live| (live.fragment, live.open.clone()))) {
            // The slots failed together, but none of them alone. Their rows are accepted as usual, maybe before this report.
            (None, _) => self.report(worker, failure),
            (Some(slot), Some((fragment, open))) if open.contains(&slot) => {
                // The follow-up would start from the end of this fragment, which does not exist.
                self.take_back_follow_up(worker);
                let env_steps = u64::from(self.config.rollout_fragment_length);
                self.end_grant(lease, slot, env_steps, End::Expired(ExpiryCause::Refused));
                self.close_if_done(worker, lease, &Receipt::default(), now);
                if self.audits.principal(worker).is_some() {
                    self.strike(worker);
                }
                // A lease that was granted before the step was confirmed fails there, which is known.
                if is_restarted || !self.failures.restarts(slot, fragment).contains(&step) {
                    let is_confirmed = self.suspect((worker, Evidence::Report), fragment, slot, failure.clone());
                    match is_confirmed {
                        true => self.report_restart(worker, failure),
                        false => self.report(worker, failure),
                    }
                }
            }
            (Some(_), Some(_)) => self.strike(worker),
            // The lease is over, so its slots belong to other leases.
            (Some(_), None) => {}
        }
        self.advance(now);
    }

    /// Records a lease without progress: any of its open slots may be the one that hangs.
    pub(super) fn suspect_of_hanging(&mut self, lease: LeaseId, patience: Micros) {
        let Some(live) = self.leases.get(lease) else { return };
        let (worker, fragment, open) = (live.worker, live.fragment, live.open.clone());
        for &slot in &open {
            let message = format!("no progress for {patience}, in the fragment that begins here");
            let failure = self.failure_of(FailureKind::Hang, slot, &message);
            self.suspect((worker, Evidence::Silence { slots: open.len() }), fragment, slot, failure.clone());
            // A single hang may be the machine's fault, for example because it was suspended.
            let is_known = self.failures.suspects.get(&slot).is_some_and(|suspect| suspect.attempts > 1);
            if is_known && open.len() == 1 {
                self.report(worker, failure);
            }
        }
    }

    /// Handles a crash of a worker's process: any of the slots that it was stepping may be the cause. Returns true if it was
    /// stepping any. `status` is the process's exit status. Call it just before [`handle_left`](Self::handle_left), or after
    /// it.
    ///
    /// Not for a process that was killed from outside, which says nothing about its environments.
    pub fn handle_crashed(&mut self, worker: WorkerId, status: &str, now: Micros) -> bool {
        let left = self.failures.left.iter().position(|(left, _)| *left == worker);
        let left = left.and_then(|place| self.failures.left.remove(place)).map(|(_, unfinished)| unfinished);
        let Some((fragment, open)) = left.or_else(|| self.unfinished_by(worker)) else { return false };
        // Another worker may have committed the fragment meanwhile.
        for &slot in open.iter().filter(|slot| !self.slots.is_committed(**slot, fragment)).collect::<Vec<_>>() {
            let message = format!("the worker's process ended ({status}) in the fragment that begins here");
            let failure = self.failure_of(FailureKind::Env, slot, &message);
            self.suspect((worker, Evidence::Crash { slots: open.len() }), fragment, slot, failure.clone());
            if open.len() == 1 {
                self.report(worker, failure);
            }
        }
        self.advance(now);
        true
    }

    /// Keeps the unfinished fragments of a worker that is about to be removed: the reason of its disconnect may be reported
    /// later.
    pub(super) fn keep_unfinished(&mut self, worker: WorkerId) {
        if let Some(unfinished) = self.unfinished_by(worker) {
            if self.failures.left.len() == MAX_LATEST {
                self.failures.left.pop_front();
            }
            self.failures.left.push_back((worker, unfinished));
        }
    }

    fn unfinished_by(&self, worker: WorkerId) -> Option<Unfinished> {
        let live = self.leases.get(self.workers.get(&worker)?.lease?)?;
        Some((live.fragment, live.open.clone()))
    }

    /// Builds a failure at the start of a slot's next fragment, when the failing step is unknown.
    fn failure_of(&self, kind: FailureKind, slot: SlotId, message: &str) -> FragmentFailure {
        let state = self.slots.get(slot).and_then(Slot::state);
        let begins_at = state.and_then(|state| position_in(state, slot)).unwrap_or_default();
        FragmentFailure::new(kind, Some(slot), begins_at, message)
    }

    /// Withdraws the attempts that a worker's silence counted as, since it sent a message: it was slow, and no slot of its
    /// lease hangs.
    pub(super) fn forgive_silence(&mut self, worker: WorkerId) {
        for suspect in self.failures.suspects.values_mut() {
            if let Some(place) = suspect.silent.iter().position(|silent| *silent == worker) {
                suspect.silent.swap_remove(place);
                suspect.attempts = suspect.attempts.saturating_sub(1);
            }
        }
    }

    /// Returns the number of failed fragments so far, and the latest ones with the workers that reported them, oldest first.
    #[must_use]
    pub fn failures(&self) -> (u64, impl DoubleEndedIterator<Item = &(WorkerId, FragmentFailure)>) {
        (self.failures.count, self.failures.latest.iter())
    }

    /// Returns the failure with which the run cannot continue, if there is one.
    #[must_use]
    pub fn fatal_failure(&self) -> Option<&FatalFailure> {
        self.failures.fatal.as_ref()
    }

    /// Returns the fragments whose workers have made no progress and have sent nothing since, as failures.
    pub fn hung(&self) -> impl Iterator<Item = (WorkerId, &FragmentFailure)> {
        let hung = self.failures.suspects.values().filter(|suspect| !suspect.silent.is_empty());
        hung.filter_map(|suspect| Some((suspect.worker, suspect.last.as_ref()?)))
    }

    /// Reports these fragments at the end of a run, unless they were reported before.
    pub fn report_hung(&mut self) {
        let hung: Vec<_> = self.hung().map(|(worker, failure)| (worker, failure.clone())).collect();
        for (worker, failure) in hung {
            if !self.failures.latest.contains(&(worker, failure.clone())) {
                self.report(worker, failure);
            }
        }
    }

    /// Records a failure of the run's own worker, which samples without leases: worker 0, as RLlib's local one.
    pub fn record_failure(&mut self, failure: FragmentFailure) {
        self.report(WorkerId(0), failure);
    }

    fn report(&mut self, worker: WorkerId, failure: FragmentFailure) {
        self.failures.count += 1;
        // Reports of untrusted workers must not displace those of trusted ones.
        if self.audits.principal(worker).is_none() {
            if self.failures.latest.len() == MAX_LATEST {
                self.failures.latest.pop_front();
            }
            self.failures.latest.push_back((worker, failure.clone()));
        }
        self.event(GroupEvent::FragmentFailed { worker, failure });
    }

    /// Reports a failure that was reported before as the environment's own. The two count as one.
    fn report_restart(&mut self, worker: WorkerId, failure: FragmentFailure) {
        let first = self.failures.latest.iter().rposition(|(_, known)| *known == failure);
        first.map(|first| self.failures.latest.remove(first));
        self.failures.count = self.failures.count.saturating_sub(1);
        self.report(worker, failure.restarted());
    }

    /// Records that a slot's fragment has failed, or may be the one of its lease that hangs. Returns true if the environment is
    /// restarted where it failed, from the next lease on.
    fn suspect(
        &mut self,
        (worker, evidence): (WorkerId, Evidence),
        fragment: FragmentNo,
        slot: SlotId,
        failure: FragmentFailure,
    ) -> bool {
        if self.slots.is_committed(slot, fragment) {
            return false;
        }
        let is_trusted = self.audits.principal(worker).is_none();
        let is_located =
            matches!(evidence, Evidence::Report | Evidence::Silence { slots: 1 } | Evidence::Crash { slots: 1 });
        let suspect = self.failures.suspects.entry(slot).or_insert_with(|| Suspect::new(fragment, worker));
        if suspect.fragment != fragment {
            *suspect = Suspect::new(fragment, worker);
        }
        suspect.worker = worker;
        suspect.is_alone |= is_located || suspect.attempts > 0;
        if !is_trusted {
            return false;
        }
        suspect.attempts += 1;
        if let Evidence::Silence { .. } = evidence {
            suspect.silent.push(worker);
        }
        let attempts = suspect.attempts;
        let is_repeated = evidence == Evidence::Report && suspect.last.as_ref() == Some(&failure);
        let may_restart = self.config.restart_failed && failure.kind.is_of_env();
        if is_repeated && may_restart && suspect.confirm(failure.step()) {
            // Another worker's lease of this fragment was granted without that restart, and may be late.
            self.slots.compare_from(slot, self.leases.next_id());
            return true;
        }
        suspect.last = Some(failure.clone());
        if is_repeated || attempts >= MAX_ATTEMPTS && is_located {
            self.failures.fatal.get_or_insert(FatalFailure { failure, attempts, is_repeated });
        }
        false
    }

    /// Clears the failures of a slot's fragment, since it is committed.
    pub(super) fn clear_suspicion(&mut self, slot: SlotId, fragment: FragmentNo) {
        // Keep those of a later fragment: a follow-up may have failed before its lease's turn came.
        self.failures.suspects.retain(|&suspect, found| suspect != slot || found.fragment > fragment);
    }

    /// Returns true for a slot that is granted in a lease of its own.
    pub(super) fn is_alone(&self, slot: SlotId) -> bool {
        self.failures.suspects.get(&slot).is_some_and(|suspect| suspect.is_alone)
    }

    /// Grants the failed fragments, each in a lease of its own, as soon as a worker is available for it.
    pub(super) fn grant_failed(&mut self, now: Micros) {
        let alone = self.failures.suspects.iter().filter(|(_, suspect)| suspect.is_alone);
        let due = alone.filter_map(|(&slot, suspect)| Some((slot, suspect.worker, self.iteration_of(slot)?)));
        for (slot, failed_on, iteration) in due.collect::<Vec<_>>() {
            if let Some(worker) = self.next_after(failed_on) {
                self.grant(iteration, worker, &[slot], now);
            }
        }
    }

    /// Returns an idle worker for a slot whose fragment has failed, unless the slot has to wait for another worker.
    pub(super) fn next_after_failure(&self, slot: SlotId) -> Option<WorkerId> {
        self.next_after(self.failures.suspects.get(&slot)?.worker)
    }

    /// Returns the iteration of a slot's next fragment, if the slot may be granted now.
    fn iteration_of(&self, id: SlotId) -> Option<Iteration> {
        let slot = self.slots.get(id)?;
        if self.is_free() {
            let weights_version = self.version_to_make(id, slot).filter(|_| !self.is_full())?;
            return Some(Iteration { fragment: slot.next(), weights_version });
        }
        self.being_made().filter(|iteration| slot.is_open(iteration.fragment))
    }

    /// Returns an idle worker other than `failed_on`; `failed_on` itself only if there is no other sound worker.
    fn next_after(&self, failed_on: WorkerId) -> Option<WorkerId> {
        let is_other = |id: &WorkerId, known: &Worker| *id != failed_on && known.is_sound();
        let is_idle = |known: &Worker| known.state() == WorkerState::Idle;
        if self.workers.iter().any(|(id, known)| is_other(id, known)) {
            let mut others = self.workers.iter().filter(|(id, known)| is_other(id, known) && is_idle(known));
            return others.next().map(|(&id, _)| id);
        }
        self.workers.get(&failed_on).filter(|known| is_idle(known)).map(|_| failed_on)
    }
}

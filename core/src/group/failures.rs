//! Fragments that fail: they are granted again, to another worker if there is one.
//!
//! The same failure at the same step of the same slot is the user code's own, and the run cannot go on; anything else is
//! transient, up to [`MAX_ATTEMPTS`] in a row on one fragment. Only what trusted workers report is evidence: an untrusted one
//! that reports a failure gets a strike, and the fragment goes to another worker.

use core::fmt;

use super::{End, ExpiryCause, GroupEvent, LeaseGroup, Receipt, grant::Iteration, slot_table::Slot, worker::Worker};
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    prelude::*,
    protocol::{FailureKind, FragmentFailure, WorkerState},
    sampler::position_in,
    time::Micros,
};

/// Attempts in a row at one fragment that may fail, whatever fails.
const MAX_ATTEMPTS: u32 = 5;
/// The latest failures that are kept, and the latest workers that left in the middle of a lease.
const MAX_LATEST: usize = 16;

/// What failed in a group so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    suspects: BTreeMap<SlotId, Suspect>,
    count: u64,
    latest: VecDeque<(WorkerId, FragmentFailure)>,
    /// Workers that left with a lease, and what they had not finished of it.
    left: VecDeque<(WorkerId, Unfinished)>,
    fatal: Option<FatalFailure>,
}

/// The fragments of a lease that are not there yet: one of each slot.
type Unfinished = (FragmentNo, BTreeSet<SlotId>);

/// A slot whose next fragment has failed.
#[derive(Debug)]
struct Suspect {
    fragment: FragmentNo,
    /// In a row.
    attempts: u32,
    /// The worker on which it failed last.
    worker: WorkerId,
    /// Trusted workers that were silent with it and have not been heard of since: an attempt each.
    silent: Vec<WorkerId>,
    /// The last failure that a trusted worker reported.
    last: Option<FragmentFailure>,
    /// It is granted alone.
    is_alone: bool,
}

/// What shows that a fragment has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// Its worker says so.
    Report,
    /// No progress of a lease with this number of open slots. A slow worker may only need more time.
    Silence { slots: usize },
    /// Its worker's process crashed in the middle of a lease with this number of open slots.
    Crash { slots: usize },
}

/// A failure with which the run cannot go on. Its text says where, and why it is not tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatalFailure {
    /// The last failure.
    pub failure: FragmentFailure,
    /// Attempts in a row that have failed.
    pub attempts: u32,
    /// True if the attempt before failed in the same way at the same step.
    pub is_repeated: bool,
}

impl fmt::Display for FatalFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, attempts, is_repeated } = self;
        match is_repeated {
            true => write!(f, "{failure}; it failed again in the same way when it was tried again"),
            false => write!(f, "{failure}; {attempts} attempts at this fragment have failed in a row"),
        }
    }
}

impl LeaseGroup {
    /// A worker gave up a fragment of a lease, which goes on with its other slots. That is no strike.
    ///
    /// The fragment is granted once more, to another worker if one is able, and alone. If the group can conclude that no
    /// worker will ever make it, it grants nothing more, see [`fatal_failure`](Self::fatal_failure).
    pub fn handle_failed(&mut self, worker: WorkerId, lease: LeaseId, failure: FragmentFailure, now: Micros) {
        self.heard_of(worker);
        let live = self.leases.of(worker, lease);
        match (failure.slot, live.map(|live| (live.fragment, live.open.clone()))) {
            // Rows that came of it are accepted as any others, maybe before this.
            (None, _) => self.report(worker, failure),
            (Some(slot), Some((fragment, open))) if open.contains(&slot) => {
                // The follow-up would start from the end of this fragment, which there is not.
                self.take_back_follow_up(worker);
                let env_steps = u64::from(self.config.rollout_fragment_length);
                self.end_grant(lease, slot, env_steps, End::Expired(ExpiryCause::Refused));
                self.close_if_done(worker, lease, &Receipt::default(), now);
                if self.audits.party(worker).is_some() {
                    self.strike(worker);
                }
                self.suspect((worker, Evidence::Report), fragment, slot, failure.clone());
                self.report(worker, failure);
            }
            (Some(_), Some(_)) => self.strike(worker),
            // The lease is over: its slots are others'.
            (Some(_), None) => {}
        }
        self.advance(now);
    }

    /// A lease made no progress: any of its open slots may be the one that hangs.
    pub(super) fn suspect_of_hanging(&mut self, lease: LeaseId, patience: Micros) {
        let Some(live) = self.leases.get(lease) else { return };
        let (worker, fragment, open) = (live.worker, live.fragment, live.open.clone());
        for &slot in &open {
            let message = format!("no progress for {patience}, in the fragment that begins here");
            let failure = self.failure_of(FailureKind::Hang, slot, &message);
            self.suspect((worker, Evidence::Silence { slots: open.len() }), fragment, slot, failure.clone());
            // A worker that hangs once may have been stopped by its machine.
            let is_known = self.failures.suspects.get(&slot).is_some_and(|suspect| suspect.attempts > 1);
            if is_known && open.len() == 1 {
                self.report(worker, failure);
            }
        }
    }

    /// The process of a worker crashed: any of the slots that it was stepping may be the reason. True if it was stepping any.
    /// `status` is how the process ended. Of use just before [`handle_left`](Self::handle_left), or after it.
    ///
    /// Not for a process that was ended from outside, which says nothing about the environments in it.
    pub fn handle_crashed(&mut self, worker: WorkerId, status: &str, now: Micros) -> bool {
        let left = self.failures.left.iter().position(|(left, _)| *left == worker);
        let left = left.and_then(|place| self.failures.left.remove(place)).map(|(_, unfinished)| unfinished);
        let Some((fragment, open)) = left.or_else(|| self.unfinished_by(worker)) else { return false };
        // Another worker may have been faster meanwhile.
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

    /// A worker is about to be forgotten. Why it left may become known later.
    pub(super) fn remember_unfinished(&mut self, worker: WorkerId) {
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

    /// A failure of which only the fragment is known.
    fn failure_of(&self, kind: FailureKind, slot: SlotId, message: &str) -> FragmentFailure {
        let state = self.slots.get(slot).and_then(Slot::state);
        let begins_at = state.and_then(|state| position_in(state, slot)).unwrap_or_default();
        FragmentFailure::new(kind, Some(slot), begins_at, message)
    }

    /// A worker that was silent is heard of: it was slow, and no slot of its lease hangs.
    pub(super) fn forgive_silence(&mut self, worker: WorkerId) {
        for suspect in self.failures.suspects.values_mut() {
            if let Some(place) = suspect.silent.iter().position(|silent| *silent == worker) {
                suspect.silent.swap_remove(place);
                suspect.attempts = suspect.attempts.saturating_sub(1);
            }
        }
    }

    /// Failures of fragments so far, and the latest ones with the workers that reported them, oldest first.
    #[must_use]
    pub fn failures(&self) -> (u64, impl DoubleEndedIterator<Item = &(WorkerId, FragmentFailure)>) {
        (self.failures.count, self.failures.latest.iter())
    }

    /// The failure with which the run cannot go on, if there is one.
    #[must_use]
    pub fn fatal_failure(&self) -> Option<&FatalFailure> {
        self.failures.fatal.as_ref()
    }

    fn report(&mut self, worker: WorkerId, failure: FragmentFailure) {
        self.failures.count += 1;
        // What untrusted workers say displaces nothing.
        if self.audits.party(worker).is_none() {
            if self.failures.latest.len() == MAX_LATEST {
                self.failures.latest.pop_front();
            }
            self.failures.latest.push_back((worker, failure.clone()));
        }
        self.event(GroupEvent::FragmentFailed { worker, failure });
    }

    /// A slot's fragment has failed, or may be the one of its lease that hangs.
    fn suspect(
        &mut self,
        (worker, evidence): (WorkerId, Evidence),
        fragment: FragmentNo,
        slot: SlotId,
        failure: FragmentFailure,
    ) {
        if self.slots.is_committed(slot, fragment) {
            return;
        }
        let is_trusted = self.audits.party(worker).is_none();
        let is_located =
            matches!(evidence, Evidence::Report | Evidence::Silence { slots: 1 } | Evidence::Crash { slots: 1 });
        let new = || Suspect { fragment, attempts: 0, worker, silent: Vec::new(), last: None, is_alone: false };
        let suspect = self.failures.suspects.entry(slot).or_insert_with(new);
        if suspect.fragment != fragment {
            *suspect = new();
        }
        suspect.worker = worker;
        suspect.is_alone |= is_located || suspect.attempts > 0;
        if !is_trusted {
            return;
        }
        suspect.attempts += 1;
        if let Evidence::Silence { .. } = evidence {
            suspect.silent.push(worker);
        }
        let attempts = suspect.attempts;
        let is_repeated = evidence == Evidence::Report && suspect.last.as_ref() == Some(&failure);
        suspect.last = Some(failure.clone());
        if is_repeated || attempts >= MAX_ATTEMPTS && is_located {
            self.failures.fatal.get_or_insert(FatalFailure { failure, attempts, is_repeated });
        }
    }

    /// The slot's fragment is there.
    pub(super) fn clear_suspicion(&mut self, slot: SlotId, fragment: FragmentNo) {
        // A follow-up may have failed before its lease's turn came.
        self.failures.suspects.retain(|&suspect, found| suspect != slot || found.fragment > fragment);
    }

    /// True for a slot that is not granted together with others.
    pub(super) fn is_alone(&self, slot: SlotId) -> bool {
        self.failures.suspects.get(&slot).is_some_and(|suspect| suspect.is_alone)
    }

    /// Grants the fragments that failed, each alone, as soon as a worker is there for it.
    pub(super) fn grant_failed(&mut self, now: Micros) {
        let alone = self.failures.suspects.iter().filter(|(_, suspect)| suspect.is_alone);
        let due = alone.filter_map(|(&slot, suspect)| Some((slot, suspect.worker, self.iteration_of(slot)?)));
        for (slot, failed_on, iteration) in due.collect::<Vec<_>>() {
            if let Some(worker) = self.next_after(failed_on) {
                self.grant(iteration, worker, &[slot], now);
            }
        }
    }

    /// Returns an idle worker for a slot whose fragment has failed, if it need not wait for another one.
    pub(super) fn next_after_failure(&self, slot: SlotId) -> Option<WorkerId> {
        self.next_after(self.failures.suspects.get(&slot)?.worker)
    }

    /// The iteration of which a slot's fragment should be made now.
    fn iteration_of(&self, id: SlotId) -> Option<Iteration> {
        let slot = self.slots.get(id)?;
        if self.is_free() {
            let weights_version = self.version_to_make(id, slot).filter(|_| !self.is_full())?;
            return Some(Iteration { fragment: slot.next(), weights_version });
        }
        self.being_made().filter(|iteration| slot.is_open(iteration.fragment))
    }

    /// An idle worker for what failed on this one, if it need not wait for another one.
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

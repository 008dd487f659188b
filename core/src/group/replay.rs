//! Audits of untrusted workers: a share of the fragments they commit is recomputed by a trusted one and compared.
//!
//! The group requests the fragments to recompute ([`LeaseGroup::poll_audit`]), takes the results
//! ([`LeaseGroup::handle_audited`]) and reports the principals with failed audits ([`LeaseGroup::poll_failed_audit`]);
//! it never waits for an audit. Which fragments are audited depends on random numbers that are addressed by a secret,
//! so a worker cannot predict it, and is not notified which fragment was audited.

mod failed_audit;

pub use failed_audit::FailedAudit;

use super::{
    GroupEvent, LeaseGroup, QuarantineCause,
    audit::{same_bits, same_within_tolerance},
    slot_table::Checked,
};
use crate::{
    batch::{ACTION_LOGP, ACTIONS, SlotFragment},
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::{FailedStep, FragmentStart, Lease},
    policy::TakenActions,
    prelude::*,
    rng::{Purpose, Streams},
    time::Micros,
};

/// The selection of untrusted workers' fragments for audits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AuditPolicy {
    /// Share of the fragments to audit, from 0 to 1.
    pub share: f64,
    /// The first fragments of each principal, which are always audited.
    pub first_fragments: u32,
}

impl AuditPolicy {
    /// Default share. Of `n` divergent fragments none is detected with probability `(1 - p)^n` for a share of `p`: with this
    /// share and 300 of them in less than 1 % of all cases, for which 1.53 % would do.
    pub const DEFAULT_SHARE: f64 = 0.02;

    /// Trusts all workers: no audits.
    pub const NONE: Self = Self { share: 0.0, first_fragments: 0 };

    /// Checks that the share is in its range.
    ///
    /// # Errors
    /// [`BadShare`].
    pub fn check(self) -> Result<Self, BadShare> {
        if (0.0..=1.0).contains(&self.share) { Ok(self) } else { Err(BadShare(self.share.to_string())) }
    }
}

/// [`DEFAULT_SHARE`](Self::DEFAULT_SHARE), and the first four fragments.
impl Default for AuditPolicy {
    fn default() -> Self {
        Self { share: Self::DEFAULT_SHARE, first_fragments: 4 }
    }
}

/// A share outside of 0 to 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the share of fragments that are audited is {0}; it must be between 0 and 1")]
pub struct BadShare(pub String);

/// A principal, which is accountable for workers: for example for all those that authenticated with the same token, one
/// after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub u64);

/// A committed fragment to recompute.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditTask {
    /// Number of the task.
    pub number: u64,
    /// The principal accountable for it.
    pub principal: Principal,
    /// The worker that made it.
    pub worker: WorkerId,
    /// The state and the restarts that it was made from.
    pub start: FragmentStart,
    /// The committed fragment.
    pub fragment: SlotFragment,
}

impl AuditTask {
    /// Returns a lease of this slot alone that recomputes the fragment.
    #[must_use]
    pub fn lease(&self) -> Lease {
        let SlotFragment { slot, fragment, weights_version, .. } = self.fragment;
        Lease { id: LeaseId(self.number), fragment, weights_version, slots: vec![self.start.leased(slot)] }
    }

    /// Compares the recomputed fragment: it agrees if it is bit-identical, state included.
    #[must_use]
    pub fn verdict(&self, made: &SlotFragment) -> Verdict {
        if same_bits(&self.fragment, made) { Verdict::Agrees } else { Verdict::Differs }
    }

    /// Returns the actions to replay if a policy may have acted on a device, whose numbers cannot be recomputed in every bit;
    /// `None` for rows by policy, which cannot be compared then.
    #[must_use]
    pub fn actions(&self) -> Option<TakenActions> {
        let rows = &self.fragment.rows;
        Some(TakenActions { actions: rows.column(ACTIONS.name())?.clone(), logp: rows.get(ACTION_LOGP).ok()?.to_vec() })
    }

    /// Compares a fragment in which the [actions](Self::actions) were replayed: it agrees if what the environment made of them
    /// is bit-identical, and log-probabilities, values and recurrent states are equal within 1e-4; the policy has confirmed
    /// the log-probabilities of narrow distributions, which differ more.
    #[must_use]
    pub fn verdict_of_actions(&self, made: &SlotFragment) -> Verdict {
        if same_within_tolerance(&self.fragment, made) { Verdict::Agrees } else { Verdict::Differs }
    }
}

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The recomputed fragment is bit-identical.
    Agrees,
    /// It differs.
    Differs,
    /// The fragment could not be recomputed, which is no evidence against its worker.
    Unknown,
}

/// State of the audits of untrusted workers.
#[derive(Debug, Default)]
pub struct Audits {
    policy: Option<(AuditPolicy, Streams)>,
    of_workers: BTreeMap<WorkerId, Principal>,
    principals: BTreeMap<Principal, Standing>,
    /// Tasks that were not polled yet.
    tasks: VecDeque<AuditTask>,
    /// Bytes of the tasks without a result, by number, and their sum.
    outstanding: BTreeMap<u64, usize>,
    bytes: usize,
    next: u64,
    /// Failed audits that were not polled yet.
    failed_audits: VecDeque<FailedAudit>,
}

#[derive(Debug, Default)]
struct Standing {
    committed: u64,
    /// The first batch with a fragment that was not audited and will not be.
    unchecked: Option<FragmentNo>,
    /// The fragments with an audit in progress, by number of the task.
    pending: BTreeMap<u64, Pending>,
}

/// A fragment with an audit in progress.
#[derive(Debug)]
struct Pending {
    batch: FragmentNo,
    slot: SlotId,
    fragment: FragmentNo,
    worker: WorkerId,
    /// The workers whose fragments contradict it, and the principals of the untrusted ones.
    contradicted_by: BTreeSet<WorkerId>,
    contradicting: BTreeSet<Principal>,
}

impl Pending {
    fn contradict(&mut self, (worker, principal): (WorkerId, Option<Principal>)) {
        self.contradicted_by.insert(worker);
        self.contradicting.extend(principal);
    }
}

impl Standing {
    fn first_doubtful(&self) -> Option<FragmentNo> {
        self.pending.values().map(|pending| pending.batch).chain(self.unchecked).min()
    }
}

impl Audits {
    /// Most unfinished audits; beyond it fragments are not audited.
    const MAX_TASKS: usize = 4096;
    /// Most bytes of their fragments and states, approximately.
    const MAX_BYTES: usize = 256 << 20;
    /// Most principals that are kept, apart from those with a pending audit or a connected worker.
    const MAX_PRINCIPALS: usize = 4096;

    pub(super) fn principal(&self, worker: WorkerId) -> Option<Principal> {
        self.of_workers.get(&worker).copied()
    }

    pub(super) fn forget_worker(&mut self, worker: WorkerId) {
        self.of_workers.remove(&worker);
        for pending in self.principals.values_mut().flat_map(|standing| standing.pending.values_mut()) {
            pending.contradicted_by.remove(&worker);
        }
    }

    /// Returns the principals with an unaudited fragment in a batch before this one. Audits in progress count as unaudited,
    /// since they do not outlive the process.
    pub(super) fn doubts_before(&self, batch: FragmentNo) -> Vec<(u64, u64, FragmentNo)> {
        let doubt = |(principal, standing): (&Principal, &Standing)| {
            Some((principal.0, standing.committed, standing.first_doubtful()?))
        };
        self.principals.iter().filter_map(doubt).filter(|(_, _, first)| *first < batch).collect()
    }

    /// Restores the unaudited batches of principals, without workers and audits in progress.
    pub(super) fn restore(doubts: Vec<(u64, u64, FragmentNo)>) -> Self {
        let standing = |(principal, committed, first)| {
            (Principal(principal), Standing { committed, unchecked: Some(first), ..Standing::default() })
        };
        Self { principals: doubts.into_iter().map(standing).collect_ordered(), ..Self::default() }
    }

    /// Takes over what was audited before a roll-back, without the fragments in these batches and later ones, which are undone.
    fn continue_from(&mut self, earlier: Self, undone: FragmentNo) {
        for (principal, mut standing) in earlier.principals {
            standing.pending.retain(|_, pending| pending.batch < undone);
            standing.unchecked = standing.unchecked.filter(|first| *first < undone);
            self.principals.insert(principal, standing);
        }
        (self.outstanding, self.tasks, self.next) = (earlier.outstanding, earlier.tasks, earlier.next);
        let pending: BTreeSet<u64> =
            self.principals.values().flat_map(|standing| standing.pending.keys().copied()).collect();
        self.outstanding.retain(|number, _| pending.contains(number));
        self.tasks.retain(|task| pending.contains(&task.number));
        self.bytes = self.outstanding.values().sum();
        self.failed_audits = earlier.failed_audits;
    }

    fn distrust(&mut self, worker: WorkerId, principal: Principal) {
        self.of_workers.insert(worker, principal);
        if self.principals.len() >= Self::MAX_PRINCIPALS && !self.principals.contains_key(&principal) {
            let removed = |(principal, standing): (&Principal, &Standing)| {
                (standing.pending.is_empty() && !self.of_workers.values().any(|here| here == principal))
                    .then_some(*principal)
            };
            if let Some(oldest) = self.principals.iter().find_map(removed) {
                self.principals.remove(&oldest);
            }
        }
        self.principals.entry(principal).or_default();
    }

    /// Records a commit of an untrusted worker, and requests its audit if it is selected.
    fn record_commit(
        &mut self,
        (worker, lease): (WorkerId, LeaseId),
        fragment: &SlotFragment,
        start: impl FnOnce() -> FragmentStart,
        batch: FragmentNo,
    ) {
        let (Some(principal), Some((policy, streams))) = (self.principal(worker), self.policy) else { return };
        let is_below_limits = self.is_below_limits();
        let standing = self.principals.entry(principal).or_default();
        standing.committed += 1;
        let FragmentNo(number) = fragment.fragment;
        let mut rng = streams.at(fragment.slot, number as u32, (number >> 32) as u32, lease.0 as u16);
        let is_first = standing.committed <= u64::from(policy.first_fragments);
        if (is_first || rng.uniform_f64() < policy.share) && is_below_limits {
            self.push((worker, principal), fragment.clone(), start(), batch);
        } else {
            standing.unchecked = Some(standing.unchecked.map_or(batch, |first| first.min(batch)));
        }
    }

    fn is_below_limits(&self) -> bool {
        self.outstanding.len() < Self::MAX_TASKS && self.bytes < Self::MAX_BYTES
    }

    /// Requests an audit of a committed fragment that another worker contradicts, unless one is in progress or the limits
    /// are reached. Returns false if audits are off.
    pub(super) fn demand(
        &mut self,
        (worker, principal): (WorkerId, Principal),
        fragment: SlotFragment,
        start: FragmentStart,
        batch: FragmentNo,
        contradicted_by: (WorkerId, Option<Principal>),
    ) -> bool {
        if self.policy.is_none() {
            return false;
        }
        let wanted = (fragment.slot, fragment.fragment, worker);
        let standing = self.principals.entry(principal).or_default();
        let mut pending = standing.pending.values_mut();
        if let Some(known) = pending.find(|known| (known.slot, known.fragment, known.worker) == wanted) {
            known.contradict(contradicted_by);
        } else if self.is_below_limits() {
            let number = self.push((worker, principal), fragment, start, batch);
            let standing = self.principals.entry(principal).or_default();
            if let Some(pending) = standing.pending.get_mut(&number) {
                pending.contradict(contradicted_by);
            }
        }
        true
    }

    fn push(
        &mut self,
        (worker, principal): (WorkerId, Principal),
        fragment: SlotFragment,
        start: FragmentStart,
        batch: FragmentNo,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let (slot, contradicted_by, contradicting) = (fragment.slot, BTreeSet::new(), BTreeSet::new());
        let pending = Pending { batch, slot, fragment: fragment.fragment, worker, contradicted_by, contradicting };
        self.principals.entry(principal).or_default().pending.insert(number, pending);
        let states = fragment.state.len() + start.state.as_ref().map_or(0, Vec::len);
        let agents = fragment.agents.as_ref().map_or(0, |agents| agents.size_bytes());
        let bytes = fragment.rows.size_bytes() + fragment.final_obs.size_bytes() + agents + states;
        self.bytes += bytes;
        self.outstanding.insert(number, bytes);
        self.tasks.push_back(AuditTask { number, principal, worker, start, fragment });
        number
    }

    /// Releases the memory budget of a task.
    fn done(&mut self, number: u64) {
        self.bytes -= self.outstanding.remove(&number).unwrap_or(0);
    }

    /// Drops the tasks of a principal that were not polled yet.
    fn forget_tasks(&mut self, principal: Principal) {
        let (removed, kept): (VecDeque<_>, VecDeque<_>) =
            self.tasks.drain(..).partition(|task| task.principal == principal);
        self.tasks = kept;
        removed.iter().for_each(|task| self.done(task.number));
    }
}

impl LeaseGroup {
    /// Turns on audits of untrusted workers' fragments. The secret must not be guessable.
    ///
    /// # Errors
    /// [`BadShare`].
    pub fn set_audits(&mut self, policy: AuditPolicy, secret: u64) -> Result<(), BadShare> {
        self.audits.policy = Some((policy.check()?, Streams::new(secret, Purpose::Audit)));
        Ok(())
    }

    /// Marks a worker as untrusted, with the principal accountable for it. Call it before handling anything that the worker
    /// sends.
    pub fn distrust(&mut self, worker: WorkerId, principal: Principal) {
        self.audits.distrust(worker, principal);
        let should_audit = self.audits.policy.is_some_and(|(policy, _)| policy != AuditPolicy::NONE);
        if should_audit && !self.config.audited && !core::mem::replace(&mut self.hints.not_audited, true) {
            self.event(GroupEvent::NotAudited);
        }
    }

    /// Returns true if an untrusted worker is connected.
    #[must_use]
    pub fn has_untrusted(&self) -> bool {
        !self.audits.of_workers.is_empty()
    }

    /// Returns, for each principal, the first batch with an unaudited fragment.
    pub fn doubtful(&self) -> impl Iterator<Item = FragmentNo> {
        self.audits.principals.values().filter_map(Standing::first_doubtful)
    }

    /// Sets how many env steps the run had [rejected](super::Rejected::audit) after failed audits before the restart. Adds
    /// those that the state this group was restored from does not count yet.
    pub fn count_taken_back(&mut self, env_steps: u64) {
        let unknown = env_steps.saturating_sub(self.ledger.rejected.audit);
        self.ledger.granted += unknown;
        self.ledger.rejected.audit += unknown;
    }

    /// Takes the audits of a group whose run is about to be rolled back, for [`continue_audits`](Self::continue_audits) of the
    /// group that continues it.
    #[must_use]
    pub fn take_audits(&mut self) -> Audits {
        core::mem::take(&mut self.audits)
    }

    /// Continues the audits of fragments in batches before this one, which is the first that the roll-back has undone. Call it
    /// before the first commit.
    pub fn continue_audits(&mut self, earlier: Audits, undone: FragmentNo) {
        self.audits.continue_from(earlier, undone);
    }

    /// Returns true while the result of an audit is awaited.
    #[must_use]
    pub fn awaits_audit(&self, number: u64) -> bool {
        self.audits.outstanding.contains_key(&number)
    }

    /// Returns the next fragment to recompute, with [its lease](AuditTask::lease) and the weights of its version, by a
    /// trusted worker. Pass the result to [`handle_audited`](Self::handle_audited).
    pub fn poll_audit(&mut self) -> Option<AuditTask> {
        self.audits.tasks.pop_front()
    }

    /// Handles the result of an audit. If the fragments agree, the workers that contradicted the committed one are
    /// quarantined together with their principals; if they differ, the principal that committed it is quarantined.
    /// [`poll_failed_audit`](Self::poll_failed_audit) returns the consequences.
    pub fn handle_audited(&mut self, task: &AuditTask, verdict: Verdict, now: Micros) {
        self.audits.done(task.number);
        let Some(standing) = self.audits.principals.get_mut(&task.principal) else { return };
        let first_doubtful = standing.first_doubtful();
        let Some(pending) = standing.pending.remove(&task.number) else { return };
        let place = (task.fragment.slot, task.fragment.fragment);
        match verdict {
            Verdict::Agrees => {
                self.slots.check(place, task.worker, Checked::Agrees);
                for divergent in pending.contradicted_by {
                    self.quarantine(divergent, QuarantineCause::Audit);
                }
                for principal in pending.contradicting {
                    self.fail_contradicting(principal, place);
                }
                self.advance(now);
            }
            Verdict::Unknown => {
                let batch = pending.batch;
                standing.unchecked = Some(standing.unchecked.map_or(batch, |first| first.min(batch)));
                self.slots.check(place, task.worker, Checked::Unknown);
            }
            Verdict::Differs => {
                let (slot, fragment) = place;
                self.event(GroupEvent::ReplayMismatch { worker: task.worker, slot, fragment });
                self.fail_audit(task.principal, place, first_doubtful, QuarantineCause::Replay);
                self.advance(now);
            }
        }
    }

    /// Records a fragment that is about to be committed.
    pub(super) fn record_for_audit(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        fragment: &SlotFragment,
        restarts: &[FailedStep],
    ) {
        if self.audits.principal(worker).is_none() || !self.config.audited {
            return;
        }
        let batch = self.batch_of(fragment);
        let state = self.slots.get(fragment.slot).and_then(|slot| slot.state());
        let start = || FragmentStart { state: state.cloned(), restarts: restarts.to_vec() };
        self.audits.record_commit((worker, lease), fragment, start, batch);
    }

    /// Returns the first batch that may contain a fragment committed now.
    pub(super) fn batch_of(&self, fragment: &SlotFragment) -> FragmentNo {
        match self.is_free() {
            // A fragment committed between two batches may be dropped when the next one begins, but its slot continues from
            // it: so even what is saved before that batch is taken may depend on it.
            true => {
                let before = FragmentNo(self.next_fragment.0.saturating_sub(1));
                self.open.front().map_or(before, |first| first.fragment)
            }
            false => fragment.fragment,
        }
    }
}

//! Commits of uploaded fragments.

use super::{
    End, FragmentOutcome, GroupEvent, LeaseGroup, QuarantineCause, Receipt, RejectReason,
    audit::same_bits,
    slot_table::{Checked, Commit, Untrusted},
};
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    prelude::*,
    time::Micros,
};

/// State of the contradictions between an upload and committed fragments of untrusted workers.
#[derive(Clone, Copy, Debug)]
enum Dispute {
    /// No contradiction with an untrusted worker's fragment.
    None,
    /// An audit of the committed fragment is pending.
    Open,
    /// The audit of this committed fragment has confirmed it, so the upload is wrong.
    Lost((SlotId, FragmentNo)),
}

impl LeaseGroup {
    /// Handles fragments of a lease that a worker uploads, all of them or a part.
    ///
    /// Each fragment is judged on its own, with one exception: if one of them differs from what is committed, the whole
    /// upload is rejected and the worker is quarantined. If an untrusted worker committed the other fragment, the group
    /// requests an [audit](super::AuditPolicy) of it instead, and quarantines the sender if the audit confirms it. Without
    /// an audit the group cannot know which of the two is wrong; the event names both. A fragment that was leased to several
    /// workers is compared until the slot's next one is committed, even after the batch was taken and the lease has ended.
    ///
    /// Fragments for a lease that has ended are rejected, even if they are correct and the slot is open: the slot has been
    /// leased again, or will be. They still count as a sign of life, see [`GroupEvent::WorkerRecovered`].
    pub fn handle_fragments(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        fragments: Vec<SlotFragment>,
        now: Micros,
    ) -> Receipt {
        self.record_contact(worker);
        let divergent = fragments.iter().any(|fragment| self.contradicts(lease, fragment));
        let dispute = if divergent { self.dispute(worker, lease, &fragments) } else { Dispute::None };
        let mut receipt = Receipt::default();
        for fragment in fragments {
            let outcome = match divergent {
                true => FragmentOutcome::Rejected(RejectReason::Audit),
                false => self.judge(worker, lease, &fragment),
            };
            receipt.outcomes.push((fragment.slot, outcome));
            self.settle(worker, lease, fragment, outcome, now);
        }
        self.close_if_done(worker, lease, &receipt, now);
        self.draw_consequences(worker, lease, &receipt, dispute);
        self.retire_losers(now);
        self.advance(now);
        receipt
    }

    /// Returns true if the fragment differs from a committed one of the same slot, number and weights. Two kinds of lease
    /// are not comparable: one from before the group was restored, since in the asynchronous modes the slot may have reached
    /// this fragment by another path; and one from before the slot was rewound after a failed audit, since it may build on a
    /// divergent fragment.
    fn contradicts(&self, lease: LeaseId, fragment: &SlotFragment) -> bool {
        let is_comparable = self.slots.get(fragment.slot).is_some_and(|slot| slot.is_comparable(lease));
        self.config.reproducible
            && lease >= self.config.first_lease
            && is_comparable
            && self.twin(fragment).is_some_and(|twin| !same_bits(twin, fragment))
    }

    /// Requests an audit of each committed fragment that these contradict, if the worker that made it is untrusted and
    /// belongs to another principal.
    fn dispute(&mut self, worker: WorkerId, lease: LeaseId, fragments: &[SlotFragment]) -> Dispute {
        let principal = self.audits.principal(worker);
        let mut is_open = false;
        let mut refuted = None;
        for fragment in fragments {
            if !self.contradicts(lease, fragment) {
                continue;
            }
            let slot = self.slots.get(fragment.slot);
            let first = slot.and_then(|slot| slot.untrusted(fragment.fragment));
            let (Some(Untrusted { by, start, checked }), Some(twin)) = (first, self.twin(fragment)) else { continue };
            if Some(by.1) == principal {
                continue;
            }
            match checked {
                Checked::No => {
                    let (twin, start, batch) = (twin.clone(), start.clone(), self.batch_of(fragment));
                    is_open |= self.audits.demand(by, twin, start, batch, (worker, principal));
                }
                Checked::Unknown => is_open = true,
                Checked::Agrees => refuted = Some((fragment.slot, fragment.fragment)),
            }
        }
        match refuted {
            Some(place) => Dispute::Lost(place),
            None if is_open => Dispute::Open,
            None => Dispute::None,
        }
    }

    /// Returns the committed fragment that this one must be equal to.
    fn twin(&self, fragment: &SlotFragment) -> Option<&SlotFragment> {
        let mut known = self.slots.get(fragment.slot)?.fragments();
        known.find(|k| (k.fragment, k.weights_version) == (fragment.fragment, fragment.weights_version))
    }

    /// Returns the outcome of a fragment in an upload without contradictions.
    fn judge(&self, worker: WorkerId, lease: LeaseId, fragment: &SlotFragment) -> FragmentOutcome {
        let live = self.leases.of(worker, lease);
        let Some(live) = live.filter(|live| live.open.contains(&fragment.slot)) else {
            return self.judge_uninvited(worker, lease, fragment, live.is_some());
        };
        if (fragment.fragment, fragment.weights_version) != (live.fragment, live.weights_version) {
            FragmentOutcome::Rejected(RejectReason::Mismatched)
        } else if live.is_waiting() {
            FragmentOutcome::Rejected(RejectReason::Early)
        } else if !self.config.allows(fragment.env_steps()) {
            FragmentOutcome::Rejected(RejectReason::WrongLength)
        } else if self.slots.is_committed(fragment.slot, fragment.fragment) {
            FragmentOutcome::Superseded
        } else if self.is_stale(fragment.weights_version) {
            FragmentOutcome::Rejected(RejectReason::Stale)
        } else {
            FragmentOutcome::Committed
        }
    }

    /// Returns the outcome of a fragment without a live grant.
    fn judge_uninvited(
        &self,
        worker: WorkerId,
        lease: LeaseId,
        fragment: &SlotFragment,
        lease_lives: bool,
    ) -> FragmentOutcome {
        let commit = self.slots.get(fragment.slot).and_then(|slot| slot.last_commit);
        let handed_over = |c: Commit| (c.worker, c.lease, c.fragment) == (worker, lease, fragment.fragment);
        if self.contradicts(lease, fragment) {
            // Reached only if a slot occurs twice in one upload.
            FragmentOutcome::Rejected(RejectReason::Audit)
        } else if commit.is_some_and(handed_over) {
            FragmentOutcome::Rejected(RejectReason::Duplicate)
        } else if self.twin(fragment).is_some() {
            FragmentOutcome::Superseded
        } else if lease_lives {
            FragmentOutcome::Rejected(RejectReason::NotLeased)
        } else {
            FragmentOutcome::Rejected(RejectReason::Late)
        }
    }

    /// Records an outcome in the ledger: for the grant if there is a live one, else among the uninvited fragments.
    fn settle(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        fragment: SlotFragment,
        outcome: FragmentOutcome,
        now: Micros,
    ) {
        let slot = fragment.slot;
        let invited = self.leases.of(worker, lease).is_some_and(|live| live.open.contains(&slot));
        if outcome == FragmentOutcome::Rejected(RejectReason::Audit) && self.contradicts(lease, &fragment) {
            self.record_divergence(worker, &fragment);
        }
        if !invited {
            let reason = if let FragmentOutcome::Rejected(reason) = outcome { Some(reason) } else { None };
            self.ledger.count_uninvited(reason);
            return;
        }
        let granted = u64::from(self.config.rollout_fragment_length);
        let env_steps = if outcome == FragmentOutcome::Committed { fragment.env_steps() } else { granted };
        self.ledger.regrant(granted, env_steps);
        if outcome == FragmentOutcome::Committed {
            if let Some(known) = self.workers.get_mut(&worker) {
                known.committed(env_steps, now);
            }
            let live = self.leases.get(lease);
            let is_held = live.is_some_and(|live| live.leaves_states);
            let restarts = live.map_or_else(Vec::new, |live| live.restarts_of(slot).to_vec());
            let (number, weights_version) = (fragment.fragment, fragment.weights_version);
            self.record_for_audit(worker, lease, &fragment, &restarts);
            if !self.config.reproducible {
                self.ledger.abandoned_episodes += self.slots.abandoned_before(&fragment);
            }
            let principal = self.audits.principal(worker);
            self.slots.commit(fragment, (lease, worker, principal), restarts, is_held);
            self.clear_suspicion(slot, number);
            self.record_commit(slot, number, weights_version);
        }
        self.end_grant(lease, slot, env_steps, End::Came(outcome));
    }

    fn record_divergence(&mut self, second: WorkerId, fragment: &SlotFragment) {
        if let Some(first) = self.slots.get(fragment.slot).and_then(|slot| slot.last_commit) {
            let (slot, fragment) = (fragment.slot, fragment.fragment);
            self.event(GroupEvent::AuditMismatch { slot, fragment, first: first.worker, second });
        }
    }

    /// Ends the lease if none of its grants is open, or if it was still waiting for its turn.
    pub(super) fn close_if_done(&mut self, worker: WorkerId, id: LeaseId, receipt: &Receipt, now: Micros) {
        let Some(live) = self.leases.of(worker, id) else { return };
        if live.is_waiting() {
            // Fragments of a waiting lease came too early; the others will never come.
            self.end_lease(id, End::Came(FragmentOutcome::Rejected(RejectReason::Early)));
            return;
        }
        if !live.open.is_empty() {
            return;
        }
        let Some(lease) = self.end_lease(id, End::Came(FragmentOutcome::Committed)) else { return };
        if receipt.is_useful() {
            self.durations.record(now.since(lease.granted_at));
            let (since, env_steps) = lease.measured;
            if let Some(known) = self.workers.get_mut(&worker) {
                known.measured(env_steps, now.since(since));
            }
        }
    }

    fn draw_consequences(&mut self, worker: WorkerId, lease: LeaseId, receipt: &Receipt, dispute: Dispute) {
        let mut rejected = BTreeMap::<RejectReason, u32>::new();
        for (_, outcome) in &receipt.outcomes {
            if let FragmentOutcome::Rejected(reason) = outcome {
                *rejected.entry(*reason).or_default() += 1;
            }
        }
        for (&reason, &fragments) in &rejected {
            self.event(GroupEvent::FragmentsRejected { worker, lease, fragments, reason });
        }
        match (dispute, self.audits.principal(worker)) {
            // The pending audit decides which of the two is wrong.
            (Dispute::Open, _) => return,
            (Dispute::Lost(place), Some(principal)) => return self.fail_contradicting(principal, place),
            (Dispute::Lost(_), None) | (Dispute::None, _) => {}
        }
        if rejected.contains_key(&RejectReason::Audit) {
            self.quarantine(worker, QuarantineCause::Audit);
        } else if rejected.keys().any(|reason| reason.is_failure()) {
            self.strike(worker);
        } else if receipt.is_useful()
            && let Some(known) = self.workers.get_mut(&worker)
        {
            known.delivered();
        }
    }
}

//! Consequences of failed audits for principals.

use super::{Principal, Standing};
use crate::{
    group::{ExpiryCause, LeaseGroup, QuarantineCause},
    ids::{FragmentNo, SlotId, WorkerId},
    prelude::*,
};

/// A failed audit of a principal: a recomputation differs from its fragment, or confirms the one that it contradicted.
/// Without a recomputation there is none: a worker that only contradicts a trusted worker is quarantined, but its principal
/// is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAudit {
    /// The principal.
    pub principal: Principal,
    /// Its connected workers.
    pub workers: Vec<WorkerId>,
    /// The slot of the fragment.
    pub slot: SlotId,
    /// Its number.
    pub fragment: FragmentNo,
    /// Fragments that no batch had taken and that are no longer committed: the principal's, and those that build on them.
    pub dropped: u32,
    /// The first batch with an unaudited fragment of the principal; `None` if no such batch was taken. Data that was
    /// saved before that batch was taken does not depend on the principal. In the asynchronous and deadline modes it
    /// may be the incomplete batch: what is queued can be dropped there only by going back to where the last batch was
    /// taken.
    pub first_doubtful: Option<FragmentNo>,
}

impl LeaseGroup {
    /// Returns the next failed audit of a principal, one for each detection. The principal's workers are quarantined. In
    /// synchronous mode, what it has committed and no batch has taken is no longer committed, and is granted to other
    /// workers. The caller has to undo what is in batches, and in the other modes also what is queued.
    pub fn poll_failed_audit(&mut self) -> Option<FailedAudit> {
        self.audits.failed_audits.pop_front()
    }

    /// Quarantines a principal that contradicts a fragment confirmed by an audit.
    pub(in crate::group) fn fail_contradicting(&mut self, principal: Principal, place: (SlotId, FragmentNo)) {
        let first_doubtful = self.audits.principals.get(&principal).and_then(Standing::first_doubtful);
        self.fail_audit(principal, place, first_doubtful, QuarantineCause::Audit);
    }

    pub(super) fn fail_audit(
        &mut self,
        principal: Principal,
        (slot, fragment): (SlotId, FragmentNo),
        first_doubtful: Option<FragmentNo>,
        cause: QuarantineCause,
    ) {
        // The principal's other pending audits no longer matter.
        let standing = self.audits.principals.entry(principal).or_default();
        *standing = Standing { committed: standing.committed, ..Standing::default() };
        self.audits.forget_tasks(principal);
        let of_principal = |(&worker, &of): (&WorkerId, &Principal)| (of == principal).then_some(worker);
        let workers: Vec<WorkerId> = self.audits.of_workers.iter().filter_map(of_principal).collect();
        for &worker in &workers {
            self.quarantine(worker, cause);
        }
        let dropped = self.drop_commits_of(principal);
        let taken = self.open.front().map_or(self.next_fragment, |first| first.fragment);
        let first_doubtful = first_doubtful.filter(|&first| first < taken || self.is_free());
        self.audits.failed_audits.push_back(FailedAudit {
            principal,
            workers,
            slot,
            fragment,
            dropped,
            first_doubtful,
        });
    }

    /// Takes back what a principal has committed and no batch has taken, with all fragments that build on it.
    fn drop_commits_of(&mut self, principal: Principal) -> u32 {
        if self.is_free() {
            // The commit order is already in the journal.
            return 0;
        }
        let mut dropped = 0;
        for (slot, next, fragments, env_steps) in self.slots.drop_commits_of(principal, self.leases.next_id()) {
            dropped += fragments;
            self.ledger.take_back(env_steps);
            self.failures.forget(slot);
            for lease in self.leases.ids(|lease| lease.fragment > next && lease.slots.contains(&slot)) {
                self.expire(lease, ExpiryCause::Revoked);
            }
        }
        dropped
    }
}

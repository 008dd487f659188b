//! Bodies of operators' commands for a whole hub, and of the ledger that dashboards show, as they are on the wire.

use serde::{Deserialize, Serialize};

/// Sets the number of local workers: the hub starts some, or lets some finish their leases and exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Chosen by the sender; the reply carries it.
    pub request: u32,
    /// Requested number of local workers.
    pub num_workers: u32,
}

/// The run's ledger, for dashboards: where every granted env step is. Sent after [`RunStatus`](super::message::RunStatus)
/// when anything in it changed; after `Welcome`, it is the last message of the initial state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Number of the run on this hub, 0 before the first.
    pub run: u32,
    /// Env steps granted; equals the sum of committed, superseded, rejected, expired and outstanding.
    pub granted: u64,
    /// Env steps that were committed, each exactly once; equals the sum of queued, consumed and dropped as stale.
    pub committed: u64,
    /// Env steps of a slot that another lease committed first, with equal rows.
    pub superseded: u64,
    /// Env steps that arrived and were rejected.
    pub rejected: RejectedCounts,
    /// Env steps that never arrived.
    pub expired: ExpiredCounts,
    /// Env steps of live leases.
    pub outstanding: u64,
    /// Committed env steps that no batch has taken yet.
    pub queued: u64,
    /// Committed env steps that a batch has taken.
    pub consumed: u64,
    /// Committed env steps that no batch took before their weights became too old.
    pub dropped_stale: u64,
    /// Env steps that were recomputed after the run was resumed from its checkpoint.
    pub regenerated: u64,
    /// Fragments without a live grant, equal to what was committed. Not part of the sum, like the next field.
    pub uninvited_superseded: u64,
    /// Fragments without a live grant, rejected.
    pub uninvited_rejected: RejectedCounts,
    /// Local workers that exited unexpectedly and were replaced, since the hub began.
    #[doc(alias = "num_remote_worker_restarts")]
    pub num_worker_restarts: u64,
    /// Open episodes that were abandoned because their slots moved and the episodes could not.
    pub abandoned_episodes: u64,
}

/// Counts of what was rejected, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedCounts {
    /// The lease had ended, or never belonged to the sender.
    pub late: u64,
    /// The lease had uploaded the slot before.
    pub duplicate: u64,
    /// The lease did not include the slot.
    pub not_leased: u64,
    /// It could not be decoded.
    pub corrupt: u64,
    /// It had other weights, or was for another fragment.
    pub mismatched: u64,
    /// Its weights had become too old.
    pub stale: u64,
    /// It arrived before its predecessor.
    pub early: u64,
    /// It had a wrong number of rows.
    pub wrong_length: u64,
    /// It differed from what was committed.
    pub audit: u64,
}

/// Counts of what never arrived, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredCounts {
    /// No progress in time.
    pub timed_out: u64,
    /// The worker disconnected.
    pub left: u64,
    /// The worker refused the lease.
    pub refused: u64,
    /// The lease was revoked.
    pub revoked: u64,
}

impl RejectedCounts {
    /// Returns every reason with its count.
    #[must_use]
    pub const fn by_reason(&self) -> [(&'static str, u64); 9] {
        let Self { late, duplicate, not_leased, corrupt, mismatched, stale, early, wrong_length, audit } = *self;
        [
            ("late", late),
            ("duplicate", duplicate),
            ("not_leased", not_leased),
            ("corrupt", corrupt),
            ("mismatched", mismatched),
            ("stale", stale),
            ("early", early),
            ("wrong_length", wrong_length),
            ("audit", audit),
        ]
    }

    /// Returns the sum over all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum(&self.by_reason())
    }
}

impl ExpiredCounts {
    /// Returns every cause with its count.
    #[must_use]
    pub const fn by_cause(&self) -> [(&'static str, u64); 4] {
        let Self { timed_out, left, refused, revoked } = *self;
        [("timed_out", timed_out), ("left", left), ("refused", refused), ("revoked", revoked)]
    }

    /// Returns the sum over all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum(&self.by_cause())
    }
}

/// Saturates, since the numbers come from a peer and no sum of them may panic.
fn sum(counts: &[(&'static str, u64)]) -> u64 {
    counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
}

impl LedgerReport {
    /// Returns true if no env step is lost or counted twice, those that were committed included.
    #[must_use]
    pub fn balances(&self) -> bool {
        let parts = [self.committed, self.superseded, self.rejected.total(), self.expired.total(), self.outstanding];
        let taken = [self.queued, self.consumed, self.dropped_stale];
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        sum(&parts) == self.granted && sum(&taken) == self.committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_balances_when_every_step_is_somewhere() {
        let rejected = RejectedCounts {
            late: 1,
            duplicate: 2,
            not_leased: 4,
            corrupt: 8,
            mismatched: 256,
            stale: 16,
            early: 32,
            wrong_length: 64,
            audit: 128,
        };
        let expired = ExpiredCounts { timed_out: 1, left: 2, refused: 4, revoked: 8 };
        assert_eq!((rejected.total(), expired.total()), (511, 15));
        let report = LedgerReport {
            granted: 511 + 15 + 1000 + 200 + 30,
            committed: 1000,
            queued: 100,
            consumed: 890,
            dropped_stale: 10,
            superseded: 200,
            outstanding: 30,
            rejected,
            expired,
            regenerated: 7,
            uninvited_rejected: rejected,
            ..LedgerReport::default()
        };
        assert!(report.balances());
        assert!(!LedgerReport { granted: 0, ..report.clone() }.balances());
        assert!(!LedgerReport { queued: 0, ..report.clone() }.balances());
        // No numbers of a peer panic.
        let huge = RejectedCounts { late: u64::MAX, ..rejected };
        assert!(!LedgerReport { committed: u64::MAX, rejected: huge, ..report }.balances());
    }
}

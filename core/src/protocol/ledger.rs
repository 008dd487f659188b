//! The ledger: every granted env step ends in exactly one place.

use serde::{Deserialize, Serialize};

/// Counts where the granted env steps are, over the life of a run.
///
/// `granted == committed + superseded + rejected + expired + outstanding` and `consumed == committed - queued -
/// dropped_stale`, after every call. A grant is one slot of one lease, so a slot that was leased twice counts twice. If
/// fragments differ in length, a grant counts as `rollout_fragment_length` until its fragment is committed, and then as the
/// fragment's env steps. In JSON the fields keep their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Env steps that were granted to workers.
    pub granted: u64,
    /// Env steps that were committed, each exactly once.
    pub committed: u64,
    /// Env steps of a slot that another lease committed first.
    pub superseded: u64,
    /// Env steps that arrived and were rejected.
    pub rejected: Rejected,
    /// Env steps that never arrived.
    pub expired: Expired,
    /// Env steps of live leases.
    pub outstanding: u64,
    /// Committed env steps that no batch has taken yet.
    pub queued: u64,
    /// Committed env steps that a batch has taken.
    pub consumed: u64,
    /// Committed env steps that no batch took before their weights became too old.
    pub dropped_stale: u64,
    /// Env steps that are recomputed because the group's process ended, as far as the state that it was
    /// restored from counted them. Not part of an identity.
    pub regenerated: u64,
    /// Open episodes that were abandoned because their slots moved and the episodes could not, see
    /// [`EnvState::Opaque`](crate::env::EnvState::Opaque). Episodes, not env steps; not part of an identity.
    pub abandoned_episodes: u64,
    /// Fragments that arrived without a live grant. Not part of an identity.
    pub uninvited: Uninvited,
}

/// Rejected env steps or fragments, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The lease had ended, or never belonged to the sender: always uninvited, since the grant has already ended in another
    /// way.
    pub late: u64,
    /// The lease had uploaded the slot before: always uninvited.
    pub duplicate: u64,
    /// The lease did not include the slot: always uninvited.
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

/// Granted env steps that never arrived, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expired {
    /// No progress in time.
    pub timed_out: u64,
    /// The worker disconnected.
    pub left: u64,
    /// The worker refused the lease.
    pub refused: u64,
    /// The lease was revoked.
    pub revoked: u64,
}

/// Fragments (not env steps) without a live grant. They changed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uninvited {
    /// Equal to what another lease committed: late, but also a passed comparison.
    pub superseded: u64,
    /// Rejected. An upload that could not be decoded counts as one fragment.
    pub rejected: Rejected,
}

impl Ledger {
    /// Returns true if no env step is lost or counted twice.
    #[must_use]
    pub fn balances(&self) -> bool {
        let ended = [self.committed, self.superseded, self.rejected.total(), self.expired.total(), self.outstanding];
        let taken = [self.consumed, self.queued, self.dropped_stale];
        sum(ended) == Some(self.granted) && sum(taken) == Some(self.committed)
    }
}

impl Rejected {
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

    /// Returns the sum over all reasons; saturates.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum(self.by_reason().map(|(_, count)| count)).unwrap_or(u64::MAX)
    }
}

impl Expired {
    /// Returns every cause with its count.
    #[must_use]
    pub const fn by_cause(&self) -> [(&'static str, u64); 4] {
        let Self { timed_out, left, refused, revoked } = *self;
        [("timed_out", timed_out), ("left", left), ("refused", refused), ("revoked", revoked)]
    }

    /// Returns the sum over all causes; saturates.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum(self.by_cause().map(|(_, count)| count)).unwrap_or(u64::MAX)
    }
}

/// Returns `None` on overflow, which only a decoded ledger can cause.
fn sum<const N: usize>(parts: [u64; N]) -> Option<u64> {
    parts.into_iter().try_fold(0u64, u64::checked_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_balances_when_every_step_is_somewhere() {
        let rejected = Rejected {
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
        let expired = Expired { timed_out: 1, left: 2, refused: 4, revoked: 8 };
        assert_eq!((rejected.total(), expired.total()), (511, 15));
        let ledger = Ledger {
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
            uninvited: Uninvited { superseded: 0, rejected },
            ..Ledger::default()
        };
        assert!(ledger.balances());
        assert!(!Ledger { granted: 0, ..ledger }.balances());
        assert!(!Ledger { queued: 0, ..ledger }.balances());
        // No numbers of a peer panic.
        let huge = Rejected { late: u64::MAX, ..rejected };
        assert!(!Ledger { committed: u64::MAX, rejected: huge, ..ledger }.balances());
    }
}

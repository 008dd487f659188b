//! The ledger: every granted env step ends in exactly one place.

use serde::{Deserialize, Serialize};

use super::{ExpiryCause, Outcome, RejectReason};
use crate::prelude::*;

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
    /// [restored](super::LeaseGroup::restore) from counted them. Not part of an identity.
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
    /// [`RejectReason::Late`]: always uninvited, since the grant has already ended in another way.
    pub late: u64,
    /// [`RejectReason::Duplicate`]: always uninvited.
    pub duplicate: u64,
    /// [`RejectReason::NotLeased`]: always uninvited.
    pub not_leased: u64,
    /// [`RejectReason::Corrupt`].
    pub corrupt: u64,
    /// [`RejectReason::Mismatched`].
    pub mismatched: u64,
    /// [`RejectReason::Stale`].
    pub stale: u64,
    /// [`RejectReason::Early`].
    pub early: u64,
    /// [`RejectReason::WrongLength`].
    pub wrong_length: u64,
    /// [`RejectReason::Audit`].
    pub audit: u64,
}

/// Granted env steps that never arrived, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expired {
    /// [`ExpiryCause::TimedOut`].
    pub timed_out: u64,
    /// [`ExpiryCause::Left`].
    pub left: u64,
    /// [`ExpiryCause::Refused`].
    pub refused: u64,
    /// [`ExpiryCause::Revoked`].
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

/// Env steps are lost or counted twice: the ledger does not balance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the books do not balance: of {} granted env steps {} are committed, {} superseded, {} rejected, {} expired and {} \
     outstanding; of the committed ones {} are consumed, {} queued and {} dropped as stale",
    .0.granted, .0.committed, .0.superseded, .0.rejected.total(), .0.expired.total(), .0.outstanding,
    .0.consumed, .0.queued, .0.dropped_stale
)]
pub struct UnbalancedLedger(pub Box<Ledger>);

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Came(Outcome),
    Expired(ExpiryCause),
}

impl Ledger {
    /// Returns true if no env step is lost or counted twice.
    #[must_use]
    pub fn balances(&self) -> bool {
        let ended = [self.committed, self.superseded, self.rejected.total(), self.expired.total(), self.outstanding];
        let taken = [self.consumed, self.queued, self.dropped_stale];
        sum(ended) == Some(self.granted) && sum(taken) == Some(self.committed)
    }

    /// Returns an error unless the ledger [balances](Self::balances).
    ///
    /// # Errors
    /// [`UnbalancedLedger`].
    pub fn check(&self) -> Result<(), UnbalancedLedger> {
        if self.balances() { Ok(()) } else { Err(UnbalancedLedger(Box::new(*self))) }
    }

    /// Returns the ledger as of the last batch that was taken: what is queued or outstanding will be recomputed.
    pub(super) fn settled(&self) -> Self {
        let again = self.outstanding + self.queued;
        Self {
            granted: self.granted - again,
            committed: self.committed - self.queued,
            outstanding: 0,
            queued: 0,
            regenerated: self.regenerated + again,
            ..*self
        }
    }

    /// Moves a committed fragment from the queue into a batch.
    pub(super) fn consume(&mut self, env_steps: u64) {
        self.queued -= env_steps;
        self.consumed += env_steps;
    }

    pub(super) fn open(&mut self, env_steps: u64) {
        self.granted += env_steps;
        self.outstanding += env_steps;
    }

    /// Corrects the number of env steps of an open grant.
    pub(super) fn regrant(&mut self, from: u64, to: u64) {
        self.granted = self.granted - from + to;
        self.outstanding = self.outstanding - from + to;
    }

    pub(super) fn close(&mut self, env_steps: u64, end: End) {
        self.outstanding -= env_steps;
        let bucket = match end {
            End::Came(Outcome::Committed) => &mut self.committed,
            End::Came(Outcome::Superseded) => &mut self.superseded,
            End::Came(Outcome::Rejected(reason)) => self.rejected.bucket(reason),
            End::Expired(cause) => self.expired.bucket(cause),
        };
        *bucket += env_steps;
        if end == End::Came(Outcome::Committed) {
            self.queued += env_steps;
        }
    }

    /// Rejects committed env steps that no batch has taken, after a failed audit.
    pub(super) fn take_back(&mut self, env_steps: u64) {
        self.queued -= env_steps;
        self.committed -= env_steps;
        self.rejected.audit += env_steps;
    }

    /// Books a committed fragment that is too old for any batch.
    pub(super) fn drop_stale(&mut self, env_steps: u64) {
        self.queued -= env_steps;
        self.dropped_stale += env_steps;
    }

    /// Counts a fragment without a live grant, which is never committed.
    pub(super) fn count_uninvited(&mut self, reason: Option<RejectReason>) {
        match reason {
            Some(reason) => *self.uninvited.rejected.bucket(reason) += 1,
            None => self.uninvited.superseded += 1,
        }
    }
}

/// Returns `None` on overflow, which only a decoded ledger can cause.
fn sum<const N: usize>(parts: [u64; N]) -> Option<u64> {
    parts.into_iter().try_fold(0u64, u64::checked_add)
}

impl Rejected {
    /// Returns the sum over all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { late, duplicate, not_leased, corrupt, mismatched, stale, early, wrong_length, audit } = *self;
        sum([late, duplicate, not_leased, corrupt, mismatched, stale, early, wrong_length, audit]).unwrap_or(u64::MAX)
    }

    fn bucket(&mut self, reason: RejectReason) -> &mut u64 {
        match reason {
            RejectReason::Late => &mut self.late,
            RejectReason::Duplicate => &mut self.duplicate,
            RejectReason::NotLeased => &mut self.not_leased,
            RejectReason::Corrupt => &mut self.corrupt,
            RejectReason::Mismatched => &mut self.mismatched,
            RejectReason::Stale => &mut self.stale,
            RejectReason::Early => &mut self.early,
            RejectReason::WrongLength => &mut self.wrong_length,
            RejectReason::Audit => &mut self.audit,
        }
    }
}

impl Expired {
    /// Returns the sum over all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { timed_out, left, refused, revoked } = *self;
        sum([timed_out, left, refused, revoked]).unwrap_or(u64::MAX)
    }

    fn bucket(&mut self, cause: ExpiryCause) -> &mut u64 {
        match cause {
            ExpiryCause::TimedOut => &mut self.timed_out,
            ExpiryCause::Left => &mut self.left,
            ExpiryCause::Refused => &mut self.refused,
            ExpiryCause::Revoked => &mut self.revoked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_own_bucket_and_keeps_the_balance() {
        let came = [
            Outcome::Committed,
            Outcome::Superseded,
            Outcome::Rejected(RejectReason::Corrupt),
            Outcome::Rejected(RejectReason::Mismatched),
            Outcome::Rejected(RejectReason::Stale),
            Outcome::Rejected(RejectReason::WrongLength),
            Outcome::Rejected(RejectReason::Early),
            Outcome::Rejected(RejectReason::Audit),
        ];
        let never =
            [ExpiryCause::TimedOut, ExpiryCause::Left, ExpiryCause::Refused, ExpiryCause::Revoked].map(End::Expired);
        let mut ledger = Ledger::default();
        for (i, end) in came.map(End::Came).into_iter().chain(never).enumerate() {
            ledger.open(1 << i);
            assert!(ledger.balances());
            ledger.close(1 << i, end);
            assert!(ledger.balances());
        }
        let Ledger { rejected, expired, .. } = ledger;
        let buckets: Vec<u64> = vec![
            ledger.committed,
            ledger.superseded,
            rejected.corrupt,
            rejected.mismatched,
            rejected.stale,
            rejected.wrong_length,
            rejected.early,
            rejected.audit,
            expired.timed_out,
            expired.left,
            expired.refused,
            expired.revoked,
        ];
        assert_eq!(buckets, (0..12).map(|i| 1 << i).collect::<Vec<u64>>());
        assert_eq!((ledger.granted, ledger.outstanding), (4095, 0));
        assert_eq!((rejected.total(), expired.total()), (252, 3840));
    }

    #[test]
    fn a_lost_step_is_noticed() {
        let mut ledger = Ledger::default();
        ledger.open(8);
        ledger.outstanding -= 1;
        assert!(!ledger.balances());
        let text = ledger.check().unwrap_err().to_string();
        assert!(text.contains("of 8 granted env steps 0 are committed") && text.contains("7 outstanding"), "{text}");
        let lost_in_the_queue = Ledger { granted: 8, committed: 8, consumed: 4, queued: 3, ..Ledger::default() };
        assert!(!lost_in_the_queue.balances());
        let more_than_can_be = Ledger { committed: u64::MAX, consumed: u64::MAX, queued: 1, ..Ledger::default() };
        assert!(!more_than_can_be.balances());
    }

    #[test]
    fn what_no_batch_has_taken_is_made_again() {
        let mut ledger = Ledger::default();
        ledger.open(32);
        ledger.close(8, End::Came(Outcome::Committed));
        ledger.close(8, End::Came(Outcome::Committed));
        ledger.close(8, End::Expired(ExpiryCause::Left));
        ledger.consume(8);
        assert!(ledger.balances());
        let settled = ledger.settled();
        assert!(settled.balances());
        let Ledger { granted, committed, consumed, regenerated, .. } = settled;
        assert_eq!((granted, committed, consumed, regenerated), (16, 8, 8, 16));
    }
}

//! The group's ledger.

use super::{ExpiryCause, FragmentOutcome, RejectReason};
use crate::prelude::*;
pub use crate::protocol::ledger::{Expired, Ledger, Rejected, Uninvited};

/// Env steps are lost or counted twice: the ledger does not balance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger does not balance: of {} granted env steps {} are committed, {} superseded, {} rejected, {} expired and {} \
     outstanding; of the committed ones {} are consumed, {} queued and {} dropped as stale",
    .0.granted, .0.committed, .0.superseded, .0.rejected.total(), .0.expired.total(), .0.outstanding,
    .0.consumed, .0.queued, .0.dropped_stale
)]
pub struct UnbalancedLedger(pub Box<Ledger>);

/// The end of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Came(FragmentOutcome),
    Expired(ExpiryCause),
}

impl Ledger {
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
            End::Came(FragmentOutcome::Committed) => &mut self.committed,
            End::Came(FragmentOutcome::Superseded) => &mut self.superseded,
            End::Came(FragmentOutcome::Rejected(reason)) => self.rejected.bucket(reason),
            End::Expired(cause) => self.expired.bucket(cause),
        };
        *bucket += env_steps;
        if end == End::Came(FragmentOutcome::Committed) {
            self.queued += env_steps;
        }
    }

    /// Rejects committed env steps that no batch has taken, after a failed audit.
    pub(super) fn take_back(&mut self, env_steps: u64) {
        self.queued -= env_steps;
        self.committed -= env_steps;
        self.rejected.audit += env_steps;
    }

    /// Counts a committed fragment that is too old for any batch.
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

impl Rejected {
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
            FragmentOutcome::Committed,
            FragmentOutcome::Superseded,
            FragmentOutcome::Rejected(RejectReason::Corrupt),
            FragmentOutcome::Rejected(RejectReason::Mismatched),
            FragmentOutcome::Rejected(RejectReason::Stale),
            FragmentOutcome::Rejected(RejectReason::WrongLength),
            FragmentOutcome::Rejected(RejectReason::Early),
            FragmentOutcome::Rejected(RejectReason::Audit),
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
    fn fragments_in_no_batch_are_replayed_after_a_resume() {
        let mut ledger = Ledger::default();
        ledger.open(32);
        ledger.close(8, End::Came(FragmentOutcome::Committed));
        ledger.close(8, End::Came(FragmentOutcome::Committed));
        ledger.close(8, End::Expired(ExpiryCause::Left));
        ledger.consume(8);
        assert!(ledger.balances());
        let settled = ledger.settled();
        assert!(settled.balances());
        let Ledger { granted, committed, consumed, regenerated, .. } = settled;
        assert_eq!((granted, committed, consumed, regenerated), (16, 8, 8, 16));
    }
}

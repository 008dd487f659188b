//! What the group says: commands for workers, events for people, receipts for uploads.

use core::fmt;

use super::status::TooFewSlots;
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::Lease,
    prelude::*,
    protocol::{FragmentFailure, Inability},
    time::Micros,
};

/// Something to send to a worker. Commands for one worker must reach it in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupCommand {
    /// Work for a worker. It needs the lease's weights first.
    Grant {
        /// The worker.
        worker: WorkerId,
        /// The work.
        lease: Lease,
    },
    /// A lease is void. The worker drops it and answers with a refusal of this lease, even if it knows
    /// nothing of it: that is how a worker that was silent for too long shows that it is back.
    Revoke {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
    },
    /// The worker was removed and has nothing left to do: close its connection, end its process.
    Dismiss {
        /// The worker.
        worker: WorkerId,
    },
}

impl GroupCommand {
    /// Whom it is for.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Grant { worker, .. } | Self::Revoke { worker, .. } | Self::Dismiss { worker } => worker,
        }
    }
}

/// Why what a lease asked for never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryCause {
    /// The worker made no progress in time.
    TimedOut,
    /// The worker left.
    Left,
    /// The worker refused the lease.
    Refused,
    /// The lease was taken back: the run was stopped, the worker quarantined or removed, or it was a follow-up
    /// and the lease before it did not end with all of it committed.
    Revoked,
}

/// Why a fragment was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RejectReason {
    /// Its lease is over, or never was this worker's.
    Late,
    /// This lease has handed over this slot before.
    Duplicate,
    /// Its lease does not hold this slot.
    NotLeased,
    /// The upload could not be decoded.
    Corrupt,
    /// Made with other weights, or another fragment, than its lease asks for.
    Mismatched,
    /// The weights that it was made with have become too old, see [`SamplingMode`](super::SamplingMode).
    Stale,
    /// It came before the fragment before it: its lease follows one that goes on.
    Early,
    /// Not as many env steps as a fragment has.
    WrongLength,
    /// Differs from what was committed for the same slot, or came together with such a fragment.
    Audit,
}

impl RejectReason {
    /// True if a sound worker with a sound connection never causes it.
    pub(super) fn is_failure(self) -> bool {
        match self {
            Self::Late | Self::Duplicate | Self::Stale => false,
            Self::NotLeased | Self::Corrupt | Self::Mismatched | Self::Early | Self::WrongLength | Self::Audit => true,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "its lease is over",
            Self::Duplicate => "it was handed over before",
            Self::NotLeased => "its slot was not leased to this worker",
            Self::Corrupt => "it could not be decoded",
            Self::Mismatched => "it was made with other weights or for another fragment",
            Self::Stale => "its weights have become too old",
            Self::Early => "the fragment before it had not come",
            Self::WrongLength => "it has the wrong number of env steps",
            Self::Audit => "it contradicts another worker",
        })
    }
}

/// What became of one fragment of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is part of the batch.
    Committed,
    /// An equal one was committed before.
    Superseded,
    /// It was refused.
    Rejected(RejectReason),
}

/// What became of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Slot and outcome of each fragment, in the order of the upload.
    pub outcomes: Vec<(SlotId, Outcome)>,
}

impl Receipt {
    /// True if anything in the upload was right.
    pub(super) fn is_useful(&self) -> bool {
        self.outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Committed | Outcome::Superseded))
    }

    /// How many fragments had this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes.iter().filter(|(_, found)| *found == outcome).count()
    }
}

/// Something that a person or a log should know. Its text says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// A lease ended before all of it came; its open slots are leased again.
    LeaseExpired {
        /// Whose it was.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// How many of its slots were open.
        slots: u32,
        /// Why.
        cause: ExpiryCause,
        /// What the worker said about it; empty unless it refused.
        reason: String,
    },
    /// A worker cannot run the leases of this run. It gets none, and stays.
    WorkerUnable {
        /// The worker.
        worker: WorkerId,
        /// Why.
        inability: Inability,
    },
    /// No worker that is here can run the leases of this run. It ends unless one that can comes soon.
    AllUnable {
        /// How many are here.
        workers: u32,
    },
    /// There are more workers than slots, so some workers get no lease.
    TooFewSlots(TooFewSlots),
    /// A worker made no progress for too long. It gets no lease until it is heard of.
    WorkerHung {
        /// The worker.
        worker: WorkerId,
        /// How long its lease went without progress.
        patience: Micros,
    },
    /// A hung worker was heard of.
    WorkerRecovered {
        /// The worker.
        worker: WorkerId,
    },
    /// An overdue lease's slots were leased a second time.
    LeaseHedged {
        /// Who has them the second time.
        worker: WorkerId,
        /// The second lease.
        lease: LeaseId,
        /// How many slots.
        slots: u32,
    },
    /// Fragments were refused.
    FragmentsRejected {
        /// Who sent them.
        worker: WorkerId,
        /// The lease that they came for.
        lease: LeaseId,
        /// How many; 0 if they could not be decoded.
        fragments: u32,
        /// Why.
        reason: RejectReason,
    },
    /// Committed fragments are in no batch: their weights had become too old before one was there.
    FragmentsDropped {
        /// How many.
        fragments: u32,
        /// The weights that made them too old.
        newest: WeightsVersion,
    },
    /// Two workers made different rows of the same slot, fragment and weights: at least one of them is
    /// broken or lies. The first one's are committed.
    AuditMismatch {
        /// The slot.
        slot: SlotId,
        /// The fragment.
        fragment: FragmentNo,
        /// Who committed first.
        first: WorkerId,
        /// Whose fragment differs from that.
        second: WorkerId,
    },
    /// A committed fragment of an untrusted worker is not what it should be.
    ReplayMismatch {
        /// Who made it.
        worker: WorkerId,
        /// The slot.
        slot: SlotId,
        /// The fragment.
        fragment: FragmentNo,
    },
    /// A fragment failed. It is granted again, unless that is [fatal](super::LeaseGroup::fatal_failure).
    FragmentFailed {
        /// The worker that gave it up.
        worker: WorkerId,
        /// What failed, and where.
        failure: FragmentFailure,
    },
    /// A worker gets no more leases.
    WorkerQuarantined {
        /// The worker.
        worker: WorkerId,
        /// Why.
        cause: QuarantineCause,
    },
}

/// Why a worker gets no more leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineCause {
    /// It contradicted a committed fragment, which was made again if somebody untrusted had made it.
    Audit,
    /// A fragment of its party was made again and differs.
    Replay,
    /// Three times in a row it refused its lease or sent something unusable.
    Failures,
}

impl fmt::Display for QuarantineCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Audit => "it contradicted a committed fragment",
            Self::Replay => "a fragment that was made again differs from its",
            Self::Failures => "it failed three times in a row",
        })
    }
}

impl fmt::Display for GroupEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseExpired { worker, lease, slots, cause, reason } => {
                let why = match cause {
                    ExpiryCause::TimedOut => "it made no progress in time",
                    ExpiryCause::Left => "it left",
                    ExpiryCause::Refused => {
                        return write!(f, "lease {lease} was refused by worker {worker}: {reason}");
                    }
                    ExpiryCause::Revoked => "the lease was taken back",
                };
                write!(f, "lease {lease} of worker {worker} expired with {slots} open slots: {why}")
            }
            Self::WorkerUnable { worker, inability } => {
                write!(f, "worker {worker} cannot run this, and gets no lease of it: {inability}")
            }
            Self::AllUnable { workers } => {
                write!(f, "none of the {workers} workers can run this: the run ends unless one that can comes soon")
            }
            Self::TooFewSlots(few) => write!(f, "some workers get no slot: {few}"),
            Self::WorkerHung { worker, patience } => {
                write!(f, "worker {worker} hangs: no progress for {patience}; it gets no lease until it is heard of")
            }
            Self::WorkerRecovered { worker } => write!(f, "worker {worker} is back"),
            Self::LeaseHedged { worker, lease, slots } => {
                write!(f, "worker {worker} tries {slots} overdue slots in lease {lease}")
            }
            Self::FragmentsRejected { worker, lease, reason: RejectReason::Corrupt, .. } => {
                write!(f, "an upload of worker {worker} for lease {lease} was refused: it could not be decoded")
            }
            Self::FragmentsRejected { worker, lease, fragments, reason } => {
                write!(f, "{fragments} fragments of worker {worker} for lease {lease} were refused: {reason}")
            }
            Self::FragmentsDropped { fragments, newest } => {
                write!(f, "{fragments} fragments were dropped: with weights {newest} theirs have become too old")
            }
            Self::AuditMismatch { slot, fragment, first, second } => {
                write!(f, "workers {first} and {second} disagree about fragment {fragment} of slot {slot}")
            }
            Self::ReplayMismatch { worker, slot, fragment } => {
                write!(f, "fragment {fragment} of slot {slot} is not what worker {worker} said")
            }
            Self::FragmentFailed { worker, failure } => write!(f, "a fragment failed on worker {worker}: {failure}"),
            Self::WorkerQuarantined { worker, cause } => {
                write!(f, "worker {worker} gets no more leases: {cause}; remove it, or restart it")
            }
        }
    }
}

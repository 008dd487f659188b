//! Outputs of a group: commands for workers, events for logs, receipts for uploads.

use core::fmt;

use super::status::TooFewSlots;
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::Lease,
    prelude::*,
    protocol::{FragmentFailure, Inability},
    time::Micros,
};

/// A message to send to a worker. Commands for one worker must reach it in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupCommand {
    /// Grants a lease to a worker, which needs the lease's weights first.
    Grant {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: Lease,
    },
    /// Revokes a lease. The worker drops it and answers with a refusal of this lease, even if it does not know it: in this
    /// way a worker that was silent for too long shows that it has recovered.
    Revoke {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
    },
    /// Dismisses a worker that was removed and has finished: close its connection, end its process.
    Dismiss {
        /// The worker.
        worker: WorkerId,
    },
}

impl GroupCommand {
    /// Returns the worker that the command is for.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Grant { worker, .. } | Self::Revoke { worker, .. } | Self::Dismiss { worker } => worker,
        }
    }
}

/// The reason why granted env steps never arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryCause {
    /// The worker made no progress in time.
    TimedOut,
    /// The worker disconnected.
    Left,
    /// The worker refused the lease.
    Refused,
    /// The lease was revoked: the run was stopped, the worker was quarantined or removed, or the lease was a follow-up and
    /// the lease before it ended without all of it committed.
    Revoked,
}

/// The reason why a fragment was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RejectReason {
    /// Its lease has ended, or never belonged to this worker.
    Late,
    /// The same lease has uploaded this slot before.
    Duplicate,
    /// Its lease does not include this slot.
    NotLeased,
    /// The upload could not be decoded.
    Corrupt,
    /// It has other weights or another number than its lease asks for.
    Mismatched,
    /// Its weights have become too old, see [`SamplingMode`](super::SamplingMode).
    Stale,
    /// It arrived before its predecessor: its lease follows one that is still in progress.
    Early,
    /// It has a wrong number of env steps.
    WrongLength,
    /// It differs from what was committed for the same slot, or came in one upload with such a fragment.
    Audit,
}

impl RejectReason {
    /// Returns true if a correct worker with a working connection never causes it.
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

/// The outcome of one uploaded fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// It is committed.
    Committed,
    /// An equal fragment was committed before.
    Superseded,
    /// It was rejected.
    Rejected(RejectReason),
}

/// The outcomes of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Slot and outcome of each fragment, in the order of the upload.
    pub outcomes: Vec<(SlotId, FragmentOutcome)>,
}

impl Receipt {
    /// Returns true if any fragment of the upload was correct.
    pub(super) fn is_useful(&self) -> bool {
        self.outcomes
            .iter()
            .any(|(_, outcome)| matches!(outcome, FragmentOutcome::Committed | FragmentOutcome::Superseded))
    }

    /// Returns how many fragments had this outcome.
    #[must_use]
    pub fn count(&self, outcome: FragmentOutcome) -> usize {
        self.outcomes.iter().filter(|(_, found)| *found == outcome).count()
    }
}

/// An event to log or to show; `Display` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// A lease ended before all of its fragments arrived; its open slots are granted again.
    LeaseExpired {
        /// The worker that held it.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// Number of its open slots.
        slots: u32,
        /// The reason.
        cause: ExpiryCause,
        /// The reason that the worker gave; empty unless it refused.
        reason: String,
    },
    /// A worker cannot run the leases of this run. It gets none, and stays connected.
    WorkerUnable {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        inability: Inability,
    },
    /// No connected worker can run the leases of this run. The run ends unless a worker that can joins soon.
    AllUnable {
        /// Number of connected workers.
        workers: u32,
    },
    /// There are more workers than slots, so some workers get no lease.
    TooFewSlots(TooFewSlots),
    /// An untrusted worker takes part, and fragments of this run cannot be recomputed.
    NotAudited,
    /// A worker made no progress for too long. It gets no lease until it sends a message.
    WorkerHung {
        /// The worker.
        worker: WorkerId,
        /// The duration for which its lease went without progress.
        patience: Micros,
    },
    /// A hung worker has sent a message again.
    WorkerRecovered {
        /// The worker.
        worker: WorkerId,
    },
    /// The slots of an overdue lease were granted a second time.
    LeaseHedged {
        /// The worker of the second lease.
        worker: WorkerId,
        /// The second lease.
        lease: LeaseId,
        /// Number of slots.
        slots: u32,
    },
    /// Fragments were rejected.
    FragmentsRejected {
        /// The worker that sent them.
        worker: WorkerId,
        /// The lease they were sent for.
        lease: LeaseId,
        /// Number of fragments; 0 if they could not be decoded.
        fragments: u32,
        /// The reason.
        reason: RejectReason,
    },
    /// Committed fragments were dropped: their weights became too old before a batch took them.
    FragmentsDropped {
        /// Number of fragments.
        fragments: u32,
        /// The weights that made them too old.
        newest: WeightsVersion,
    },
    /// Two workers made different rows of the same slot, fragment and weights: at least one of them is faulty or malicious.
    /// The first one's rows are committed.
    AuditMismatch {
        /// The slot.
        slot: SlotId,
        /// The fragment.
        fragment: FragmentNo,
        /// The worker that committed first.
        first: WorkerId,
        /// The worker whose fragment differs from it.
        second: WorkerId,
    },
    /// The audit of an untrusted worker's committed fragment failed: its recomputation differs.
    ReplayMismatch {
        /// The worker that made it.
        worker: WorkerId,
        /// The slot.
        slot: SlotId,
        /// The fragment.
        fragment: FragmentNo,
    },
    /// A fragment failed. It is granted again, unless the failure is [fatal](super::LeaseGroup::fatal_failure).
    FragmentFailed {
        /// The worker that reported it.
        worker: WorkerId,
        /// The failure and its place.
        failure: FragmentFailure,
    },
    /// A worker is quarantined: it gets no more leases.
    WorkerQuarantined {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        cause: QuarantineCause,
    },
}

/// The reason why a worker is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineCause {
    /// It contradicted a committed fragment of a trusted worker, or one that an audit has confirmed.
    Audit,
    /// The audit of a fragment of its principal failed.
    Replay,
    /// Three consecutive times it refused its lease or sent something unusable.
    Failures,
}

impl fmt::Display for QuarantineCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Audit => "it contradicted a committed fragment",
            Self::Replay => "a replayed fragment differs from its",
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
            Self::NotAudited => f.write_str(
                "fragments of untrusted workers are not audited in this run, since they cannot be recomputed",
            ),
            Self::TooFewSlots(few) => write!(f, "slots, not workers, are the limit: {few}"),
            Self::WorkerHung { worker, patience } => {
                write!(
                    f,
                    "worker {worker} hangs: no progress for {patience}; it gets no lease until it sends something"
                )
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

//! What a manager says: commands for workers, results for callers, events for people.

use core::fmt;

use crate::{
    ids::{CallId, WorkerId},
    prelude::*,
    time::Micros,
    worker::CommandError,
};

/// A call to be sent to a worker, which answers it with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCommand<R> {
    /// The worker.
    pub worker: WorkerId,
    /// The call.
    pub call: CallId,
    /// What is asked; shared with the others of whom the same is asked.
    pub request: Arc<R>,
}

/// What a worker has answered, or why it has not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias("ResultOrError", "RemoteCallResults"))]
pub struct CallResult<T> {
    /// The worker.
    #[doc(alias = "actor_id")]
    pub worker: WorkerId,
    /// Its answer.
    #[doc(alias = "result_or_error")]
    pub result: Result<T, CallError>,
    /// What the call was marked with.
    pub tag: Option<Arc<str>>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker could not do it, and says why.
    #[error(transparent)]
    Failed(#[from] CommandError),
    /// The worker became unhealthy before it answered.
    #[error("the worker has not answered: {0}")]
    Lost(UnhealthyCause),
    /// The worker has left, and has not come back: nothing was sent.
    #[error("the worker is not there")]
    NotThere,
    /// Too many calls wait for the worker already: nothing was sent.
    #[error("{0} calls wait for the worker already")]
    Busy(usize),
}

impl CallError {
    /// True for an error of what was asked, and false for one of the worker or of the way to it.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// Why a worker is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnhealthyCause {
    /// It is gone.
    Left,
    /// A call took longer than this, the most that any may.
    CallTimeout(Micros),
    /// It made no progress with its lease.
    LeaseExpired,
    /// So many samples in a row have failed.
    SampleFailures(u32),
    /// Somebody said so.
    Marked,
}

impl fmt::Display for UnhealthyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it is gone"),
            Self::CallTimeout(limit) => write!(f, "a call took longer than {limit}"),
            Self::LeaseExpired => f.write_str("its lease expired without progress"),
            Self::SampleFailures(failures) => write!(f, "{failures} samples in a row have failed"),
            Self::Marked => f.write_str("it was marked as unhealthy"),
        }
    }
}

/// Something that a person or a log should know. Its text says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// A worker was healthy, and is not any more.
    WorkerUnhealthy {
        /// The worker.
        worker: WorkerId,
        /// Why.
        cause: UnhealthyCause,
    },
    /// A worker is healthy again.
    WorkerRestored {
        /// The worker.
        worker: WorkerId,
    },
    /// A call for which nobody waits has failed.
    Unheard {
        /// The worker.
        worker: WorkerId,
        /// What it says.
        error: CommandError,
    },
}

impl fmt::Display for CallEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerUnhealthy { worker, cause } => write!(f, "worker {worker} is unhealthy: {cause}"),
            Self::WorkerRestored { worker } => write!(f, "worker {worker} is healthy again"),
            Self::Unheard { worker, error } => {
                write!(f, "a call of worker {worker}, for which nobody waits, has failed: {error}")
            }
        }
    }
}

/// What became of all calls. Each one that began ends in one of five places, or is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounters {
    /// Calls that began.
    pub started: u64,
    /// Answers that somebody waited for, errors among them.
    pub returned: u64,
    /// Calls that ended because their worker became unhealthy; whoever waited has an error.
    pub lost: u64,
    /// Calls that had no answer when the caller's time was up.
    pub timed_out: u64,
    /// Calls that were dropped because their worker was marked as unhealthy, or removed.
    pub dropped: u64,
    /// Calls for which nobody wanted to wait.
    pub forgotten: u64,

    /// Answers for calls that were over; not those for which nobody wanted to wait.
    pub late: u64,
    /// Asynchronous calls that did not begin, because of the limit or since their worker was not there.
    pub not_begun: u64,
    /// How often an unhealthy worker became healthy again.
    pub restarts: u64,
}

impl CallCounters {
    /// Calls that began and are over.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.returned + self.lost + self.timed_out + self.dropped + self.forgotten
    }
}

/// A worker as its manager knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerHealth {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it is healthy.
    pub is_healthy: bool,
    /// False from the moment on at which it left until it comes back.
    pub is_there: bool,
    /// How often it became healthy again.
    pub restarts: u64,
    /// Asynchronous calls that were begun and not fetched.
    pub in_flight: usize,
    /// Calls that it has not answered, those among them for which nobody waits.
    pub waiting: usize,
    /// Samples that have failed since the last one that has not.
    pub sample_failures: u32,
}

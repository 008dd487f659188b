//! Outputs of a call manager: commands for workers, results for callers, events for logs.

use core::fmt;

use crate::{
    ids::{CallId, WorkerId},
    prelude::*,
    time::Micros,
    worker::CommandError,
};

/// A call to send to a worker, which answers with the same [`CallId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCommand<R> {
    /// The worker to call.
    pub worker: WorkerId,
    /// Id of the call.
    pub call: CallId,
    /// The request, shared among the workers that receive the same one.
    pub request: Arc<R>,
}

/// A worker's answer, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias("ResultOrError", "RemoteCallResults"))]
pub struct CallResult<T> {
    /// The worker that was called.
    #[doc(alias = "actor_id")]
    pub worker: WorkerId,
    /// Its answer.
    #[doc(alias = "result_or_error")]
    pub result: Result<T, CallError>,
    /// The tag that the call was given.
    pub tag: Option<Arc<str>>,
}

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The worker failed to do it, for this reason.
    #[error(transparent)]
    Failed(#[from] CommandError),
    /// The worker became unhealthy before it answered.
    #[error("the worker has not answered: {0}")]
    Lost(UnhealthyCause),
    /// The worker is disconnected: nothing was sent.
    #[error("the worker is not there")]
    NotThere,
    /// Too many calls are queued for the worker already: nothing was sent.
    #[error("{0} calls wait for the worker already")]
    Busy(usize),
}

impl CallError {
    /// Returns true for an error of the request itself, false for one of the worker or its connection.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// The reason why a worker is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnhealthyCause {
    /// It disconnected.
    Left,
    /// A call exceeded this timeout.
    CallTimeout(Micros),
    /// Its lease expired without progress.
    LeaseExpired,
    /// This many consecutive samples failed.
    SampleFailures(u32),
    /// The caller marked it as unhealthy.
    Marked,
}

impl fmt::Display for UnhealthyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it has disconnected"),
            Self::CallTimeout(limit) => write!(f, "a call took longer than {limit}"),
            Self::LeaseExpired => f.write_str("its lease expired without progress"),
            Self::SampleFailures(failures) => write!(f, "{failures} samples in a row have failed"),
            Self::Marked => f.write_str("it was marked as unhealthy"),
        }
    }
}

/// An event to log or to show; `Display` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// A healthy worker became unhealthy.
    WorkerUnhealthy {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        cause: UnhealthyCause,
    },
    /// A worker is healthy again.
    WorkerRestored {
        /// The worker.
        worker: WorkerId,
    },
    /// A call without a waiting caller has failed.
    Unheard {
        /// The worker.
        worker: WorkerId,
        /// The worker's error.
        error: CommandError,
    },
}

impl fmt::Display for CallEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerUnhealthy { worker, cause } => write!(f, "worker {worker} is unhealthy: {cause}"),
            Self::WorkerRestored { worker } => write!(f, "worker {worker} is healthy again"),
            Self::Unheard { worker, error } => {
                write!(f, "a call of worker {worker}, for which no caller waits, has failed: {error}")
            }
        }
    }
}

/// Counts how calls ended. Each call that started ends in one of five counters, or is still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounters {
    /// Calls that started.
    pub started: u64,
    /// Answers that a caller waited for, errors included.
    pub returned: u64,
    /// Calls that ended because their worker became unhealthy; callers that waited received an error.
    pub lost: u64,
    /// Calls without an answer when the caller's timeout passed.
    pub timed_out: u64,
    /// Calls dropped because their worker was marked as unhealthy, or removed.
    pub dropped: u64,
    /// Calls whose caller did not wait (timeout 0).
    pub forgotten: u64,

    /// Answers to calls that were over, except those whose caller did not wait.
    pub late: u64,
    /// Asynchronous calls that did not start because of the limit or because their worker was disconnected.
    pub not_begun: u64,
    /// The number of times that an unhealthy worker became healthy again.
    pub restarts: u64,
}

impl CallCounters {
    /// Returns the number of calls that started and have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.returned + self.lost + self.timed_out + self.dropped + self.forgotten
    }
}

/// A worker's health as its manager sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerHealth {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it is healthy.
    pub is_healthy: bool,
    /// False while it is disconnected.
    pub is_there: bool,
    /// The number of times that it became healthy again.
    pub restarts: u64,
    /// Asynchronous calls that started and were not fetched.
    pub in_flight: usize,
    /// Unanswered calls, those without a waiting caller included.
    pub waiting: usize,
    /// Failed samples since the last successful one.
    pub sample_failures: u32,
}

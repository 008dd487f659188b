//! Errors of an evaluation worker.

use core::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The reason why there is no evaluation. Has the same text in every process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EvalWorkerError {
    /// The worker could not be set up.
    #[error("the evaluation worker cannot begin: its {part} failed: {reason}")]
    Setup {
        /// `init function`, `environment`, `policy` or `process`.
        part: String,
        /// The part's error.
        reason: String,
    },
    /// The environment, the policy or the request failed. The next evaluation has new ones.
    #[error("the evaluation failed: {0}")]
    Failed(String),
    /// The policy rejects the weights. The previous ones apply again.
    #[error("the policy does not take the weights: {0}")]
    Weights(String),
    /// There was no progress until the deadline. The process was killed, or the thread abandoned; the next evaluation has
    /// another.
    #[error("the evaluation was given up: nothing has moved for {limit_ms} ms while it was {doing}")]
    Overdue {
        /// The worker's activity.
        doing: String,
        /// The deadline in milliseconds.
        limit_ms: u64,
    },
    /// Its process ended during the evaluation. The next evaluation has another.
    #[error("the evaluation's process ended: {0}")]
    Ended(String),
    /// Too many evaluations are pending.
    #[error("{max} evaluations wait already: poll for their results first", max = EvalWorkerError::MAX_PENDING)]
    QueueFull,
    /// There is no such worker, or it has ended.
    #[error("there is no evaluation worker '{name}' in {place}")]
    UnknownName {
        /// The name.
        name: String,
        /// The place of the look-up: a directory of names, or a hub.
        place: String,
    },
    /// A worker of this name exists already.
    #[error(
        "there is an evaluation worker '{0}' already: ask it (EvalWorker::from_name, `rollmesh evaluator ask`), or end its process first"
    )]
    NameTaken(String),
    /// The name is invalid.
    #[error("'{0}' cannot be the name of an evaluation worker: take up to 64 of a-z, A-Z, 0-9, '_', '-' and '.'")]
    BadName(String),
    /// A system call failed.
    #[error("the evaluation worker cannot be reached: {0}")]
    Io(String),
    /// The worker was stopped.
    #[error("the evaluation worker has been shut down")]
    Stopped,
}

impl EvalWorkerError {
    /// Most pending evaluations of one handle, those not yet polled included.
    pub const MAX_PENDING: usize = 64;

    /// Creates a [`Setup`](Self::Setup) error of a part.
    #[must_use]
    pub fn setup(part: &str, reason: impl Display) -> Self {
        Self::Setup { part: part.into(), reason: reason.to_string() }
    }

    /// Creates a [`Failed`](Self::Failed) error.
    #[must_use]
    pub fn failed(reason: impl Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// Creates an [`Io`](Self::Io) error.
    #[must_use]
    pub fn io(reason: impl Display) -> Self {
        Self::Io(reason.to_string())
    }
}

/// Most characters of a worker's name.
const MAX_NAME: usize = 64;

/// Checks that a name can be part of a file name on every system, and cannot refer to another file.
///
/// # Errors
/// [`EvalWorkerError::BadName`].
pub fn check_name(name: &str) -> Result<(), EvalWorkerError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(EvalWorkerError::BadName(name.chars().take(MAX_NAME).collect()));
    }
    Ok(())
}

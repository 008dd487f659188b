//! What an evaluation worker says when it cannot.

use core::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Why there is no evaluation. Says the same in whatever process it is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalWorkerError {
    /// The worker did not get so far as to evaluate.
    #[error("the evaluation worker cannot begin: its {part} failed: {reason}")]
    Setup {
        /// `init function`, `environment`, `policy` or `process`.
        part: String,
        /// What it says.
        reason: String,
    },
    /// The environment, the policy or the request is wrong. The next evaluation has others.
    #[error("the evaluation failed: {0}")]
    Failed(String),
    /// The policy does not take the weights. Those before them count again.
    #[error("the policy does not take the weights: {0}")]
    Weights(String),
    /// Nothing has moved for too long. The process was killed, or the thread left alone; the next evaluation has another.
    #[error("the evaluation was given up: nothing has moved for {limit_ms} ms while it was {doing}")]
    Overdue {
        /// What it was about.
        doing: String,
        /// How long it had.
        limit_ms: u64,
    },
    /// Its process ended in the middle. The next evaluation has another.
    #[error("the evaluation's process ended: {0}")]
    Ended(String),
    /// Too much was asked for in advance.
    #[error("{max} evaluations wait already: poll for their results first", max = EvalWorkerError::MAX_PENDING)]
    QueueFull,
    /// There is no such worker, or it has ended.
    #[error("there is no evaluation worker '{name}' in {place}")]
    UnknownName {
        /// The name.
        name: String,
        /// Where it was looked for: a directory of names, or a hub.
        place: String,
    },
    /// There is such a worker already.
    #[error("there is an evaluation worker '{0}' already: use EvalWorker::from_name, or shut it down first")]
    NameTaken(String),
    /// No worker can have that name.
    #[error("'{0}' cannot be the name of an evaluation worker: take up to 64 of a-z, A-Z, 0-9, '_', '-' and '.'")]
    BadName(String),
    /// The system says no.
    #[error("the evaluation worker cannot be reached: {0}")]
    Io(String),
    /// It was shut down.
    #[error("the evaluation worker has been shut down")]
    Stopped,
}

impl EvalWorkerError {
    /// The most evaluations of one handle that wait or were not polled.
    pub const MAX_PENDING: usize = 64;

    /// [`Setup`](Self::Setup) of a part.
    #[must_use]
    pub fn setup(part: &str, reason: impl Display) -> Self {
        Self::Setup { part: part.into(), reason: reason.to_string() }
    }

    /// [`Failed`](Self::Failed).
    #[must_use]
    pub fn failed(reason: impl Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// [`Io`](Self::Io).
    #[must_use]
    pub fn io(reason: impl Display) -> Self {
        Self::Io(reason.to_string())
    }
}

/// The most characters of a worker's name.
const MAX_NAME: usize = 64;

/// What can be part of a file's name on every system, and is no other file.
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

//! Errors of commands.

use serde::{Deserialize, Serialize};

use crate::{
    prelude::*,
    worker::{RolloutError, SetupError},
};

/// The reason why a worker could not execute a command, in a serialisable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// The kind of error.
    pub kind: CommandErrorKind,
    /// The original error's text, or its beginning.
    pub message: String,
}

/// The kind of an error. The order is part of the wire format: new kinds come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CommandErrorKind {
    /// No worker has been set up, or it could not be.
    NotSetUp,
    /// The worker, or a policy to be added, cannot be created.
    Setup,
    /// The worker was stopped.
    Stopped,
    /// No function, environment or class is registered under this name.
    UnknownName,
    /// There is no such policy, there is one already, or it failed.
    Policy,
    /// Sampling failed.
    Sample,
    /// Rows could not be joined.
    Batch,
    /// Filters do not fit.
    Filter,
    /// The state is damaged or does not fit.
    State,
    /// The user's code failed, in a function or in callbacks.
    Function,
    /// Learning failed.
    Learn,
    /// The worker is locked already, or is not locked.
    Lock,
    /// The machine's facts are unknown.
    Host,
    /// A part of the worker is missing.
    Unhealthy,
    /// The bytes are not a command, an answer, or settings.
    Malformed,
    /// The answer exceeds the message limit.
    TooLarge,
    /// The user's code panicked.
    Panicked,
    /// Too many calls are queued.
    Busy,
    /// The hub has cancelled the call.
    Cancelled,
}

impl CommandError {
    /// Longest message that is kept, in characters.
    pub const MAX_CHARS: usize = 4_096;

    /// Creates an error; truncates a long message.
    #[must_use]
    pub fn new(kind: CommandErrorKind, message: impl AsRef<str>) -> Self {
        Self { kind, message: message.as_ref().chars().take(Self::MAX_CHARS).collect() }
    }

    pub(super) fn malformed(what: &str, why: impl core::fmt::Display) -> Self {
        Self::new(CommandErrorKind::Malformed, format!("{what}: {why}"))
    }
}

impl From<SetupError> for CommandError {
    fn from(error: SetupError) -> Self {
        let kind = match &error {
            SetupError::Unknown(_) | SetupError::PolicyKind { .. } => CommandErrorKind::UnknownName,
            SetupError::Callback(_) => CommandErrorKind::Function,
            _ => CommandErrorKind::Setup,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<RolloutError> for CommandError {
    fn from(error: RolloutError) -> Self {
        use CommandErrorKind as Kind;
        let kind = match error {
            RolloutError::Setup(error) => return error.into(),
            RolloutError::Stopped => Kind::Stopped,
            RolloutError::NoInput
            | RolloutError::NoFragments
            | RolloutError::HasBegun { .. }
            | RolloutError::EmptyInput(_)
            | RolloutError::Sample(_)
            | RolloutError::Estimate(_)
            | RolloutError::Judge(_)
            | RolloutError::NoEstimate(_)
            | RolloutError::BadSlice => Kind::Sample,
            RolloutError::Policy { .. }
            | RolloutError::PolicyMap(_)
            | RolloutError::LastPolicy(_)
            | RolloutError::FixedMapping => Kind::Policy,
            RolloutError::Batch(_) => Kind::Batch,
            RolloutError::Callback(_) => Kind::Function,
            RolloutError::Unknown(_) => Kind::UnknownName,
            RolloutError::Count { .. }
            | RolloutError::DataParallel(_)
            | RolloutError::AllReduce(_)
            | RolloutError::NotJoined(_) => Kind::Learn,
            RolloutError::MissingFilter(_) | RolloutError::Filter { .. } => Kind::Filter,
            RolloutError::State(_) => Kind::State,
            RolloutError::Locked | RolloutError::NotLocked => Kind::Lock,
            RolloutError::UnknownHost(_) => Kind::Host,
            RolloutError::Unhealthy(_) => Kind::Unhealthy,
        };
        Self::new(kind, error.to_string())
    }
}

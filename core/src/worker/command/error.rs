//! Why a worker could not do what it was asked.

use serde::{Deserialize, Serialize};

use crate::{
    prelude::*,
    worker::{RolloutError, SetupError},
};

/// Why a worker could not do what it was asked, in a form that can travel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// Why, for programs.
    pub kind: CommandErrorKind,
    /// Why, for people: the original error's text, or its beginning.
    pub message: String,
}

/// What kind of error it is. The order is on the wire: new ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandErrorKind {
    /// No worker has been set up, or it could not be.
    NotSetUp,
    /// The worker, or a policy that was to be added, cannot be made.
    Setup,
    /// The worker was stopped.
    Stopped,
    /// Nobody has registered this name.
    UnknownName,
    /// There is no such policy, there is one already, or it fails.
    Policy,
    /// Sampling failed.
    Sample,
    /// Rows could not be put together.
    Batch,
    /// Filters do not fit.
    Filter,
    /// The state is damaged or does not fit.
    State,
    /// The user's code failed, in a function or in callbacks.
    Function,
    /// Learning failed.
    Learn,
    /// It is locked, or not.
    Lock,
    /// The machine is not known.
    Host,
    /// A part of the worker is missing.
    Unhealthy,
    /// The bytes are no command, no answer, or no setting.
    Malformed,
    /// The answer is larger than what can be sent.
    TooLarge,
    /// The user's code panicked.
    Panicked,
    /// Too many calls wait.
    Busy,
    /// The hub has cancelled the call.
    Cancelled,
}

impl CommandError {
    /// The longest text that is kept, in characters.
    pub const MAX_CHARS: usize = 4_096;

    /// An error; of a long text the beginning is kept.
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

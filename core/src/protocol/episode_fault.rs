//! Errors in answer to a client's message about an episode, and the reply that reports them.

use super::{EpisodeCode, Kind, Message, convert::AgentRowsError, message::EpisodeReply};
use crate::{env::external::ExternalError, prelude::*};

/// The reason why a message could not be handled.
pub(super) struct EpisodeRefusal {
    pub(super) code: EpisodeCode,
    pub(super) reason: String,
}

impl EpisodeRefusal {
    /// Converts an error, naming the episode by the client's number.
    pub(super) fn of(number: u32, error: ExternalError) -> Self {
        let error = renumbered(error, u64::from(number));
        let code = match error {
            ExternalError::UnknownEpisode(_) | ExternalError::FinishedEpisode(_) => EpisodeCode::NotOpen,
            ExternalError::LostEpisode(_) => EpisodeCode::Lost,
            ExternalError::DuplicateEpisode(_) => EpisodeCode::AlreadyOpen,
            ExternalError::BadReward { .. } | ExternalError::UnknownAgent { .. } | ExternalError::NoObservation(_) => {
                EpisodeCode::BadRows
            }
            ExternalError::BadObservation { .. } => EpisodeCode::BadObservation,
            ExternalError::BadAction { .. } => EpisodeCode::BadAction,
            ExternalError::TooManyEpisodes(_) | ExternalError::QueueFull { .. } => EpisodeCode::TooMany,
            ExternalError::AwaitsActions(_)
            | ExternalError::NothingAsked(_)
            | ExternalError::EarlyReturns(_)
            | ExternalError::AgentDone { .. } => EpisodeCode::OutOfTurn,
            ExternalError::Stopped => EpisodeCode::Stopped,
        };
        Self { code, reason: error.to_string() }
    }

    /// Returns true if the episode is over, so the client cannot continue it.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.code, EpisodeCode::NotOpen | EpisodeCode::Lost | EpisodeCode::Stopped)
    }
}

impl From<AgentRowsError> for EpisodeRefusal {
    fn from(error: AgentRowsError) -> Self {
        Self { code: EpisodeCode::BadRows, reason: error.to_string() }
    }
}

/// Builds the reply about a client's message.
pub(super) fn reply(episode: u32, about: Kind, done: Result<(), EpisodeRefusal>) -> Message {
    let (code, reason) = match done {
        Ok(()) => (EpisodeCode::Done, String::new()),
        // Far below the limit of the message.
        Err(EpisodeRefusal { code, reason }) => (code, reason.chars().take(512).collect()),
    };
    Message::EpisodeReply(EpisodeReply { episode, about: about.to_wire(), code: code.to_wire(), reason })
}

/// Returns the error with another number for the episode.
fn renumbered(mut error: ExternalError, number: u64) -> ExternalError {
    use ExternalError as E;
    match &mut error {
        E::UnknownEpisode(id)
        | E::FinishedEpisode(id)
        | E::LostEpisode(id)
        | E::DuplicateEpisode(id)
        | E::AwaitsActions(id)
        | E::NothingAsked(id)
        | E::NoObservation(id)
        | E::EarlyReturns(id)
        | E::QueueFull { id, .. }
        | E::UnknownAgent { id, .. }
        | E::AgentDone { id, .. }
        | E::BadObservation { id, .. }
        | E::BadAction { id, .. }
        | E::BadReward { id, .. } => *id = number,
        E::TooManyEpisodes(_) | E::Stopped => {}
    }
    error
}

//! Errors of controlling a hub.

use std::time::Duration;

use rollmesh_core::protocol::Role;

use super::{HubUrl, HubUrlError, TokenError};

/// An error of a request to a hub, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The address is invalid.
    #[error(transparent)]
    Url(#[from] HubUrlError),
    /// The token cannot be read.
    #[error(transparent)]
    NoToken(#[from] TokenError),
    /// There is no answer from the hub.
    #[error("cannot reach a hub at {hub}: {reason}; is it running, and is --hub the address that it prints?")]
    Unreachable {
        /// The hub's address.
        hub: HubUrl,
        /// The operating system's error.
        reason: String,
    },
    /// The hub does not accept the token, or not for this role.
    #[error(
        "the hub refused the token for the role {role}; hubs print {an} {role}'s token when they start, in the \
         dashboard's address behind #token=",
        role = .0.name(),
        an = if *.0 == Role::Operator { "an" } else { "a" }
    )]
    Token(Role),
    /// The hub refused for another reason.
    #[error("the hub refused: {0}")]
    Refused(String),
    /// The hub declined the request with this reason.
    #[error("{0}")]
    Declined(String),
    /// The timeout is over.
    #[error("{what}: not within {} s; it may still happen", patience.as_secs_f32())]
    TooLate {
        /// The expected event.
        what: String,
        /// The timeout.
        patience: Duration,
    },
    /// The hub has disconnected.
    #[error("the hub has left: {0}")]
    Left(String),
    /// The hub sent a message that this version cannot decode.
    #[error("the hub sent something that this program cannot read ({0}); run the same version on both sides")]
    Unreadable(String),
}

impl ControlError {
    /// Returns whether the user can fix it with other arguments.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Url(_) | Self::NoToken(_) | Self::Token(_))
    }
}

//! The end of a connection and its reason.

use std::time::Duration;

use rollmesh_core::protocol::{InboxError, Kind, message::Goodbye, printable};
use tokio_tungstenite::tungstenite::{self, error::ProtocolError};

/// Time for sending a disconnected peer the reason.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// The same for a peer whose token is no longer valid: it has to be disconnected within a second.
const EXPULSION: Duration = Duration::from_millis(300);

/// The end of a connection and its reason.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) reason: String,
    /// True if the peer broke the rules or the connection failed.
    pub(super) is_fault: bool,
    /// The kind of the message that the peer's role does not allow, if that was the reason.
    pub(super) denied: Option<Kind>,
    /// True if the peer should not reconnect, which its close code says.
    pub(super) is_final: bool,
    /// The time for sending the reason.
    pub(super) last_words: Duration,
}

impl Departure {
    /// Returns the departure of a peer that broke the rules.
    pub(super) fn fault(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { reason, is_fault: true, denied: None, is_final: true, last_words: LAST_WORDS }
    }

    /// Returns the departure of a peer whose connection was lost; it may reconnect.
    pub(super) fn lost(reason: impl ToString) -> Self {
        Self { is_final: false, ..Self::fault(reason) }
    }

    /// Returns the departure of a peer that was asked to leave, or that leaves of its own accord.
    pub(super) fn wished(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { reason, is_fault: false, denied: None, is_final: false, last_words: LAST_WORDS }
    }

    /// Returns the departure of a peer that the hub expels immediately.
    pub(super) fn expelled(reason: &str) -> Self {
        Self { is_final: false, last_words: EXPULSION, ..Self::fault(reason) }
    }
}

impl From<InboxError> for Departure {
    fn from(error: InboxError) -> Self {
        let denied = match error {
            InboxError::NotAllowed { kind, .. } => Some(kind),
            _ => None,
        };
        Self { denied, ..Self::fault(error) }
    }
}

/// Returns whether an error of a peer's socket is the peer's fault and not the network's.
pub(super) fn is_offence(error: &tungstenite::Error) -> bool {
    match error {
        tungstenite::Error::Protocol(error) => !matches!(error, ProtocolError::ResetWithoutClosingHandshake),
        tungstenite::Error::Capacity(_) | tungstenite::Error::Utf8(_) => true,
        _ => false,
    }
}

/// Returns the departure for a peer's goodbye.
pub(super) fn wish(goodbye: &Goodbye) -> Departure {
    Departure::wished(printable(&goodbye.reason))
}

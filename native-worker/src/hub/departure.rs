//! Why a connection is over.

use std::time::Duration;

use rollmesh_core::protocol::{InboxError, Kind, message::Goodbye, printable};
use tokio_tungstenite::tungstenite::{self, error::ProtocolError};

/// A peer that is sent away has this time to hear why.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// One whose token is no longer valid has less: it is gone within a second.
const EXPULSION: Duration = Duration::from_millis(300);

/// Why a connection is over.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) reason: String,
    /// The peer broke the rules, or the connection broke.
    pub(super) is_fault: bool,
    /// What the peer said that its role does not allow.
    pub(super) denied: Option<Kind>,
    /// The peer is not to come back: it is told so.
    pub(super) is_final: bool,
    /// How long it may take to tell.
    pub(super) last_words: Duration,
}

impl Departure {
    /// The peer broke the rules.
    pub(super) fn fault(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { reason, is_fault: true, denied: None, is_final: true, last_words: LAST_WORDS }
    }

    /// The connection is lost; the peer may connect again.
    pub(super) fn lost(reason: impl ToString) -> Self {
        Self { is_final: false, ..Self::fault(reason) }
    }

    /// Somebody wished so.
    pub(super) fn wished(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { reason, is_fault: false, denied: None, is_final: false, last_words: LAST_WORDS }
    }

    /// The hub wants the peer to be gone now.
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

/// Whether the peer, and not the way to it, is to blame for an error of its socket.
pub(super) fn is_offence(error: &tungstenite::Error) -> bool {
    match error {
        tungstenite::Error::Protocol(error) => !matches!(error, ProtocolError::ResetWithoutClosingHandshake),
        tungstenite::Error::Capacity(_) | tungstenite::Error::Utf8(_) => true,
        _ => false,
    }
}

/// The peer goes by itself.
pub(super) fn wish(goodbye: &Goodbye) -> Departure {
    Departure::wished(printable(&goodbye.reason))
}

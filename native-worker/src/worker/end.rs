//! The end of a worker.

use rollmesh_core::protocol::{ConnectionEnd, RefusalCode};

use crate::net::PeerEnd;

/// The reason that a worker gives when it was asked to leave.
pub(super) const ASKED_TO_LEAVE: &str = "it was asked to leave";

/// The kind and the reason of a worker's end.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    pub(crate) kind: EndKind,
    pub(crate) reason: String,
}

/// The kind of a worker's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// The hub refuses it permanently.
    Refused,
    /// The hub's identity could not be verified, so no token was sent.
    Untrusted,
    /// The session was closed on purpose.
    Closed,
    /// Another worker evaluates under this name.
    NameTaken,
    /// It cannot begin to work.
    Failed,
}

impl EndKind {
    pub(super) fn because(self, reason: impl Into<String>) -> WorkerEnd {
        WorkerEnd { kind: self, reason: reason.into() }
    }
}

impl From<PeerEnd> for WorkerEnd {
    fn from(end: PeerEnd) -> Self {
        match end {
            PeerEnd::Asked => EndKind::Closed.because(ASKED_TO_LEAVE),
            PeerEnd::Untrusted(reason) => EndKind::Untrusted.because(reason),
            PeerEnd::Over(ConnectionEnd::Refused { code: Some(RefusalCode::NameTaken), reason }) => {
                EndKind::NameTaken.because(reason)
            }
            PeerEnd::Over(ConnectionEnd::Refused { code: Some(RefusalCode::Token), reason }) => {
                let advice = "a hub that was restarted may have new tokens: take the one that it prints";
                EndKind::Refused.because(format!("{reason}; {advice}"))
            }
            PeerEnd::Over(ConnectionEnd::Refused { reason, .. }) => EndKind::Refused.because(reason),
            PeerEnd::Over(ConnectionEnd::Closed { reason } | ConnectionEnd::Violated { reason }) => {
                EndKind::Closed.because(reason)
            }
        }
    }
}

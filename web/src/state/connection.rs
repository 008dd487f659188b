//! The page's connection to the hub.

/// State of the connection to the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The page has no token, so it does not try to connect.
    #[default]
    NoToken,
    /// The socket is being opened, or the hub has not answered yet.
    Connecting {
        /// Failed attempts before this one.
        attempt: u32,
    },
    /// The hub has accepted the page.
    Online {
        /// The hub's name and version.
        server: String,
    },
    /// The hub is unreachable; the page retries by itself.
    Waiting {
        /// Failed attempts so far.
        attempt: u32,
    },
    /// The hub has refused the page; a retry would not help.
    Refused {
        /// The reason and the remedy.
        reason: String,
    },
}

impl Connection {
    /// Returns the number of consecutive failed attempts.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Connecting { attempt } | Self::Waiting { attempt } => *attempt,
            Self::NoToken | Self::Online { .. } | Self::Refused { .. } => 0,
        }
    }
}

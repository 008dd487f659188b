//! The connection to the hub, as people see it.

/// How the page stands with the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// There is no token, so there is no point in trying.
    #[default]
    NoToken,
    /// The socket is being opened, or the hub has not answered yet.
    Connecting {
        /// Tries before this one that failed.
        attempt: u32,
    },
    /// The hub has accepted the page.
    Online {
        /// The hub's name and version.
        server: String,
    },
    /// The hub is not in reach; the page tries again by itself.
    Waiting {
        /// Tries so far that failed.
        attempt: u32,
    },
    /// The hub does not accept the page; trying again would not help.
    Refused {
        /// What is wrong and what to do about it.
        reason: String,
    },
}

impl Connection {
    /// Failed tries in a row.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Connecting { attempt } | Self::Waiting { attempt } => *attempt,
            Self::NoToken | Self::Online { .. } | Self::Refused { .. } => 0,
        }
    }
}

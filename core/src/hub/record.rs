//! The records of a hub's audit log: which peers connected, as what, what they were refused, and what operators changed.
//! They never hold a token, nor anything else that peers send beyond their printable names.

use core::net::SocketAddr;

use serde::{Serialize, Serializer};

use crate::{
    group::Ledger,
    prelude::*,
    protocol::{Kind, Role, TokenId},
};

/// A record of the audit log. Its names are those of the log.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    Started {
        address: SocketAddr,
        encrypted: bool,
    },
    Stopped,
    /// A peer opened a connection.
    Connected {
        from: SocketAddr,
    },
    /// A peer was admitted.
    Admitted {
        from: SocketAddr,
        peer: u32,
        #[serde(serialize_with = "debug")]
        role: Role,
        #[serde(serialize_with = "display")]
        token: TokenId,
        kind: String,
        name: String,
    },
    /// A peer presented the token that replaces its own.
    Renewed {
        peer: u32,
        #[serde(serialize_with = "display")]
        token: TokenId,
    },
    /// A peer was refused.
    Refused {
        from: SocketAddr,
        why: &'static str,
    },
    /// A request was not meant for this hub, or came from a foreign page.
    Foreign {
        from: SocketAddr,
    },
    /// A TLS handshake failed, for example since a peer has no certificate where the hub asks for one.
    NoTls {
        from: SocketAddr,
        why: String,
    },
    /// A limit was reached.
    Limit {
        from: SocketAddr,
        what: &'static str,
    },
    /// A peer sent a message that its role does not allow.
    Denied {
        peer: u32,
        #[serde(serialize_with = "debug")]
        role: Role,
        #[serde(serialize_with = "debug")]
        kind: Kind,
    },
    Left {
        peer: u32,
        #[serde(serialize_with = "debug")]
        role: Role,
        /// The fault, if there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
    },
    /// A spare local worker was started; it takes the place of the next local worker that ends.
    Spare {
        number: u32,
    },
    /// A local worker ended and another one took its place; both by number.
    Replaced {
        ended: u32,
        by: u32,
    },
    LeaseGranted {
        worker: u32,
        lease: u64,
        slots: usize,
    },
    LeaseRevoked {
        worker: u32,
        lease: u64,
    },
    LeaseRefused {
        worker: u32,
        lease: u64,
    },
    /// The hub accepted something of a worker for the first time.
    Delivered {
        worker: u32,
        /// Since the worker was admitted.
        after_ms: u64,
    },
    UploadRejected {
        worker: u32,
        lease: u64,
        why: String,
    },
    /// An event of the lease group: expiry, rejection, quarantine.
    Group {
        text: String,
        /// True if a worker can cause this event as often as it likes.
        #[serde(skip)]
        is_cheap: bool,
    },
    RunStarted {
        run: u32,
        env: String,
    },
    RunEnded {
        run: u32,
    },
    /// The run's ledger does not balance: env steps were lost or counted twice.
    LedgerUnbalanced {
        run: u32,
        ledger: Box<Ledger>,
    },
    /// An operator sent a command.
    Command {
        peer: u32,
        #[serde(serialize_with = "debug")]
        kind: Kind,
        done: bool,
    },
    TokenMade {
        #[serde(serialize_with = "display")]
        token: TokenId,
        #[serde(serialize_with = "debug")]
        role: Role,
        #[serde(skip_serializing_if = "Option::is_none")]
        expires: Option<u64>,
    },
    TokenRevoked {
        #[serde(serialize_with = "display")]
        token: TokenId,
    },
    /// Number of records that were dropped because their causer exceeded its budget.
    LeftOut {
        records: u32,
        of: Causer,
    },
}

/// Causers that can produce records without limit. Each has its own budget, so that none can hide what others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Causer {
    /// Unauthenticated peers.
    Strangers,
    /// Authenticated peers of any role that break the rules.
    Peers,
    /// Viewers that connect and disconnect; the other roles likewise.
    Viewers,
    Operators,
    Workers,
    Clients,
    Launchers,
    Relays,
}

impl From<Role> for Causer {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewers,
            Role::Operator => Self::Operators,
            Role::Worker => Self::Workers,
            Role::Client => Self::Clients,
            Role::Launcher => Self::Launchers,
            Role::Relay => Self::Relays,
        }
    }
}

impl Record {
    /// Returns the group that can cause the record without limit, if any.
    pub fn causer(&self) -> Option<Causer> {
        match self {
            Self::Connected { .. }
            | Self::Refused { .. }
            | Self::Foreign { .. }
            | Self::NoTls { .. }
            | Self::Limit { .. } => Some(Causer::Strangers),
            Self::LeaseRefused { .. } | Self::UploadRejected { .. } | Self::Group { is_cheap: true, .. } => {
                Some(Causer::Peers)
            }
            Self::Admitted { role, .. } | Self::Left { role, .. } => Some((*role).into()),
            Self::Delivered { .. } => Some(Causer::Workers),
            Self::Renewed { .. } => Some(Causer::Peers),
            _ => None,
        }
    }

    /// Returns whether the record is about a lease, and belongs to the log of leases.
    pub fn is_of_leases(&self) -> bool {
        matches!(
            self,
            Self::LeaseGranted { .. }
                | Self::LeaseRevoked { .. }
                | Self::LeaseRefused { .. }
                | Self::UploadRejected { .. }
                | Self::Group { .. }
        )
    }
}

fn debug<T: core::fmt::Debug, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

fn display<T: core::fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

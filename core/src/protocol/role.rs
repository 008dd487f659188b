//! Roles and the messages that each may send and receive.

use super::{DASHBOARD_FRAME_BYTES, Kind, MAX_FRAME_BYTES, wire_enum::wire_enum};

wire_enum! {
    /// Role of a peer, which follows from its token.
    "role" pub Role {
        /// Sees everything, but may not change anything.
        Viewer = 1,
        /// Sees everything and controls the run.
        Operator = 2,
        /// Executes leases.
        Worker = 3,
        /// Drives its own episodes, and sees nothing else.
        Client = 4,
        // 5 belonged to evaluators.
        /// Starts and ends workers elsewhere on the hub's behalf, and sees nothing else.
        Launcher = 6,
        /// Passes weights on to workers, and sees nothing else.
        Relay = 7,
    }
}

impl Role {
    /// Returns its name on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Worker => "worker",
            Self::Client => "client",
            Self::Launcher => "launcher",
            Self::Relay => "relay",
        }
    }

    /// Returns whether a token of this role admits its holder as `asked`. An operator's token also admits a viewer.
    #[must_use]
    pub const fn may_act_as(self, asked: Self) -> bool {
        self as u8 == asked as u8 || matches!((self, asked), (Self::Operator, Self::Viewer))
    }

    /// Returns the longest frame that the hub buffers from a peer of this role.
    #[must_use]
    pub const fn frame_cap(self) -> u32 {
        match self {
            Self::Viewer | Self::Operator | Self::Launcher | Self::Relay => DASHBOARD_FRAME_BYTES,
            Self::Worker | Self::Client => MAX_FRAME_BYTES,
        }
    }
}

/// Returns whether the hub accepts a message of this kind from a peer of this role.
///
/// Applies after the handshake. `Hello` is never allowed then: it is the first message, before there is a role, and only the
/// first. Only workers send messages in `Chunk`s, and only workers and relays receive them; the kind inside the chunks must
/// be allowed as well.
#[must_use]
pub const fn allow(role: Role, kind: Kind) -> bool {
    kind.route().0 & bit(role) != 0
}

/// Returns whether a peer of this role accepts a message of this kind from the hub.
#[must_use]
pub const fn expect(role: Role, kind: Kind) -> bool {
    kind.route().1 & bit(role) != 0
}

/// A set of roles: bit `n` for the role whose wire form is `n`.
pub(super) type Roles = u8;

pub(super) const NONE: Roles = 0;
pub(super) const OPERATOR: Roles = bit(Role::Operator);
pub(super) const DASHBOARDS: Roles = OPERATOR | bit(Role::Viewer);
pub(super) const WORKER: Roles = bit(Role::Worker);
pub(super) const CLIENT: Roles = bit(Role::Client);
pub(super) const LAUNCHER: Roles = bit(Role::Launcher);
pub(super) const RELAY: Roles = bit(Role::Relay);
/// Those that get weights.
pub(super) const ACTORS: Roles = WORKER | RELAY;
pub(super) const ALL: Roles = DASHBOARDS | ACTORS | CLIENT | LAUNCHER;

const fn bit(role: Role) -> Roles {
    1 << role as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    // The roles of every kind are compared with the table of PROTOCOL.md, in the golden tests of the wire.
    #[test]
    fn only_peers_that_exchange_large_messages_exchange_chunks() {
        for &role in Role::ALL {
            let splits =
                |may: fn(Role, Kind) -> bool| Kind::ALL.iter().any(|&kind| kind.may_be_split() && may(role, kind));
            assert_eq!(allow(role, Kind::Chunk), splits(allow), "{role:?}");
            assert_eq!(expect(role, Kind::Chunk), splits(expect), "{role:?}");
            assert_eq!(allow(role, Kind::Credit), splits(expect), "{role:?}");
        }
    }
}

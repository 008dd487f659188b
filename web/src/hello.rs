//! How the page introduces itself.

use rollmesh_core::protocol::{PROTOCOL_MAX, PROTOCOL_MIN, Role, Token, message::Hello};

/// The first message to the hub.
pub(crate) fn hello(token: Token) -> Hello {
    Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        role: Role::Operator.to_wire(),
        token,
        capabilities: 0,
        resume_id: [0; 16],
        core_fingerprint: [0; 16],
        kind: "dashboard".into(),
        name: "dashboard".into(),
        device: "browser".into(),
    }
}

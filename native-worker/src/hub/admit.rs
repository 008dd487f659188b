//! Admits peers.

use rollmesh_core::{
    hub::{Arrival, LauncherKey, PeerEnd},
    protocol::{
        RefusalCode, Role,
        handshake::{busy, no_token},
    },
};

use super::{
    actor::Actor,
    peer::{Admission, HandshakeRequest},
};

impl Actor {
    pub(super) fn answer(&mut self, HandshakeRequest { from, hello, is_of_page, link, answer }: HandshakeRequest) {
        let mut checked = self.hub.check(&hello);
        if checked.as_ref().is_err_and(|refused| refused.code == RefusalCode::Token.to_wire()) {
            self.follow_tokens();
            checked = self.hub.check(&hello);
        }
        let accepted = checked.and_then(|accepted| match accepted.role {
            // A page could claim to be of another kind than a browser's.
            Role::Relay if is_of_page => Err(no_token()),
            // Another process cannot use the token.
            Role::Worker if !self.launchers.with(|launchers| launchers.may_join(accepted.token, accepted.resume)) => {
                Err(no_token())
            }
            Role::Launcher if self.launchers.with(|launchers| launchers.is_present(&LauncherKey::of(&accepted))) => {
                Err(busy("a launcher with this token and name is connected; give this one another --name"))
            }
            _ => Ok(accepted),
        });
        if let Err(refused) = &accepted {
            self.hub.handle_refused(from, refused);
        }
        let admitted = accepted.map(|accepted| {
            let (role, token, child) = (accepted.role, accepted.token, accepted.child);
            let session = accepted.resume.unwrap_or_else(random_id);
            if self.launchers.with(|launchers| launchers.handle_joined(token, session)) {
                self.hub.tokens.keep(token);
            }
            let launcher = self.launchers.with(|launchers| launchers.name(token)).unwrap_or_default();
            let is_spare = child.is_some_and(|child| self.children.local.is_spare(child));
            // A new dashboard is sent a snapshot.
            self.show_called();
            let peer = self.hub.admit(accepted, Arrival { from, link, session, launcher, is_spare });
            child.into_iter().for_each(|child| self.children.is_connected_as(child, peer));
            Admission { peer, role }
        });
        // A peer that has disconnected meanwhile is removed as soon as its task notices; without a task, remove it here.
        if let Err(Ok(Admission { peer, .. })) = answer.send(admitted) {
            self.hub.handle_left(peer, PeerEnd { reason: "its connection is closed", is_fault: true, denied: None });
        }
    }

    /// Expels peers whose token has been revoked, also in the token file, or has expired.
    pub(super) fn expel_invalid(&mut self) {
        self.follow_tokens();
        self.hub.expel_invalid();
    }

    /// Reads the token file if it has changed. A peer may present a new token before the next tick.
    pub(super) fn follow_tokens(&mut self) {
        if let Err(error) = self.tokens.follow(&mut self.hub.tokens) {
            self.hub.notice(2, error.to_string());
        }
    }
}

/// Returns a random id for a session: a secret of the peer, with which a launcher takes its workers along to another token.
/// Without randomness it is all zeros, which resumes nothing.
pub(super) fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    if getrandom::fill(&mut id).is_err() {
        id = [0; 16];
    }
    id
}

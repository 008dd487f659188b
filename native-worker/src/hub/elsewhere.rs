//! Handling of connected launchers and their workers.

use rollmesh_core::{
    hub::{LauncherKey, LauncherPeer, PeerConnection as _},
    protocol::{Role, handshake::shortened, message::LauncherReady},
};

use super::{actor::Actor, token_file};

impl Actor {
    /// Handles a launcher's report of its state. An older connection of the same launcher is closed.
    pub(super) fn handle_launcher_ready(&mut self, id: u32, ready: &LauncherReady) {
        let Some(key) = self.rename_launcher(id) else { return };
        let Some(peer) = self.hub.peers.get(&id) else { return };
        let text = format!("launcher {} has places for {} workers", key.name, ready.capacity);
        let peer = LauncherPeer { id, key, session: peer.session, link: peer.link.clone() };
        if let Some(older) = self.launchers.with(|launchers| launchers.handle_ready(peer, ready)) {
            older.expel("a newer connection has its token and name");
        }
        self.children.local.forget_failed_starts();
        self.hub.notice_coming(text);
    }

    /// Lets a launcher and its workers depend on the token that its connection has now, and returns its key: if another
    /// launcher has this token and name, it keeps those that it had.
    pub(super) fn rename_launcher(&self, id: u32) -> Option<LauncherKey> {
        let peer = self.hub.peers.get(&id).filter(|peer| peer.role == Role::Launcher)?;
        let key = LauncherKey { token: peer.valid_by, name: peer.name.clone() };
        self.launchers.with(|launchers| {
            launchers.rename(peer.session, &key);
            Some(launchers.of_peer(id).unwrap_or(key))
        })
    }

    /// Removes launchers that did not return, and those whose token is no longer valid.
    pub(super) fn tend_launchers(&mut self) {
        let (now, seconds, tokens) = (self.now(), token_file::now(), self.hub.tokens.table());
        let is_valid = |token| tokens.is_valid(token, seconds);
        for key in self.launchers.with(|launchers| launchers.over(is_valid, now)) {
            self.remove_launcher(&key, "it does not return, or its token is no longer valid");
        }
    }

    /// Removes a launcher and its workers, which are not replaced: the operator decides where they run instead.
    pub(super) fn remove_launcher(&mut self, key: &LauncherKey, reason: &str) {
        let workers = self.launchers.with(|launchers| launchers.workers_of(key));
        workers.iter().for_each(|&worker| self.children.local.dismiss(worker));
        let is_last = self.launchers.with(|launchers| {
            launchers.remove(key);
            launchers.is_empty()
        });
        if is_last {
            // They would start on the hub's machine.
            self.children.forget_replacements();
        }
        let (name, count) = (&key.name, workers.len());
        self.hub.notice(1, format!("launcher {name} was removed with its {count} workers: {}", shortened(reason)));
    }
}

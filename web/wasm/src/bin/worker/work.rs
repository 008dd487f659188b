//! What a tab can do at a hub, whatever the socket is doing.

use rollmesh_core::time::Micros;

use crate::{page::Status, socket::Socket};

/// Work at a hub: sampling for its run, or evaluating for its peers. Done in short pieces, between which messages are
/// heard.
pub(crate) trait Work {
    /// Begins a session on a new connection.
    fn connect(&mut self);
    /// The connection is gone.
    fn disconnect(&mut self);
    /// Takes a frame from the hub.
    fn handle_frame(&mut self, frame: &[u8]);
    /// Sends the next frame, if there is one now.
    fn send_next(&mut self, socket: &Socket) -> bool;
    /// True while there is something to do.
    fn has_work(&self) -> bool;
    /// Does a piece of it, which takes a fraction of a slice.
    fn work(&mut self, now: Micros);
    /// True once the hub wants this tab.
    fn is_welcome(&self) -> bool;
    /// Why another connection would not help, if so.
    fn end(&self) -> Option<String>;
    /// How it goes. The state is that of a tab with a connection.
    fn status(&self) -> Status;
}

//! The ports of a hub in a page: queues in memory, each with a role.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use rollmesh_core::{
    hub::{CloseReason, PeerConnection},
    protocol::{FrameBytes, Inbox, Kind, Message, MessageFrame, Outbox, Role, TokenId, message::Goodbye},
};

/// A port of an [`InlineHub`](super::InlineHub).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(pub u32);

/// The hub's side of a port.
pub(super) struct Port {
    /// The role that its peer may have, and no other.
    pub(super) role: Role,
    /// The token that its peer must present, and no other.
    pub(super) token: TokenId,
    /// The id of the peer once it is admitted.
    pub(super) peer: Option<u32>,
    pub(super) link: PortLink,
    inbox: Inbox,
}

impl Port {
    pub(super) fn new(role: Role, token: TokenId) -> Self {
        Self { role, token, peer: None, link: PortLink::default(), inbox: Inbox::of_hub() }
    }

    pub(super) fn admit(&mut self, peer: u32) {
        self.peer = Some(peer);
        self.inbox.admit(self.role);
    }

    /// Reads a frame. Returns the message that it completes.
    ///
    /// # Errors
    /// The peer's violation of the protocol; the port must be closed then.
    pub(super) fn receive(&mut self, frame: &[u8]) -> Result<Option<Message>, String> {
        let is_result = self.inbox.announced(frame).is_some_and(|(kind, _)| kind == Kind::CallResult);
        if is_result && !self.link.0.is_called.get() {
            return Err("a result in parts, and no call that waits for one".into());
        }
        let message = self.inbox.handle_frame(frame).map_err(|error| error.to_string())?;
        if let Some(credit) = self.inbox.take_credit_due() {
            // The message is small.
            let _ = self.link.send(&Message::Credit(credit));
        }
        Ok(message)
    }
}

/// The hub's handle of a port: its queue.
#[derive(Clone, Debug, Default)]
pub(super) struct PortLink(Rc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    outbox: RefCell<Outbox>,
    /// The last message is queued.
    is_closing: Cell<bool>,
    is_called: Cell<bool>,
}

impl PortLink {
    /// Returns the next frame for the peer.
    pub(super) fn poll_frame(&self) -> Option<FrameBytes> {
        self.0.outbox.borrow_mut().poll_frame()
    }

    /// Raises the number of bytes of chunks that the hub may send.
    pub(super) fn grant(&self, bytes: u32) {
        self.0.outbox.borrow_mut().grant(bytes);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.0.is_closing.get()
    }

    /// Sends a last message.
    pub(super) fn send_last(&self, message: &Message) {
        // Refusals and goodbyes are far below any limit.
        let _ = self.send(message);
        self.0.is_closing.set(true);
    }
}

impl PeerConnection for PortLink {
    fn send_frame(&self, frame: MessageFrame) {
        if !self.is_closing() {
            self.0.outbox.borrow_mut().push_frame(frame);
        }
    }

    fn queued_bytes(&self) -> usize {
        self.0.outbox.borrow().queued_bytes()
    }

    fn close(&self, _: CloseReason, reason: &str) {
        self.send_last(&Message::Goodbye(Goodbye { reason: reason.chars().take(512).collect() }));
    }

    fn expel(&self, reason: &str) {
        self.0.outbox.take();
        self.close(CloseReason::Fault, reason);
    }

    fn hang_up(&self) {
        self.0.outbox.take();
        self.0.is_closing.set(true);
    }

    fn set_open_calls(&self, calls: usize) {
        self.0.is_called.set(calls > 0);
    }
}

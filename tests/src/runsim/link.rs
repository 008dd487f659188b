//! The hub's handles of simulated connections.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use rollmesh_core::{
    hub::{CloseReason, PeerConnection},
    protocol::{Message, MessageFrame, Outbox},
};

/// A queue of messages, which are encoded and decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct SimLink(Rc<Wire>);

#[derive(Debug, Default)]
struct Wire {
    outbox: RefCell<Outbox>,
    is_closed: Cell<bool>,
}

impl SimLink {
    /// Returns the next message that the hub has sent.
    pub(super) fn poll(&self) -> Option<Message> {
        let bytes = self.0.outbox.borrow_mut().poll_frame()?;
        Some(Message::decode(&bytes).expect("a message of the hub"))
    }

    /// Returns true once the hub has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed.get()
    }
}

impl PeerConnection for SimLink {
    fn send_frame(&self, frame: MessageFrame) {
        if !self.0.is_closed.get() {
            self.0.outbox.borrow_mut().push_frame(frame);
        }
    }

    fn queued_bytes(&self) -> usize {
        self.0.outbox.borrow().queued_bytes()
    }

    fn close(&self, _: CloseReason, _: &str) {
        self.0.is_closed.set(true);
    }

    fn expel(&self, _: &str) {
        self.hang_up();
    }

    fn hang_up(&self) {
        self.0.outbox.take();
        self.0.is_closed.set(true);
    }
}

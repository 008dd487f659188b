//! Asking for a worker at a hub: the connection behind a handle's stream.

use std::{
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

use rollmesh_core::{eval_worker::EvaluatorLink, protocol::Message};
use tokio::sync::Notify;

use super::{
    carry::{End, over},
    stream::Pipe,
};

/// The connection of one who asks.
pub(super) struct Asking {
    link: EvaluatorLink,
    pipe: Arc<Pipe>,
    /// Hears who has the name, or why that is not known.
    found: Option<Sender<Result<u32, String>>>,
}

impl Asking {
    pub(super) fn new(link: EvaluatorLink, pipe: Arc<Pipe>, found: Sender<Result<u32, String>>) -> Self {
        Self { link, pipe, found: Some(found) }
    }

    fn tell(&mut self, found: Result<u32, String>) {
        if let Some(tell) = self.found.take() {
            // Whoever does not wait any more has dropped its handle.
            let _ = tell.send(found);
        }
    }
}

impl End for Asking {
    fn handle_frame(&mut self, frame: &[u8]) {
        match self.link.handle_frame(frame) {
            Some(Message::EvaluatorFound(found)) => {
                // It may leave right after this.
                self.pipe.state().peer = found.peer;
                self.tell(Ok(found.peer));
            }
            Some(Message::EvaluatorBytes(bytes)) => self.pipe.add(&bytes.data),
            Some(Message::EvaluatorTaken(taken)) => self.pipe.taken(taken.bytes),
            // There is only one that this handle has to do with; the others come and go.
            Some(Message::EvaluatorGone(gone)) => {
                let is_it = self.pipe.state().peer == gone.peer;
                if is_it {
                    self.pipe.end("the worker has left");
                }
            }
            Some(_) | None => {}
        }
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        let mut state = self.pipe.state();
        if state.outgoing.is_empty() && state.is_dropped {
            self.link.leave("done");
        }
        let next = self.link.poll_frame();
        next.or_else(|| state.outgoing.pop_front().map(|message| message.encode()))
    }

    fn changes(&self) -> Arc<Notify> {
        self.pipe.notify.clone()
    }

    fn patience(&self) -> Option<Duration> {
        None
    }

    fn is_over(&self) -> Option<String> {
        over(self.link.state())
    }

    fn lost(&mut self, reason: &str) {
        self.pipe.end(reason);
        self.tell(Err(reason.into()));
    }
}

//! An evaluator's connection to a hub, without IO: for those who serve under a name and those who ask for one.

use crate::{
    prelude::*,
    protocol::{
        Inbox, Message, Role,
        handshake::{self, HandshakeError, Identity},
        message::{EvaluatorName, Goodbye},
    },
    worker::SessionState,
};

/// Introduces itself, and takes a name or asks who has it. From then on it carries what evaluators say.
#[derive(Debug)]
pub struct EvaluatorLink {
    inbox: Inbox,
    outgoing: VecDeque<Message>,
    state: SessionState,
    wish: EvaluatorName,
}

impl EvaluatorLink {
    /// Begins a connection: the first frame to send is the `Hello`. The identity's role is always that of an evaluator.
    #[must_use]
    pub fn new(identity: Identity, wish: EvaluatorName) -> Self {
        let hello = Identity { role: Role::Evaluator, ..identity }.hello();
        let inbox = Inbox::of_peer(Role::Evaluator);
        Self { inbox, outgoing: [hello].into(), state: SessionState::Connecting, wish }
    }

    /// Where the connection stands.
    #[must_use]
    pub fn state(&self) -> &SessionState {
        &self.state
    }

    /// Takes a frame from the hub; what it says, if that is about evaluators.
    pub fn handle_frame(&mut self, frame: &[u8]) -> Option<Message> {
        if self.is_over() {
            return None;
        }
        match self.inbox.handle_frame(frame) {
            Ok(message) => self.handle_message(message?),
            Err(error) => {
                self.leave(&error.to_string());
                None
            }
        }
    }

    fn handle_message(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Goodbye(goodbye) => self.state = SessionState::Closed { reason: goodbye.reason },
            answer if self.state == SessionState::Connecting => match handshake::read_answer(answer) {
                Ok(_) => {
                    self.state = SessionState::Ready;
                    self.outgoing.push_back(Message::EvaluatorName(self.wish.clone()));
                }
                Err(HandshakeError::Refused { code, reason }) => self.state = SessionState::Refused { code, reason },
                Err(error) => self.leave(&error.to_string()),
            },
            message => return Some(message),
        }
        None
    }

    /// Says something to the hub.
    pub fn say(&mut self, message: Message) {
        self.outgoing.push_back(message);
    }

    /// The next frame to send to the hub. Also after the end: the last word may be a farewell.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front().map(|message| message.encode())
    }

    /// Ends the connection on this side's wish, and tells the hub.
    pub fn leave(&mut self, reason: &str) {
        if !self.is_over() {
            // The most that a hub takes.
            let reason: String = reason.chars().take(512).collect();
            self.outgoing.push_back(Message::Goodbye(Goodbye { reason: reason.clone() }));
            self.state = SessionState::Closed { reason };
        }
    }

    /// True once it is refused or closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Refused { .. } | SessionState::Closed { .. })
    }
}

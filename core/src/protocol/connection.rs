//! A peer's side of its connection to a hub, over one socket after another: hello, answer, resuming, credits, goodbye, and
//! when to connect again.
//!
//! Not here: sockets, clocks, and how long a socket may be silent; the hub's side.

use super::{
    CHUNK_BYTES, FrameBytes, Inbox, Message, Outbox, PROTOCOL_MAX, PROTOCOL_MIN, Received, RefusalCode, Token,
    TooLarge,
    handshake::Identity,
    message::{Goodbye, Renew, Welcome},
    printable, reconnect_delay,
};
use crate::{prelude::*, time::Micros};

/// The end of a connection, other than by the loss of its socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionEnd {
    /// The hub refused this peer.
    #[error("the hub refused: {reason}")]
    Refused {
        /// The reason as a code; `None` if the hub's reason is unknown to this version.
        code: Option<RefusalCode>,
        /// The reason as text.
        reason: String,
    },
    /// Either side has sent a goodbye.
    #[error("{reason}")]
    Closed {
        /// The reason.
        reason: String,
    },
    /// The hub violated the protocol, so this side has closed the connection.
    #[error("{reason}")]
    Violated {
        /// The violation.
        reason: String,
    },
}

impl ConnectionEnd {
    /// Returns the reason as text.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused { reason, .. } | Self::Closed { reason } | Self::Violated { reason } => reason,
        }
    }
}

/// Another attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The reason why the connection ended, or could not be opened.
    pub reason: String,
    /// The delay before the attempt.
    pub delay: Micros,
}

/// A peer's connection to a hub. Its owner sends what [`poll_frame`](Self::poll_frame) returns, passes what the socket
/// receives to [`handle_frame`](Self::handle_frame), and reports the end of the socket to
/// [`handle_close`](Self::handle_close). The next socket then resumes the session.
///
/// ```
/// use rollmesh_core::protocol::{Connection, Kind, Message, Role, Token, handshake::{self, Identity}};
///
/// let mut connection = Connection::new(Identity::new(Role::Viewer, Token::new([1; 32]), "native", "example", "cpu"));
/// let hello = Message::decode(&connection.poll_frame().ok_or("Hello comes first")?)?;
/// assert_eq!(hello.kind(), Kind::Hello);
/// assert_eq!(connection.handle_frame(&Message::Refused(handshake::busy("too many peers")).encode(), None), None);
/// let retry = connection.handle_close("the hub closed the connection", 0)?;
/// assert_eq!(retry.reason, "too many peers");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connection {
    identity: Identity,
    stays: bool,
    inbox: Inbox,
    outbox: Outbox,
    /// The token that the hub was last shown over this socket, with the `Hello` or since.
    shown: Option<Token>,
    /// Whether the hub has admitted this peer over this socket.
    is_admitted: bool,
    end: Option<ConnectionEnd>,
    /// The hub's latest answer, of this socket or an earlier one.
    welcome: Option<Welcome>,
    /// Attempts in a row in which the hub did not admit this peer.
    failures: u32,
}

impl Connection {
    /// Creates the connection of a peer whose work ends with the hub's goodbye.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            inbox: Inbox::of_peer(identity.role),
            // Chunks wait for the credit in the welcome.
            outbox: Outbox::new(0),
            identity,
            stays: false,
            shown: None,
            is_admitted: false,
            end: None,
            welcome: None,
            failures: 0,
        }
    }

    /// Lets the peer connect again after a goodbye, to a hub that is restarted.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { stays: true, ..self }
    }

    /// Returns the identity that the next `Hello` claims.
    pub(crate) fn identity_mut(&mut self) -> &mut Identity {
        &mut self.identity
    }

    /// Returns whether the hub has admitted this peer, and the connection is open.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_admitted && self.end.is_none()
    }

    /// Returns how the connection ended; `None` while it has not, as far as this side knows.
    #[must_use]
    pub fn end(&self) -> Option<&ConnectionEnd> {
        self.end.as_ref()
    }

    /// Returns the latest answer of a hub that admitted this peer, over this socket or an earlier one.
    #[must_use]
    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// Returns the number of queued bytes.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.outbox.queued_bytes()
    }

    /// Replaces the token: an open connection presents it to the hub once it is admitted, and the next `Hello` claims it.
    pub fn renew(&mut self, token: Token) {
        self.identity.token = token;
        if self.is_ready() && self.shown.is_some_and(|shown| shown != token) {
            self.shown = Some(token);
            self.send(&Message::Renew(Renew { token }));
        }
    }

    /// Queues a message until the hub has admitted this peer and there is credit for it.
    ///
    /// # Errors
    /// [`TooLarge`]; then nothing is queued.
    pub fn push(&mut self, message: &Message) -> Result<(), TooLarge> {
        self.outbox.push(message)
    }

    /// Queues a message that is always small enough, since its texts are truncated. One that is not closes the connection.
    pub fn send(&mut self, message: &Message) {
        if let Err(error) = self.push(message) {
            self.end = Some(ConnectionEnd::Closed { reason: error.to_string() });
        }
    }

    /// Returns the next frame to send. Also after the end of the connection: the last one may be a `Goodbye`.
    pub fn poll_frame(&mut self) -> Option<FrameBytes> {
        if self.shown.is_none() {
            self.shown = Some(self.identity.token);
            return Some(FrameBytes(self.identity.hello().encode().into()));
        }
        match &self.end {
            Some(ConnectionEnd::Refused { .. }) => None,
            None if !self.is_admitted => None,
            None | Some(_) => self.outbox.poll_frame(),
        }
    }

    /// Handles a frame from the hub. Returns the message that it completes, unless that concerns the connection alone. Weights
    /// of `run` are decoded while they arrive.
    pub fn handle_frame(&mut self, frame: &[u8], run: Option<u32>) -> Option<Received> {
        if self.end.is_some() {
            return None;
        }
        let received = self.inbox.receive(frame, run);
        if let Some(credit) = self.inbox.take_credit_due() {
            self.send(&Message::Credit(credit));
        }
        match received {
            Ok(Some(Received::Message(message))) => self.handle_message(message).map(Received::Message),
            Ok(received) => received,
            Err(error) => {
                self.violated(&error);
                None
            }
        }
    }

    fn handle_message(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Goodbye(goodbye) => {
                let reason = printable(&goodbye.reason);
                self.end = Some(ConnectionEnd::Closed { reason });
            }
            answer if !self.is_admitted => self.handle_answer(answer),
            Message::Credit(credit) => self.outbox.grant(credit.bytes),
            Message::Welcome(_) | Message::Refused(_) => {
                self.violated(&format_args!("{:?} has no place in a session", message.kind()));
            }
            message => return Some(message),
        }
        None
    }

    fn handle_answer(&mut self, answer: Message) {
        match answer {
            Message::Welcome(Welcome { protocol, .. }) if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&protocol) => {
                self.violated(&format_args!("the hub chose protocol version {protocol}, which was not offered"));
            }
            Message::Welcome(Welcome { credit, .. }) if credit < 2 * CHUNK_BYTES => {
                self.violated(&format_args!("the hub grants {credit} bytes, less than two chunks"));
            }
            Message::Welcome(welcome) => {
                self.outbox.grant(welcome.credit);
                self.identity.resume = Some(welcome.resume_id);
                self.welcome = Some(welcome);
                self.failures = 0;
                self.is_admitted = true;
                // It may have been replaced since the hello.
                self.renew(self.identity.token);
            }
            Message::Refused(refused) => {
                let (code, reason) = (RefusalCode::try_from(refused.code).ok(), printable(&refused.reason));
                self.end = Some(ConnectionEnd::Refused { code, reason });
            }
            other => self.violated(&format_args!("the hub answered Hello with {:?}", other.kind())),
        }
    }

    pub(crate) fn violated(&mut self, what: &dyn core::fmt::Display) {
        let reason = what.to_string();
        self.leave(&reason);
        self.end = Some(ConnectionEnd::Violated { reason });
    }

    /// Sends a goodbye and closes the connection.
    pub fn leave(&mut self, reason: &str) {
        if self.end.is_none() {
            self.send(&Message::Goodbye(Goodbye { reason: printable(reason) }));
            self.end = Some(ConnectionEnd::Closed { reason: reason.into() });
        }
    }

    /// Handles the end of the socket, or the failure to open one, and prepares the next attempt. `reason` is what the socket
    /// reports, and `random` as for [`reconnect_delay`].
    ///
    /// # Errors
    /// [`ConnectionEnd`] if another attempt would end in the same way.
    pub fn handle_close(&mut self, reason: &str, random: u32) -> Result<Retry, ConnectionEnd> {
        let may_retry = |end: &ConnectionEnd| match end {
            ConnectionEnd::Refused { code: Some(RefusalCode::Busy), .. } => true,
            // The hub may not have noticed yet that a reconnecting peer was disconnected.
            ConnectionEnd::Refused { code: Some(RefusalCode::NameTaken), .. } => self.welcome.is_some(),
            ConnectionEnd::Refused { .. } => false,
            ConnectionEnd::Closed { .. } => self.stays,
            // A hub that violates the protocol before it has admitted this peer uses another version.
            ConnectionEnd::Violated { .. } => self.stays && self.welcome.is_some(),
        };
        let reason = match &self.end {
            Some(end) if !may_retry(end) => return Err(end.clone()),
            Some(end) => end.reason(),
            None => reason,
        };
        let reason = reason.to_owned();
        let (stays, welcome, failures) = (self.stays, self.welcome.take(), self.failures.saturating_add(1));
        *self = Self { stays, welcome, failures, ..Self::new(self.identity.clone()) };
        Ok(Retry { reason, delay: reconnect_delay(failures, random) })
    }
}

impl From<Identity> for Connection {
    fn from(identity: Identity) -> Self {
        Self::new(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Kind, Role, Token,
            handshake::{busy, name_taken, no_token},
            message::{Refused, Revoke},
        },
        *,
    };

    const CLOSED: &str = "the hub closed the connection";

    fn connection() -> Connection {
        Connection::new(Identity::new(Role::Worker, Token::new([1; 32]), "native", "test", "cpu"))
    }

    fn welcome() -> Message {
        Message::Welcome(Welcome { protocol: 1, peer: 3, resume_id: [4; 16], credit: 1 << 20, server: "hub".into() })
    }

    /// Returns the kinds of the frames that are sent now.
    fn sent(connection: &mut Connection) -> Vec<Message> {
        core::iter::from_fn(|| connection.poll_frame()).map(|frame| Message::decode(&frame).unwrap()).collect()
    }

    fn receive(connection: &mut Connection, message: &Message) {
        assert_eq!(connection.handle_frame(&message.encode(), None), None);
    }

    /// Closes the socket; returns the reason of the next attempt.
    fn close(connection: &mut Connection) -> Option<String> {
        connection.handle_close(CLOSED, 0).ok().map(|retry| retry.reason)
    }

    #[test]
    fn hello_comes_first_and_resumes_the_session_of_the_socket_before() {
        let mut connection = connection();
        connection.send(&Message::Goodbye(Goodbye { reason: "later".into() }));
        let [Message::Hello(hello)] = &sent(&mut connection)[..] else { panic!("nothing but Hello") };
        assert_eq!(hello.resume_id, [0; 16]);
        receive(&mut connection, &welcome());
        assert_eq!(sent(&mut connection)[0].kind(), Kind::Goodbye);
        assert!(connection.is_ready());
        assert_eq!(close(&mut connection).as_deref(), Some(CLOSED));
        let [Message::Hello(hello)] = &sent(&mut connection)[..] else { panic!("nothing but Hello") };
        assert_eq!(hello.resume_id, [4; 16]);
    }

    #[test]
    fn token_that_is_replaced_between_hello_and_welcome_is_presented_after_it() {
        let (mut connection, new) = (connection(), Token::new([2; 32]));
        assert_eq!(sent(&mut connection).len(), 1);
        connection.renew(new);
        assert!(sent(&mut connection).is_empty());
        receive(&mut connection, &welcome());
        assert_eq!(sent(&mut connection), [Message::Renew(Renew { token: new })]);
        connection.renew(new);
        assert!(sent(&mut connection).is_empty(), "the hub has it");
        close(&mut connection);
        let [Message::Hello(hello)] = &sent(&mut connection)[..] else { panic!("nothing but Hello") };
        assert_eq!(hello.token, new);
    }

    #[test]
    fn delays_grow_until_the_hub_admits_the_peer() {
        let mut connection = connection();
        let delay = |connection: &mut Connection| connection.handle_close(CLOSED, 0).unwrap().delay.0 / 1_000;
        assert_eq!([0; 3].map(|_| delay(&mut connection)), [200, 400, 800]);
        receive(&mut connection, &Message::Refused(busy("full")));
        assert_eq!(delay(&mut connection), 1_600);
        receive(&mut connection, &welcome());
        assert_eq!([0; 2].map(|_| delay(&mut connection)), [200, 400]);
    }

    #[test]
    fn refused_peer_reconnects_only_if_a_retry_can_succeed() {
        let after = |refused: Refused, was_admitted: bool| {
            let mut connection = connection().staying();
            if was_admitted {
                receive(&mut connection, &welcome());
                connection.handle_close(CLOSED, 0).unwrap();
            }
            receive(&mut connection, &Message::Refused(refused));
            assert_eq!(sent(&mut connection).len(), 1, "nothing but Hello");
            close(&mut connection)
        };
        assert_eq!(after(busy("full"), false).as_deref(), Some("full"));
        assert_eq!([after(no_token(), false), after(no_token(), true)], [None, None]);
        assert_eq!(after(name_taken("judge"), false), None);
        assert_eq!(after(name_taken("judge"), true).as_deref(), Some("the name 'judge' is taken"));
    }

    #[test]
    fn answers_that_are_no_use_end_the_connection() {
        let welcome = |protocol, credit| {
            Message::Welcome(Welcome { protocol, peer: 3, resume_id: [1; 16], credit, server: "hub".into() })
        };
        let cases = [
            (welcome(2, 1 << 20), "the hub chose protocol version 2, which was not offered"),
            (welcome(1, 5), "the hub grants 5 bytes, less than two chunks"),
            (Message::Revoke(Revoke { lease: 1 }), "the hub answered Hello with Revoke"),
            (Message::Refused(Refused { code: 0xee, reason: "new\n".into() }), "the hub refused: new "),
        ];
        for (answer, expected) in cases {
            let mut connection = connection();
            receive(&mut connection, &answer);
            assert_eq!(connection.end().map(ConnectionEnd::to_string).as_deref(), Some(expected));
        }
    }

    #[test]
    fn goodbye_is_final_unless_the_peer_stays() {
        for (mut connection, expected) in [(connection(), None), (connection().staying(), Some("it stops"))] {
            receive(&mut connection, &welcome());
            receive(&mut connection, &Message::Goodbye(Goodbye { reason: "it stops".into() }));
            assert_eq!(connection.end().map(ConnectionEnd::reason), Some("it stops"));
            assert_eq!(close(&mut connection).as_deref(), expected);
        }
    }

    #[test]
    fn violation_of_the_protocol_is_answered_by_goodbye() {
        let mut connection = connection();
        receive(&mut connection, &welcome());
        receive(&mut connection, &welcome());
        let reason = "Welcome has no place in a session".to_owned();
        assert_eq!(connection.end(), Some(&ConnectionEnd::Violated { reason: reason.clone() }));
        assert_eq!(sent(&mut connection)[1..], [Message::Goodbye(Goodbye { reason })]);
        assert_eq!(close(&mut connection), None);
    }
}

//! A hub's peers, and its handles of their connections.

use core::ops::Deref;

use super::{Offences, UploadDecoder};
use crate::{
    prelude::*,
    protocol::{
        Message, MessageFrame, Role, TokenId, TooLarge,
        handshake::{Accepted, PeerService},
    },
    time::Micros,
    worker::{CommandError, CommandErrorKind},
};

/// A hub's handle of a connection: a queue that the shell sends from. Nothing blocks, and nothing follows a goodbye. The last
/// three methods are for connections that check and decode what arrives on other threads.
pub trait PeerConnection {
    /// Queues a message.
    fn send_frame(&self, frame: MessageFrame);

    /// Encodes and queues a message.
    ///
    /// # Errors
    /// [`TooLarge`].
    fn send(&self, message: &Message) -> Result<(), TooLarge> {
        self.send_frame(MessageFrame::new(message)?);
        Ok(())
    }

    /// Returns the number of queued bytes.
    fn queued_bytes(&self) -> usize;

    /// Closes the connection after the queue has been sent, with a goodbye.
    fn close(&self, why: CloseReason, reason: &str);

    /// Closes the connection immediately: the queue is discarded, and what the peer sends is ignored.
    fn expel(&self, reason: &str);

    /// Closes the connection of a slow consumer without a goodbye, so that it reconnects and gets a full snapshot.
    fn hang_up(&self);

    /// Sets the number of calls that the peer has not answered: without one it may send no result in parts.
    fn set_open_calls(&self, _calls: usize) {}

    /// Lets the connection decode the uploads of a lease.
    fn record_lease(&self, _decoder: UploadDecoder) {}

    /// Drops what decodes uploads, since the run has ended: leases hold the states of their slots.
    fn forget_leases(&self) {}
}

/// The kind of a peer in a browser tab.
pub(super) const BROWSER: &str = "browser";

/// The reason why a hub closes a connection, as WebSocket status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The connection's purpose is fulfilled.
    Done = 1000,
    /// The hub stops.
    Away = 1001,
    /// The peer broke the rules.
    Fault = 1008,
    /// The peer was too slow; it may connect again.
    Again = 1013,
}

/// A peer that the hub has admitted.
#[derive(Debug)]
pub struct Peer<C> {
    pub(super) identity: Accepted,
    /// The token that keeps the connection open: that of the handshake, or the latest one that the peer has presented since.
    pub valid_by: TokenId,
    /// The id of its session, with which it resumes after a lost connection.
    pub session: [u8; 16],
    /// Its connection.
    pub link: C,
    /// The launcher that started it, if a connected one did; else empty.
    pub launcher: String,
    /// True for a spare local worker, which has no place in the run yet.
    pub is_spare: bool,
    /// The reason why the peer is about to disconnect, if it has announced that.
    pub(super) leaving: Option<String>,
    pub(super) admitted_at: Micros,
    /// When the current run was announced to it; `None` once it counts as hung because it has not answered.
    pub(super) announced_at: Option<Micros>,
    /// True for a worker of which the hub has accepted something.
    pub(super) has_delivered: bool,
    /// True for a dashboard that has its full snapshot: from then on it receives changes.
    pub(super) is_up_to_date: bool,
    /// True if weights have been announced to the peer that it has not requested from the hub.
    pub(super) may_request_weights: bool,
    /// True if state updates were skipped because the peer is a slow consumer.
    pub(super) has_missed: bool,
    /// Whether a dashboard has missed clips since it last caught up.
    pub(super) has_missed_clips: bool,
    /// Calls that the peer has not answered yet.
    calls: BTreeSet<u64>,
    pub(super) offences: Offences,
    /// True for a worker that has acted for others: late answers are no offence.
    pub(super) has_acted: bool,
}

/// Its role, token, kind, name, device and service.
impl<C> Deref for Peer<C> {
    type Target = Accepted;

    fn deref(&self) -> &Accepted {
        &self.identity
    }
}

impl<C: PeerConnection> Peer<C> {
    pub(super) fn new(
        identity: Accepted,
        link: C,
        session: [u8; 16],
        (launcher, is_spare): (String, bool),
        now: Micros,
    ) -> Self {
        Self {
            valid_by: identity.token,
            session,
            identity,
            link,
            launcher,
            is_spare,
            leaving: None,
            admitted_at: now,
            announced_at: None,
            has_delivered: false,
            is_up_to_date: false,
            may_request_weights: false,
            has_missed: false,
            has_missed_clips: false,
            calls: BTreeSet::new(),
            offences: Offences::default(),
            has_acted: false,
        }
    }

    /// Returns true for a worker that has a place and takes part in runs.
    pub fn is_worker(&self) -> bool {
        self.role == Role::Worker && self.service == PeerService::Runs && !self.is_spare
    }

    /// Returns the peer's purpose, for display.
    pub fn service_name(&self) -> &'static str {
        match (self.role, self.service) {
            (Role::Worker, PeerService::Evaluates) => "evaluation worker",
            (Role::Worker, PeerService::Asks) => "program that evaluates",
            (Role::Worker, PeerService::Runs) if self.is_spare => "spare worker",
            (Role::Worker, PeerService::Runs) => "worker",
            (Role::Viewer, _) => "viewer",
            (Role::Operator, _) => "operator",
            (Role::Client, _) => "client of an environment",
            (Role::Launcher, _) => "launcher",
            (Role::Relay, _) => "relay",
        }
    }

    /// Returns true for a peer that gets the weights of runs.
    pub fn gets_weights(&self) -> bool {
        self.role == Role::Relay || self.is_worker()
    }

    /// Returns true for viewers and operators.
    pub fn is_dashboard(&self) -> bool {
        matches!(self.role, Role::Viewer | Role::Operator)
    }

    /// Returns true if the peer may be slowed down at any time, like a browser tab.
    pub fn is_throttled(&self) -> bool {
        self.kind == BROWSER
    }

    /// Sends a call, or another message that is answered like one.
    pub(super) fn call(&mut self, call: u64, message: &Message) -> Result<(), CommandError> {
        let too_large = |error: TooLarge| CommandError::new(CommandErrorKind::TooLarge, error.to_string());
        let frame = MessageFrame::new(message).map_err(too_large)?;
        self.calls.insert(call);
        // Before the message is sent, since the answer may arrive immediately.
        self.link.set_open_calls(self.calls.len());
        self.link.send_frame(frame);
        Ok(())
    }

    /// Returns whether the peer has not answered this call yet.
    pub(super) fn is_called(&self, call: u64) -> bool {
        self.calls.contains(&call)
    }

    /// Records the answer of a call. Returns whether the call was open.
    pub(super) fn handle_answer(&mut self, call: u64) -> bool {
        let was_open = self.calls.remove(&call);
        self.link.set_open_calls(self.calls.len());
        was_open
    }
}

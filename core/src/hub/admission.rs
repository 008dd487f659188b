//! Admits, introduces, expels and removes peers.

use core::net::SocketAddr;

use super::{
    ChildFate, CloseReason, Hub, HubEffect, HubRun, Peer, PeerConnection, Record, RunLoop,
    limits::{MAX_PEERS, MAX_RESERVED_NAMES},
    peer::BROWSER,
};
use crate::{
    group::{Principal, WorkerProfile},
    ids::{SlotId, WorkerId},
    prelude::*,
    protocol::{
        INITIAL_CREDIT, Kind, Message, MessageFrame, RefusalCode, Role, Token,
        handshake::{Accepted, PeerService, busy, check_hello, name_taken, no_token},
        message::{Hello, Refused, Welcome, WorkerGone},
    },
};

/// The data of a peer that is to be admitted.
#[derive(Clone, Debug)]
pub struct Arrival<C> {
    /// Its address.
    pub from: SocketAddr,
    /// Its connection.
    pub link: C,
    /// The id of a new session; one that resumes a session keeps its id.
    pub session: [u8; 16],
    /// The name of the launcher that started it, if a connected one did; else empty.
    pub launcher: String,
    /// Whether it is the spare local worker.
    pub is_spare: bool,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct PeerEnd<'a> {
    /// The reason.
    pub reason: &'a str,
    /// True if the peer broke the rules or the connection failed.
    pub is_fault: bool,
    /// The kind of the message that the peer's role does not allow, if that was the reason.
    pub denied: Option<Kind>,
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Checks whether the hub admits a peer.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub fn check(&self, hello: &Hello) -> Result<Accepted, Refused> {
        if self.peers.len() >= MAX_PEERS {
            return Err(busy("the hub has as many peers as it takes; try again later"));
        }
        let accepted = check_hello(hello, self.tokens.table(), self.seconds, self.setup.fingerprint)?;
        if accepted.role == Role::Relay && accepted.kind == BROWSER {
            return Err(no_token());
        }
        if accepted.role == Role::Worker && self.is_leaving {
            return Err(busy("the hub is about to end"));
        }
        if accepted.service == PeerService::Evaluates && !self.may_have_name(&accepted) {
            return Err(name_taken(&accepted.name));
        }
        Ok(accepted)
    }

    /// Records that a peer was refused.
    pub fn handle_refused(&mut self, from: SocketAddr, refused: &Refused) {
        self.record(Record::Refused { from, why: why(refused) });
        self.notice_offence(format!("a peer was refused: {}", refused.reason));
    }

    /// Admits a peer that was [accepted](Self::check), sends it its initial state and puts it to use. Returns its id.
    pub fn admit(&mut self, accepted: Accepted, arrival: Arrival<C>) -> u32 {
        let Arrival { from, link, session, launcher, is_spare } = arrival;
        if accepted.service == PeerService::Evaluates {
            self.take_name(&accepted);
        }
        let (peer, &Accepted { protocol, role, token, .. }) = (self.next_peer, &accepted);
        self.next_peer += 1;
        let (kind, name) = (accepted.kind.clone(), accepted.name.clone());
        self.record(Record::Admitted { from, peer, role, token, kind, name });
        let (resume_id, server) = (accepted.resume.unwrap_or(session), self.setup.server.clone());
        // Queued before anything else can be. It is small.
        let _ = link.send(&Message::Welcome(Welcome { protocol, peer, resume_id, credit: INITIAL_CREDIT, server }));
        self.peers.insert(peer, Peer::new(accepted, link, resume_id, (launcher, is_spare), self.now));
        self.introduce(peer);
        peer
    }

    /// Gives a spare local worker its place: if it is connected already, it works from now on.
    pub fn employ(&mut self, child: u32) {
        let found = self.peers.iter_mut().find(|(_, peer)| peer.child == Some(child) && peer.is_spare);
        if let Some((&id, peer)) = found {
            peer.is_spare = false;
            self.introduce(id);
        }
    }

    fn introduce(&mut self, id: u32) {
        let Some(newcomer) = self.peers.get(&id) else { return };
        let Accepted { role, service, kind, name, device, .. } = &newcomer.identity;
        match (role, service) {
            (Role::Viewer | Role::Operator, _) => self.show_everything(id),
            // A spare worker is not announced before it has a place.
            (Role::Worker, _) if newcomer.is_spare => {}
            (Role::Worker, PeerService::Evaluates) => {
                self.notice_coming(format!("worker {id} evaluates as {name} ({kind}, {device})"));
            }
            (Role::Worker, PeerService::Asks) => {}
            (Role::Worker, PeerService::Runs) => {
                let text = format!("worker {id} joined: {name} ({kind}, {device})");
                self.log(id, 0, &text);
                self.notice_coming(text);
                self.effects.push_back(HubEffect::Joined(id));
                self.bring_into_run(id);
            }
            (Role::Launcher, _) => self.notice_coming(format!("launcher {id} joined: {name} ({kind})")),
            (Role::Relay, _) => {
                self.notice_coming(format!("relay {id} joined: {name} ({kind})"));
                self.send_newest_weights(id);
            }
            // The shell sends a client what it needs to know.
            (Role::Client, _) => self.notice_coming(format!("client {id} joined: {name} ({kind})")),
        }
    }

    /// Announces a run that has just begun to all workers, and its weights to relays.
    pub fn bring_all_into_run(&mut self) {
        self.hung.clear();
        self.hopeless_since = None;
        let relays = self.peers.iter().filter(|(_, peer)| peer.role == Role::Relay);
        let relays: Vec<u32> = relays.map(|(&id, _)| id).collect();
        relays.into_iter().for_each(|id| self.send_newest_weights(id));
        let workers: Vec<u32> = self.workers().map(|(id, _)| id).collect();
        workers.into_iter().for_each(|id| self.bring_into_run(id));
    }

    /// Announces the run and its current weights to a worker. The worker gets leases once it has answered that it is able.
    fn bring_into_run(&mut self, id: u32) {
        let (now, principal) = (self.now, self.principal(id));
        let (Some(run), Some(peer)) = (&mut self.run, self.peers.get_mut(&id)) else { return };
        let state = run.state_mut();
        if state.is_over() || state.is_local() {
            return;
        }
        peer.announced_at = Some(now);
        // Both have been sent to other workers before, so they are not too large.
        let _ = peer.link.send(&state.announcement());
        self.send_newest_weights(id);
        let (Some(run), Some(peer)) = (&mut self.run, self.peers.get(&id)) else { return };
        if let Some(principal) = principal {
            run.state_mut().group.distrust(WorkerId(id), principal);
            run.keep_for_undoing(now);
        }
        let profile = if peer.is_throttled() { WorkerProfile::BROWSER } else { WorkerProfile::NATIVE };
        run.state_mut().group.handle_joined(WorkerId(id), profile, now);
    }

    /// Sends a peer the weights of the current run, or their hash if it gets them from a relay.
    pub(super) fn send_newest_weights(&mut self, id: u32) {
        let frame = self.current().map(|run| run.state_mut().weights_frame());
        // They have been sent to others before, so they are not too large.
        if let Some(Ok(frame)) = frame {
            self.send_weights(id, &frame);
        }
    }

    pub(super) fn send_weights(&mut self, id: u32, frame: &MessageFrame) {
        let Some((role, by_relay)) = self.peers.get(&id).map(|peer| (peer.role, peer.by_relay)) else { return };
        let needs_notice = by_relay || role == Role::Relay;
        let notice = self.state_mut().filter(|_| needs_notice).and_then(|run| run.weights_notice().ok());
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Small, so it comes before the weights.
        if let Some(notice) = notice {
            let _ = peer.link.send(&Message::WeightsNotice(notice));
            peer.may_request_weights = true;
        }
        if !by_relay {
            peer.link.send_frame(frame.clone());
        }
    }

    /// Handles a peer that could not get the newest weights from a relay. They are sent once for each notice: a request is
    /// small, and weights are not.
    pub(super) fn handle_weights_request(&mut self, id: u32, run: u32) {
        let is_current = |state: &&mut RunLoop| state.number() == run && !state.is_over() && !state.is_local();
        let frame = self.state_mut().filter(is_current).and_then(|state| state.weights_frame().ok());
        if let (Some(frame), Some(peer)) = (frame, self.peers.get_mut(&id))
            && core::mem::take(&mut peer.may_request_weights)
        {
            peer.link.send_frame(frame);
        }
    }

    /// Lets the token that a peer presents keep its connection open, instead of the one before. It has to be of the peer's
    /// role, and none of a process of the hub.
    pub(super) fn handle_renewal(&mut self, id: u32, token: &Token) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let found = self.tokens.table().find(token, self.seconds);
        let found = found.filter(|(_, grant)| grant.role.may_act_as(peer.role) && grant.child.or(peer.child).is_none());
        match found {
            Some((token, _)) if token == peer.valid_by => {}
            Some((token, _)) => {
                peer.valid_by = token;
                self.record(Record::Renewed { peer: id, token });
            }
            None => self.count_offence(id),
        }
    }

    /// Returns the principal of an untrusted worker, `None` for a trusted one.
    pub fn principal(&self, id: u32) -> Option<Principal> {
        let peer = self.peers.get(&id)?;
        // Workers that a launcher has started run on machines of others.
        let is_own = peer.child.is_some() && peer.launcher.is_empty();
        let is_of_page = self.tokens.is_of_page(peer.token);
        let is_untrusted = !is_own && (is_of_page || peer.is_throttled() || self.setup.distrusts_remote);
        // A checkpoint keeps quarantines longer than this process lives: no later connection may inherit them.
        let connection = u64::from(self.setup.life) << 32 | u64::from(id);
        is_untrusted.then(|| self.tokens.principal(peer.token, connection))
    }

    /// Removes a peer that has disconnected.
    pub fn handle_left(&mut self, id: u32, PeerEnd { reason, is_fault, denied }: PeerEnd<'_>) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let role = peer.role;
        if let Some(kind) = denied {
            self.record(Record::Denied { peer: id, role, kind });
        }
        self.record(Record::Left { peer: id, role, fault: is_fault.then(|| reason.to_owned()) });
        let reason = peer.leaving.as_deref().filter(|_| !is_fault).unwrap_or(reason).to_owned();
        self.dashboards.forget_peer(id);
        if let Some(watched) = self.state().map(|run| SlotId(run.watched_slot)).filter(|_| !self.has_dashboards()) {
            self.dashboards.fragments.keep_only(watched);
        }
        match (role, peer.service) {
            _ if peer.is_worker() => self.remove_from_run(id, is_fault, &reason),
            (Role::Worker, PeerService::Evaluates) => {
                self.notice_leave(is_fault, format!("worker {id} no longer evaluates as {}: {reason}", peer.name));
            }
            (Role::Worker, _) => {}
            (Role::Launcher, _) => self.notice_leave(is_fault, format!("launcher {id} left: {reason}")),
            (Role::Relay, _) => self.notice_leave(is_fault, format!("relay {id} left: {reason}")),
            (Role::Client, _) => self.notice_leave(is_fault, format!("client {id} left: {reason}")),
            (Role::Viewer | Role::Operator, _) if is_fault => {
                self.notice_offence(format!("a dashboard was disconnected: {reason}"));
            }
            (Role::Viewer | Role::Operator, _) => {}
        }
        if role == Role::Worker {
            self.forget_asks(id);
            self.forget_inference(id);
        }
        self.effects.push_back(HubEffect::Left { id, peer: Box::new(peer), reason });
    }

    fn remove_from_run(&mut self, id: u32, is_fault: bool, reason: &str) {
        let now = self.now;
        if let Some(run) = self.state_mut() {
            run.group.handle_left(WorkerId(id), now);
            run.forget_worker(WorkerId(id));
            self.effects.push_back(HubEffect::WeightsApplied);
        }
        self.hung.remove(&id);
        let text = format!("worker {id} left: {reason}");
        self.log(id, u8::from(is_fault), &text);
        self.notice_leave(is_fault, text);
        self.broadcast(&Message::WorkerGone(WorkerGone { worker: id }));
    }

    /// Expels a peer; from here on the hub ignores anything that the peer has sent before.
    pub fn expel(&mut self, id: u32, reason: &str) {
        if let Some(peer) = self.peers.get(&id) {
            peer.link.expel(reason);
        }
        self.handle_left(id, PeerEnd { reason, is_fault: true, denied: None });
    }

    /// Expels peers whose token has been revoked or has expired, and was not replaced.
    pub fn expel_invalid(&mut self) {
        let table = self.tokens.table();
        let invalid = self.peers.iter().filter(|(_, peer)| !table.is_valid(peer.valid_by, self.seconds));
        let invalid: Vec<u32> = invalid.map(|(id, _)| *id).collect();
        invalid.into_iter().for_each(|id| self.expel(id, "its token is no longer valid"));
    }

    /// Dismisses a worker: it is sent a goodbye. A local one is not replaced, unless it leaves of its own accord.
    pub fn dismiss(&mut self, id: u32) {
        let Some(peer) = self.peers.get(&id) else { return };
        peer.link.close(CloseReason::Done, peer.leaving.as_deref().unwrap_or("the hub dismissed this worker"));
        let child = peer.child.filter(|_| peer.leaving.is_none());
        self.decide(child, ChildFate::Dismissed);
    }

    /// Returns the worker that evaluates under this name, if there is one.
    pub(super) fn evaluator(&self, name: &str) -> Option<u32> {
        let mut evaluators = self.peers.iter().filter(|(_, peer)| peer.service == PeerService::Evaluates);
        evaluators.find(|(_, peer)| peer.name == name).map(|(id, _)| *id)
    }

    /// Returns whether a worker may evaluate under its name: the name is free, or a browser tab holds it and the worker's
    /// own token was not given to a page. A tab may not take a name that another token has used, since requests for that
    /// worker would reach the tab instead.
    fn may_have_name(&self, Accepted { name, token, .. }: &Accepted) -> bool {
        let is_of_page = self.tokens.is_of_page(*token);
        let holder = self.evaluator(name).and_then(|id| self.peers.get(&id));
        let is_free = holder.is_none_or(|holder| !is_of_page && self.tokens.is_of_page(holder.token));
        is_free && !(is_of_page && self.reserved_names.contains(name))
    }

    /// Gives a worker its name, and expels a browser tab that holds it.
    fn take_name(&mut self, Accepted { name, token, .. }: &Accepted) {
        if let Some(id) = self.evaluator(name) {
            self.expel(id, "a worker that no page started has its name now");
        }
        if !self.tokens.is_of_page(*token) && self.reserved_names.len() < MAX_RESERVED_NAMES {
            self.reserved_names.insert(name.clone());
        }
    }
}

/// Returns why a peer was refused, without any text that the peer sent.
fn why(refused: &Refused) -> &'static str {
    match RefusalCode::try_from(refused.code) {
        Ok(RefusalCode::ProtocolVersion) => "protocol version",
        Ok(RefusalCode::Fingerprint) => "fingerprint",
        Ok(RefusalCode::Token) => "token",
        Ok(RefusalCode::Malformed) => "no Hello",
        Ok(RefusalCode::Busy) => "busy",
        Ok(RefusalCode::NameTaken) => "name taken",
        Err(_) => "other",
    }
}

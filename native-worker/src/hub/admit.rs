//! Admits, introduces and removes peers.

use std::{collections::BTreeSet, net::SocketAddr};

use rollmesh_core::{
    hub::Offences,
    ids::WorkerId,
    protocol::{
        INITIAL_CREDIT, Message, RefusalCode, Role,
        handshake::{Accepted, PeerService, busy, check_hello, name_taken, no_token},
        message::{Refused, Welcome},
    },
};

use super::{
    actor::{Actor, Peer},
    audit::Record,
    calls::WorkerNews,
    departure::Departure,
    launchers::LauncherKey,
    limits::MAX_PEERS,
    link::{CloseReason, PeerLink},
    peer::{Admission, Knock},
    token_file,
};

impl Actor {
    pub(super) fn answer(&mut self, knock: Knock) {
        let verdict = if self.peers.len() >= MAX_PEERS {
            Err(busy("the hub has as many peers as it takes; try again later"))
        } else {
            let (tokens, now) = (self.tokens.table(), token_file::now());
            check_hello(&knock.hello, tokens, now, self.fingerprint).and_then(|accepted| match accepted.role {
                Role::Worker if self.is_leaving => Err(busy("the hub is about to end")),
                // The token is worth nothing to another process.
                Role::Worker if !self.launchers.may_join(accepted.token, accepted.resume) => Err(no_token()),
                Role::Launcher if self.launchers.is_present(&LauncherKey::of(&accepted)) => {
                    Err(busy("a launcher with this token and name is connected; give this one another --name"))
                }
                Role::Worker if accepted.service == PeerService::Evaluates && !self.may_have_name(&accepted) => {
                    Err(name_taken(&accepted.name))
                }
                _ => Ok(accepted),
            })
        };
        let from = knock.from;
        if let Err(refused) = &verdict {
            self.remember(&Record::Refused { from, why: why(refused) });
        }
        let answer = verdict.map(|accepted| {
            if accepted.service == PeerService::Evaluates {
                self.take_name(&accepted);
            }
            self.admit(accepted, from, knock.link)
        });
        match &answer {
            Ok(admission) => self.introduce(admission.peer),
            Err(Refused { reason, .. }) => self.notice_offence(format!("a peer was refused: {reason}")),
        }
        // A peer that has disconnected meanwhile is removed as soon as its task notices; without a task, remove it here.
        if let Err(Ok(Admission { peer, .. })) = knock.answer.send(answer) {
            self.forget(peer, &Departure::expelled("its connection is gone"));
        }
    }

    pub(super) fn admit(&mut self, accepted: Accepted, from: SocketAddr, link: PeerLink) -> Admission {
        let peer = self.next_peer;
        self.next_peer += 1;
        let Accepted { protocol, role, token, child, resume, kind, name, device, service } = accepted;
        self.remember(&Record::Admitted { from, peer, role, token, kind: kind.clone(), name: name.clone() });
        let resume_id = resume.unwrap_or_else(random_id);
        if self.launchers.joined(token, resume_id) {
            self.tokens.keep(token);
        }
        let server = concat!("rollmesh ", env!("CARGO_PKG_VERSION")).into();
        let welcome = Welcome { protocol, peer, resume_id, credit: INITIAL_CREDIT, server };
        // Queued before the actor registers the peer, so that nothing can be sent before the welcome. It is small.
        let _ = link.send(&Message::Welcome(welcome));
        let (leaving, is_up_to_date, has_missed) = (None, false, false);
        let (admitted_at, has_delivered) = (self.now(), false);
        let is_spare = child.is_some_and(|child| self.children.is_spare(child));
        let newcomer = Peer {
            role,
            link,
            kind,
            name,
            device,
            launcher: self.launchers.name(token).unwrap_or_default(),
            child,
            service,
            is_spare,
            token,
            leaving,
            admitted_at,
            has_delivered,
            is_up_to_date,
            has_missed,
            calls: BTreeSet::new(),
            offences: Offences::default(),
        };
        self.peers.insert(peer, newcomer);
        child.into_iter().for_each(|child| self.children.is_connected_as(child, peer));
        Admission { peer, role }
    }

    /// Sends a new peer its initial state and puts it to use.
    pub(super) fn introduce(&mut self, id: u32) {
        let Some(newcomer) = self.peers.get(&id) else { return };
        let (joined, Peer { role, kind, name, device, .. }) = (newcomer.joined(id), newcomer);
        match role {
            Role::Viewer | Role::Operator => self.show_everything(id),
            // A spare worker is not announced before it has a place.
            Role::Worker if newcomer.is_spare => {}
            Role::Worker if newcomer.service == PeerService::Evaluates => {
                self.notice_coming(format!("worker {id} evaluates as {name} ({kind}, {device})"));
            }
            Role::Worker if newcomer.service == PeerService::Asks => {}
            Role::Worker => {
                let text = format!("worker {id} joined: {name} ({kind}, {device})");
                self.log(id, 0, &text);
                self.notice_coming(text);
                self.tell(joined);
                self.bring_into_run(id);
            }
            Role::Launcher => self.notice_coming(format!("launcher {id} joined: {name} ({kind})")),
            // The client's socket task sends it what it needs to know.
            Role::Client => self.notice_coming(format!("client {id} joined: {name} ({kind})")),
        }
    }

    pub(super) fn forget(&mut self, id: u32, departure: &Departure) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.monitoring.forget_host(id);
        let Departure { reason, is_fault, denied, .. } = departure;
        if let Some(kind) = *denied {
            self.remember(&Record::Denied { peer: id, role: peer.role, kind });
        }
        self.remember(&Record::Left { peer: id, role: peer.role, fault: is_fault.then(|| reason.clone()) });
        let Departure { reason, is_fault, .. } = departure;
        let reason = peer.leaving.as_ref().filter(|_| !is_fault).unwrap_or(reason);
        if peer.role == Role::Worker {
            self.forget_asks(id);
        }
        if peer.service != PeerService::Runs {
            if peer.service == PeerService::Evaluates {
                self.notice_leave(*is_fault, format!("worker {id} no longer evaluates as {}: {reason}", peer.name));
            }
        } else if peer.is_spare {
            // Its process has exited, reconnects, or hangs.
            if let Some(child) = peer.child {
                self.look_after(child);
            }
        } else if peer.role == Role::Worker {
            let now = self.now();
            self.left_bytes += peer.link.received_bytes();
            if let Some(run) = &mut self.run {
                run.state.group.handle_left(WorkerId(id), now);
                run.state.forget_worker(WorkerId(id));
            }
            self.note_applied();
            self.dashboard.forget_worker(id);
            self.hung.remove(&id);
            if let Some(child) = peer.child {
                self.look_after(child);
            }
            self.tell(WorkerNews::Left { peer: id, reason: reason.clone() });
            let text = format!("worker {id} left: {reason}");
            self.log(id, u8::from(*is_fault), &text);
            self.notice_leave(*is_fault, text);
            self.broadcast_gone(id);
        } else if peer.role == Role::Launcher {
            self.launchers.handle_lost(id);
            self.notice_leave(*is_fault, format!("launcher {id} left: {reason}"));
        } else if peer.role == Role::Client {
            self.notice_leave(*is_fault, format!("client {id} left: {reason}"));
        } else if *is_fault {
            self.notice_offence(format!("a dashboard was disconnected: {reason}"));
        }
    }

    pub(super) fn dismiss(&mut self, id: u32) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (reason, child) = (peer.leaving.as_deref(), peer.child);
        peer.link.close(CloseReason::Done, reason.unwrap_or("the hub dismissed this worker"));
        // A worker that leaves of its own accord is replaced.
        if let Some(child) = child.filter(|_| reason.is_none()) {
            self.children.dismiss(child);
        }
    }

    /// Expels peers whose token has been revoked or has expired.
    pub(super) fn expel_invalid(&mut self) {
        if let Err(error) = self.tokens.follow() {
            self.notice(2, error.to_string());
        }
        let (now, table) = (token_file::now(), self.tokens.table());
        let invalid = self.peers.iter().filter(|(_, peer)| !table.is_valid(peer.token, now));
        let invalid: Vec<u32> = invalid.map(|(id, _)| *id).collect();
        for id in invalid {
            const REASON: &str = "its token is no longer valid";
            if let Some(peer) = self.peers.get(&id) {
                peer.link.expel(REASON);
            }
            // From here on the hub ignores anything the peer sent before.
            self.forget(id, &Departure::expelled(REASON));
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

/// Returns a random id for a session. It is no secret: without randomness it is all zeros, which resumes nothing.
pub(super) fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    if getrandom::fill(&mut id).is_err() {
        id = [0; 16];
    }
    id
}

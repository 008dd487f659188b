//! The evaluation workers of the simulated hub, which programs find by name, and the programs that request evaluations.

use std::collections::{BTreeMap, VecDeque};

use rollmesh_core::{
    evaluation::EvaluationRequest,
    ids::WorkerId,
    protocol::{
        AskOutcome, Message, Role, Token, TokenGrant,
        handshake::{Identity, PeerService},
        message::{Ask, AskCancel, Call, CallProgress, CallResult},
    },
    time::Micros,
    worker::WorkerCommand,
};

use super::{Event, Plant, RunEvent, RunSim, ask_rules::ANSWERED_WITHIN, link::SimLink};

/// The evaluation workers and, after them, the programs that request evaluations.
#[derive(Debug, Default)]
pub(super) struct SimAsks {
    peers: Vec<AskPeer>,
    /// The program and the number of each request, by its body.
    bodies: BTreeMap<Vec<u8>, (usize, u64)>,
    /// The program of each request that is neither answered nor cancelled, and the time of the request.
    open: BTreeMap<u64, (usize, Micros)>,
}

#[derive(Debug, Default)]
struct AskPeer {
    /// The id of the peer, and the hub's end of its connection.
    connection: Option<(u32, SimLink)>,
    /// The arrival times of the latest messages at the peer and at the hub, since a connection preserves their order.
    arrivals: [Micros; 2],
    /// The evaluations of a worker; the first one is in progress.
    calls: VecDeque<Call>,
    /// The number of evaluations begun, by which the end of a cancelled one is recognised.
    begun: u64,
}

fn token_of(index: usize) -> Token {
    Token::new([150 + index as u8; 32])
}

fn name_of(evaluator: usize) -> String {
    format!("evaluator-{evaluator}")
}

impl RunSim {
    /// Connects evaluation workers and programs.
    pub(super) fn connect_all_asks(&mut self) {
        for index in 0..self.scenario.evaluators + self.scenario.askers {
            self.asks.peers.push(AskPeer::default());
            let grant = TokenGrant { role: Role::Worker, child: None, expires: None };
            self.hub.core.tokens.add(&token_of(index), grant);
            self.connect_ask_peer(index);
        }
        for (at, asker) in self.scenario.asks.clone() {
            self.after(at, Event::AskNext(self.scenario.evaluators + asker));
        }
    }

    fn is_evaluator(&self, index: usize) -> bool {
        index < self.scenario.evaluators
    }

    /// Connects an evaluation worker or a program.
    pub(super) fn connect_ask_peer(&mut self, index: usize) {
        if self.asks.peers[index].connection.is_some() {
            return;
        }
        let service = if self.is_evaluator(index) { PeerService::Evaluates } else { PeerService::Asks };
        let identity = Identity::new(Role::Worker, token_of(index), "native", &name_of(index), "cpu");
        let Message::Hello(hello) = (Identity { service, ..identity }).hello() else { return };
        let Ok(accepted) = self.hub.core.check(&hello) else {
            // The hub has not yet detected the loss of the earlier connection, or is about to exit.
            return self.after(Micros::from_secs(1), Event::ConnectAskPeer(index));
        };
        let link = SimLink::default();
        let peer = self.hub.admit(accepted, link.clone(), [150 + index as u8; 16], String::new());
        self.asks.peers[index].connection = Some((peer, link));
    }

    /// Sends a request of a program to an evaluation worker, and sometimes schedules its cancellation.
    pub(super) fn ask_next(&mut self, index: usize) {
        if self.asks.peers[index].connection.is_none() || self.scenario.evaluators == 0 {
            return;
        }
        let ask = self.asks.bodies.len() as u64 + 1;
        let evaluator = self.dice.between(0, self.scenario.evaluators as u64 - 1) as usize;
        let request = EvaluationRequest::new(ask as u32);
        let command = WorkerCommand::Evaluate { weights: None, request };
        let body = command.encode().expect("a small command");
        self.asks.bodies.insert(body.clone(), (index, ask));
        self.asks.open.insert(ask, (index, self.now));
        self.record(RunEvent::AskSent { asker: index, evaluator, ask });
        self.send_from_ask_peer(index, Message::Ask(Ask { ask, name: name_of(evaluator), body }));
        if self.dice.chance(300) {
            let delay = self.dice.within_ms(1_000);
            self.after(delay, Event::CancelAsk { index, ask });
        }
    }

    pub(super) fn cancel_ask(&mut self, index: usize, ask: u64) {
        if self.asks.peers[index].connection.is_some() {
            self.asks.open.remove(&ask);
            self.record(RunEvent::AskCancelled { ask });
            self.send_from_ask_peer(index, Message::AskCancel(AskCancel { ask }));
        }
    }

    /// Returns true while a program waits for an answer that is not overdue.
    pub(super) fn awaits_answer(&self) -> bool {
        self.asks.open.values().any(|(_, sent_at)| self.now <= *sent_at + ANSWERED_WITHIN)
    }

    fn delay_of_ask_peer(&mut self, index: usize, end: usize) -> Micros {
        let arrives = self.now + self.delay();
        let last = &mut self.asks.peers[index].arrivals[end];
        *last = arrives.max(*last);
        last.since(self.now)
    }

    fn send_from_ask_peer(&mut self, index: usize, message: Message) {
        if let Some(peer) = self.asks.peers[index].connection.as_ref().map(|(peer, _)| *peer) {
            let delay = self.delay_of_ask_peer(index, 1);
            self.after(delay, Event::FromAskPeer { crashes: self.hub.crashes, peer, message });
        }
    }

    pub(super) fn hub_receives_from_ask_peer(&mut self, peer: u32, message: Message) {
        let left = self.hub.core.handle_message(peer, message);
        assert_eq!(left, None, "the shell has no part in it");
    }

    /// Sends what the hub has queued for evaluation workers and programs.
    pub(super) fn deliver_to_ask_peers(&mut self) {
        for index in 0..self.asks.peers.len() {
            let Some((peer, link)) = self.asks.peers[index].connection.clone() else { continue };
            while let Some(message) = link.poll() {
                let is_lost = match &message {
                    Message::Asked(_) => self.scenario.plant == Some(Plant::LoseAnswers),
                    Message::CallCancel(_) => self.scenario.plant == Some(Plant::LoseCancels),
                    _ => false,
                };
                if !is_lost {
                    let delay = self.delay_of_ask_peer(index, 0);
                    self.after(delay, Event::ToAskPeer { crashes: self.hub.crashes, peer, index, message });
                }
            }
            if link.is_closed() {
                self.lose_ask_peer(index);
            }
        }
    }

    pub(super) fn ask_peer_receives(&mut self, index: usize, peer: u32, message: Message) {
        let peers = &mut self.asks.peers;
        if peers[index].connection.as_ref().is_none_or(|(id, _)| *id != peer) {
            return;
        }
        match message {
            Message::Call(call) => {
                peers[index].calls.push_back(call);
                if peers[index].calls.len() == 1 {
                    self.begin_call(index);
                }
            }
            Message::CallCancel(cancel) => {
                let is_it = |call: &Call| call.call == cancel.call;
                let Some(at) = peers[index].calls.iter().position(is_it) else { return };
                peers[index].calls.remove(at);
                self.answer_call(index, CallResult { call: cancel.call, ok: false, body: Vec::new() });
                if at == 0 {
                    self.begin_call(index);
                }
            }
            Message::Asked(asked) => {
                let outcome = AskOutcome::try_from(asked.outcome).expect("an outcome of the hub");
                let is_own = self.asks.bodies.get(&asked.body) == Some(&(index, asked.ask));
                self.asks.open.remove(&asked.ask);
                self.record(RunEvent::AskAnswered { ask: asked.ask, outcome, is_own });
            }
            _ => {}
        }
    }

    fn begin_call(&mut self, index: usize) {
        let peer = &mut self.asks.peers[index];
        peer.begun += 1;
        let begun = peer.begun;
        if let Some(call) = peer.calls.front().map(|call| call.call) {
            self.send_from_ask_peer(index, Message::CallProgress(CallProgress { call }));
            let took = self.dice.within_ms(1_500);
            self.after(took, Event::CallDone { index, begun });
        }
    }

    /// Finishes an evaluation of an evaluation worker.
    pub(super) fn finish_call(&mut self, index: usize, begun: u64) {
        if self.asks.peers[index].begun != begun {
            return;
        }
        let Some(Call { call, body }) = self.asks.peers[index].calls.pop_front() else { return };
        let (_, ask) = self.asks.bodies[&body];
        self.record(RunEvent::AskEvaluated { ask });
        self.answer_call(index, CallResult { call, ok: true, body });
        self.begin_call(index);
    }

    fn answer_call(&mut self, index: usize, result: CallResult) {
        self.send_from_ask_peer(index, Message::CallResult(result));
    }

    /// Breaks the connection of a random evaluation worker or program.
    pub(super) fn break_ask_peer(&mut self) {
        if !self.asks.peers.is_empty() {
            let index = self.dice.between(0, self.asks.peers.len() as u64 - 1) as usize;
            self.lose_ask_peer(index);
        }
    }

    fn lose_ask_peer(&mut self, index: usize) {
        let is_evaluator = self.is_evaluator(index);
        let peer = &mut self.asks.peers[index];
        let Some((id, _)) = peer.connection.take() else { return };
        peer.begun += 1;
        peer.calls.clear();
        self.asks.open.retain(|_, (asker, _)| *asker != index);
        self.record(if is_evaluator {
            RunEvent::EvaluatorLost { evaluator: index }
        } else {
            RunEvent::AskerLost { asker: index }
        });
        let (noticed, back) = (self.dice.within_ms(3_000), self.dice.within_ms(3_000));
        self.after(noticed, Event::Lost { worker: WorkerId(id), crashes: self.hub.crashes });
        self.after(back, Event::ConnectAskPeer(index));
    }

    /// Breaks the connections of all evaluation workers and programs, as the hub's process exits.
    pub(super) fn crash_ask_peers(&mut self) {
        (0..self.asks.peers.len()).for_each(|index| self.lose_ask_peer(index));
    }
}

//! Evaluators: who has which name, and bytes between those who serve and those who ask.

use rollmesh_core::protocol::{
    Message, Role,
    message::{
        EvaluatorBytes, EvaluatorFound, EvaluatorGone, EvaluatorName, EvaluatorTaken, MAX_EVALUATOR_BYTES,
        MAX_EVALUATOR_NAME_BYTES,
    },
};

use super::{actor::Actor, limits::MAX_EVALUATOR_BACKLOG_BYTES};

impl Actor {
    pub(super) fn name_evaluator(&mut self, peer: u32, wish: EvaluatorName) {
        let EvaluatorName { name, serves } = wish;
        let owner = self.evaluators.get(&name).copied();
        let is_name =
            (1..=MAX_EVALUATOR_NAME_BYTES).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
        let found = match owner {
            Some(owner) if !serves || owner == peer => owner,
            None if serves && is_name && !self.serves(peer) => {
                self.notice(0, format!("evaluator {peer} serves as {name}"));
                self.evaluators.insert(name.clone(), peer);
                peer
            }
            Some(_) | None => 0,
        };
        self.tell_evaluator(peer, &Message::EvaluatorFound(EvaluatorFound { name, peer: found }));
    }

    pub(super) fn pass_bytes(&mut self, from: u32, bytes: EvaluatorBytes) {
        let EvaluatorBytes { peer: to, data } = bytes;
        if data.is_empty() || data.len() > MAX_EVALUATOR_BYTES {
            return;
        }
        self.pass(from, to, &Message::EvaluatorBytes(EvaluatorBytes { peer: from, data }));
    }

    pub(super) fn pass_taken(&mut self, from: u32, taken: EvaluatorTaken) {
        let EvaluatorTaken { peer: to, bytes } = taken;
        self.pass(from, to, &Message::EvaluatorTaken(EvaluatorTaken { peer: from, bytes }));
    }

    /// Only those who ask and those who serve have anything to say to each other.
    fn pass(&mut self, from: u32, to: u32, message: &Message) {
        let is_there = self.peers.get(&to).is_some_and(|peer| peer.role == Role::Evaluator);
        if is_there && self.serves(from) != self.serves(to) {
            self.tell_evaluator(to, message);
        } else {
            self.tell_evaluator(from, &Message::EvaluatorGone(EvaluatorGone { peer: to }));
        }
    }

    /// One has left. Whoever had to do with it hears of it.
    pub(super) fn forget_evaluator(&mut self, gone: u32) {
        self.evaluators.retain(|_, owner| *owner != gone);
        let others = self.peers.iter().filter(|(_, peer)| peer.role == Role::Evaluator);
        let others: Vec<u32> = others.map(|(id, _)| *id).collect();
        let message = Message::EvaluatorGone(EvaluatorGone { peer: gone });
        others.into_iter().for_each(|other| self.tell_evaluator(other, &message));
    }

    fn serves(&self, peer: u32) -> bool {
        self.evaluators.values().any(|owner| *owner == peer)
    }

    fn tell_evaluator(&self, peer: u32, message: &Message) {
        let Some(peer) = self.peers.get(&peer) else { return };
        if peer.link.queued_bytes() > MAX_EVALUATOR_BACKLOG_BYTES {
            return peer.link.expel("it takes nothing of what others say to it");
        }
        // Each of these fits.
        let _ = peer.link.send(message);
    }
}

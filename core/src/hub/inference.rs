//! Forwards rows of workers that sample to those that act for them, and the outputs back.

use super::{Connection, Hub, HubRun, IN_PROCESS_SERVER, limits::MAX_INFERS};
use crate::{
    ids::WorkerId,
    prelude::*,
    protocol::{
        InabilityKind, Message,
        message::{Infer, Inferred, RunAnswer},
    },
    run::Inference as Place,
};

/// The workers that act for others in the current run, and the requests that have not been answered.
#[derive(Debug, Default)]
pub(super) struct Inference {
    latest: u64,
    servers: BTreeSet<u32>,
    open: BTreeMap<u64, OpenInfer>,
}

/// A request. It is kept until it is answered, since the worker that has it may disconnect.
#[derive(Debug)]
struct OpenInfer {
    from: u32,
    to: Option<u32>,
    request: Infer,
}

impl<C: Connection, R: HubRun> Hub<C, R> {
    /// Returns whether a worker acts for others in the current run.
    pub fn acts_for_others(&self, worker: u32) -> bool {
        self.inference.servers.contains(&worker)
    }

    /// Returns whether the current run wants a worker that acts for others, and none does but perhaps the hub's own.
    pub fn needs_own_server(&self) -> bool {
        let is_wanted = self
            .state()
            .is_some_and(|run| !run.is_over() && !run.is_local() && run.config().inference == Place::Server);
        let is_own = |id: &u32| self.peers.get(id).is_some_and(|peer| peer.child == Some(IN_PROCESS_SERVER));
        is_wanted && self.inference.servers.iter().all(is_own)
    }

    /// Takes a worker that answers that it acts for others out of the group, which leases slots. Returns false for another
    /// answer, and for an untrusted worker, whose outputs would be in the rows of all.
    pub(super) fn take_server(&mut self, worker: u32, answer: &RunAnswer) -> bool {
        if answer.code != InabilityKind::ActsForOthers.to_wire() || self.principal(worker).is_some() {
            return false;
        }
        let now = self.now;
        let run = self.current().map(R::state_mut).filter(|run| run.config().inference == Place::Server);
        let Some(run) = run.filter(|run| run.number() == answer.run) else { return false };
        run.group.handle_left(WorkerId(worker), now);
        self.log(worker, 0, "it acts for the other workers of the run");
        self.inference.servers.insert(worker);
        let waiting: Vec<u64> =
            self.inference.open.iter().filter(|(_, open)| open.to.is_none()).map(|(&number, _)| number).collect();
        waiting.into_iter().for_each(|number| self.assign(number));
        true
    }

    pub(super) fn infer(&mut self, from: u32, request: Infer) {
        let is_wanted = self.current().is_some_and(|run| run.state().config().inference == Place::Server);
        let refused = match self.inference.open.values().filter(|open| open.from == from).count() {
            _ if !is_wanted => Some("the hub has no run in which workers act for others"),
            MAX_INFERS.. => Some("too many rows of this worker wait for their outputs"),
            _ => None,
        };
        if let Some(reason) = refused {
            return self.answer_infer(from, Inferred::failed(&request, reason));
        }
        self.inference.latest += 1;
        let number = self.inference.latest;
        self.inference.open.insert(number, OpenInfer { from, to: None, request });
        self.assign(number);
    }

    /// Sends a request to the worker that has the fewest; without one it waits.
    fn assign(&mut self, number: u64) {
        let load = |server: u32| self.inference.open.values().filter(|open| open.to == Some(server)).count();
        let Some(to) = self.inference.servers.iter().copied().min_by_key(|&server| load(server)) else { return };
        let (Some(open), Some(peer)) = (self.inference.open.get_mut(&number), self.peers.get(&to)) else { return };
        open.to = Some(to);
        // With another number it is as large as it came.
        let _ = peer.link.send(&Message::Infer(Infer { ask: number, ..open.request.clone() }));
    }

    pub(super) fn handle_inferred(&mut self, server: u32, answer: Inferred) {
        if self.inference.open.get(&answer.ask).is_none_or(|open| open.to != Some(server)) {
            // The worker that asked may have disconnected. Only one that acts for others may answer at all.
            if !self.inference.servers.contains(&server) {
                self.count_offence(server);
            }
            return;
        }
        if let Some(OpenInfer { from, request, .. }) = self.inference.open.remove(&answer.ask) {
            self.answer_infer(from, Inferred { ask: request.ask, ..answer });
        }
    }

    /// Cleans up after a worker that disconnected.
    pub(super) fn forget_inference(&mut self, gone: u32) {
        self.inference.open.retain(|_, open| open.from != gone);
        self.release_server(gone);
    }

    /// Sends the requests of a worker that acts for others no more to other ones.
    pub(super) fn release_server(&mut self, gone: u32) {
        self.inference.servers.remove(&gone);
        let mut orphans = Vec::new();
        for (&number, open) in self.inference.open.iter_mut().filter(|(_, open)| open.to == Some(gone)) {
            open.to = None;
            orphans.push(number);
        }
        orphans.into_iter().for_each(|number| self.assign(number));
    }

    /// Answers what is open when the run ends.
    pub(super) fn end_inference(&mut self) {
        let Inference { open, latest, .. } = core::mem::take(&mut self.inference);
        self.inference.latest = latest;
        for OpenInfer { from, request, .. } in open.into_values() {
            self.answer_infer(from, Inferred::failed(&request, "the run is over"));
        }
    }

    fn answer_infer(&self, from: u32, answer: Inferred) {
        if let Some(peer) = self.peers.get(&from) {
            // The outputs fit into a message: they came in one, under another number.
            let _ = peer.link.send(&Message::Inferred(answer));
        }
    }
}

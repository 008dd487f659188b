//! Forwards rows of workers that sample to those that act for them, and the outputs back.

use super::{
    Hub, HubRun, IN_PROCESS_SERVER, PeerConnection,
    limits::{INFER_PATIENCE, MAX_INFER_BACKLOG_BYTES, MAX_INFER_BYTES, MAX_INFER_WAIT, MAX_INFERS},
};
use crate::{
    ids::{WeightsVersion, WorkerId},
    prelude::*,
    protocol::{
        InabilityKind, Message,
        message::{Infer, Inferred, RunAnswer},
    },
    run::Inference as Place,
    time::Micros,
};

/// Interval at which an open request is checked.
const CHECK_INTERVAL: Micros = Micros::from_secs(1);

/// The workers that act for others in the current run, and the requests that have not been answered.
#[derive(Debug, Default)]
pub(super) struct HubInference {
    latest: u64,
    servers: BTreeMap<u32, ActingWorker>,
    open: BTreeMap<u64, OpenInfer>,
    /// Bytes of the open requests.
    bytes: usize,
}

/// A worker that acts for others.
#[derive(Debug)]
struct ActingWorker {
    /// When it last answered.
    heard: Micros,
    /// The number of times that it answered nothing for too long.
    silences: u32,
    /// Gets no requests until it answers one.
    is_silent: bool,
}

impl ActingWorker {
    fn patience(&self) -> Micros {
        INFER_PATIENCE.times(1 << self.silences.min(3))
    }
}

/// A request. It is kept until it is answered, since the worker that has it may disconnect or hang.
#[derive(Debug)]
struct OpenInfer {
    from: u32,
    request: Infer,
    came: Micros,
    /// The worker that is to answer it, since when, and all that were asked: the first answer counts.
    to: Option<u32>,
    sent: Micros,
    asked: BTreeSet<u32>,
    /// When it is checked next.
    due: Micros,
}

impl HubInference {
    fn close(&mut self, number: u64) -> Option<OpenInfer> {
        let open = self.open.remove(&number)?;
        self.bytes -= open.request.num_bytes();
        Some(open)
    }

    fn numbers(&self, is_so: impl Fn(&OpenInfer) -> bool) -> Vec<u64> {
        self.open.iter().filter(|(_, open)| is_so(open)).map(|(&number, _)| number).collect()
    }
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Returns whether a worker acts for others in the current run.
    pub fn acts_for_others(&self, worker: u32) -> bool {
        self.inference.servers.contains_key(&worker)
    }

    /// Returns whether the current run requires a worker that acts for others, and none that answers does but perhaps
    /// the hub's own.
    pub fn needs_own_server(&self) -> bool {
        let is_wanted = self
            .state()
            .is_some_and(|run| !run.is_over() && !run.is_local() && run.config().inference == Place::Server);
        let is_own = |id: &u32| self.peers.get(id).is_some_and(|peer| peer.child == Some(IN_PROCESS_SERVER));
        is_wanted && self.inference.servers.iter().all(|(id, server)| server.is_silent || is_own(id))
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
        self.inference.servers.insert(worker, ActingWorker { heard: now, silences: 0, is_silent: false });
        self.peers.get_mut(&worker).into_iter().for_each(|peer| peer.has_acted = true);
        self.assign_waiting();
        true
    }

    pub(super) fn infer(&mut self, from: u32, request: Infer) {
        let run = self.current().map(R::state_mut).filter(|run| run.config().inference == Place::Server);
        let newest = run.map(|run| run.weights().version());
        let refused = match self.inference.open.values().filter(|open| open.from == from).count() {
            _ if newest.is_none() => Some("the hub has no run in which workers act for others"),
            // The rows would wait for ever.
            _ if newest < Some(WeightsVersion(request.version)) => Some("the run has no such weights yet"),
            MAX_INFERS.. => Some("too many rows of this worker wait for their outputs"),
            _ => None,
        };
        if let Some(reason) = refused {
            // Messages cross on the way, but not again and again.
            self.count_offence(from);
            return self.answer_infer(from, Inferred::failed(&request, reason));
        }
        let bytes = self.inference.bytes + request.num_bytes();
        if bytes > MAX_INFER_BYTES {
            return self
                .answer_infer(from, Inferred::failed(&request, "too many rows of all workers wait for their outputs"));
        }
        let (now, asked) = (self.now, BTreeSet::new());
        let open = OpenInfer { from, request, came: now, to: None, sent: now, asked, due: now + CHECK_INTERVAL };
        self.inference.bytes = bytes;
        self.inference.latest += 1;
        let number = self.inference.latest;
        self.inference.open.insert(number, open);
        self.assign(number);
    }

    fn assign_waiting(&mut self) {
        let waiting = self.inference.numbers(|open| open.to.is_none());
        waiting.into_iter().for_each(|number| self.assign(number));
    }

    /// Sends a request to the worker that has the fewest, of those that answer and take what they are sent; without one it
    /// waits.
    fn assign(&mut self, number: u64) {
        let load = |server: u32| self.inference.open.values().filter(|open| open.to == Some(server)).count();
        let takes =
            |id: u32| self.peers.get(&id).is_some_and(|peer| peer.link.queued_bytes() <= MAX_INFER_BACKLOG_BYTES);
        let answering = self.inference.servers.iter().filter(|(_, server)| !server.is_silent).map(|(&id, _)| id);
        let Some(to) = answering.filter(|&id| takes(id)).min_by_key(|&id| load(id)) else { return };
        let (Some(open), Some(peer)) = (self.inference.open.get_mut(&number), self.peers.get(&to)) else { return };
        (open.to, open.sent) = (Some(to), self.now);
        if open.asked.insert(to) {
            // With another number it is as large as it came.
            let _ = peer.link.send(&Message::Infer(Infer { ask: number, ..open.request.clone() }));
        }
    }

    pub(super) fn handle_inferred(&mut self, server: u32, answer: Inferred) {
        if self.peers.get(&server).is_none_or(|peer| !peer.has_acted) {
            return self.count_offence(server);
        }
        self.record_server(server);
        // A late answer of a worker that has lost the request to another one is as good, and the asking worker may have
        // disconnected.
        if self.inference.open.get(&answer.ask).is_none_or(|open| !open.asked.contains(&server)) {
            return;
        }
        if let Some(OpenInfer { from, request, .. }) = self.inference.close(answer.ask) {
            if answer.error.is_empty() {
                self.state_mut().into_iter().for_each(|run| run.inferred_rows += u64::from(request.rows));
            }
            self.answer_infer(from, Inferred { ask: request.ask, ..answer });
        }
    }

    fn record_server(&mut self, server: u32) {
        let Some(known) = self.inference.servers.get_mut(&server) else { return };
        known.heard = self.now;
        if core::mem::take(&mut known.is_silent) {
            self.log(server, 0, "it answers the other workers again");
            self.assign_waiting();
        }
    }

    /// Returns when an open request has to be checked.
    pub(super) fn inference_due(&self) -> Option<Micros> {
        self.inference.open.values().map(|open| open.due).min()
    }

    /// Checks the requests that are open for some time.
    pub(super) fn check_inference(&mut self) {
        let now = self.now;
        for number in self.inference.numbers(|open| open.due <= now) {
            self.check_infer(number);
        }
    }

    fn check_infer(&mut self, number: u64) {
        let now = self.now;
        let Some(open) = self.inference.open.get_mut(&number) else { return };
        open.due = now + CHECK_INTERVAL;
        let (from, to, sent) = (open.from, open.to, open.sent);
        if now.since(open.came) >= MAX_INFER_WAIT {
            let reason =
                format!("no worker that acts for others has answered within {} s", MAX_INFER_WAIT.0 / 1_000_000);
            let closed = self.inference.close(number);
            return closed
                .into_iter()
                .for_each(|open| self.answer_infer(from, Inferred::failed(&open.request, &reason)));
        }
        let server = to.and_then(|id| Some((id, self.inference.servers.get(&id)?)));
        let silence = server.map(|(id, server)| (id, now.since(server.heard.max(sent)), server.patience()));
        // The requesting worker has not failed, and others would wait as well.
        if silence.is_none_or(|(_, silence, _)| silence >= CHECK_INTERVAL) {
            self.state_mut().into_iter().for_each(|run| run.group.handle_waiting(WorkerId(from), now));
        }
        match silence {
            None => self.assign(number),
            Some((id, silence, patience)) if silence >= patience => self.pass_over(id, silence),
            Some(_) => {}
        }
    }

    /// Gives the requests of a worker that acts for others, and answers nothing, to other ones.
    fn pass_over(&mut self, server: u32, silence: Micros) {
        let Some(known) = self.inference.servers.get_mut(&server) else { return };
        (known.is_silent, known.silences) = (true, known.silences + 1);
        let seconds = silence.0 / 1_000_000;
        let text =
            format!("worker {server}, which acts for others, has answered nothing for {seconds} s: others act instead");
        self.log(server, 1, &text);
        self.notice(1, text);
        self.orphan(server);
    }

    /// Cleans up after a worker that disconnected.
    pub(super) fn forget_inference(&mut self, left: u32) {
        for number in self.inference.numbers(|open| open.from == left) {
            self.inference.close(number);
        }
        self.release_server(left);
    }

    /// Sends the requests of a worker that acts for others no more to other ones.
    pub(super) fn release_server(&mut self, left: u32) {
        self.inference.servers.remove(&left);
        self.orphan(left);
    }

    fn orphan(&mut self, server: u32) {
        let orphans = self.inference.numbers(|open| open.to == Some(server));
        for number in orphans {
            self.inference.open.get_mut(&number).into_iter().for_each(|open| open.to = None);
            self.assign(number);
        }
    }

    /// Answers what is open when the run ends.
    pub(super) fn end_inference(&mut self) {
        let HubInference { open, latest, .. } = core::mem::take(&mut self.inference);
        self.inference.latest = latest;
        for OpenInfer { from, request, .. } in open.into_values() {
            self.answer_infer(from, Inferred::failed(&request, "the run is over"));
        }
    }

    fn answer_infer(&self, from: u32, answer: Inferred) {
        let Some(peer) = self.peers.get(&from) else { return };
        if peer.link.queued_bytes() > MAX_INFER_BACKLOG_BYTES {
            return peer.link.expel("it takes no outputs");
        }
        // The outputs fit into a message: they came in one, under another number.
        let _ = peer.link.send(&Message::Inferred(answer));
    }
}

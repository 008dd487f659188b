//! Forwards workers' requests to evaluators, found by name, and their answers back.

use std::collections::BTreeMap;

use rollmesh_core::{
    protocol::{
        AskOutcome, Message,
        handshake::{Accepted, PeerService},
        message::{Ask, AskCancel, Asked, Call, CallCancel, CallResult},
    },
    worker::{CommandError, CommandErrorKind, WorkerCommand},
};

use super::{
    actor::Actor,
    departure::Departure,
    limits::{MAX_ASK_BACKLOG_BYTES, MAX_ASKS},
};

/// Requests that have not been answered yet, by call id.
#[derive(Debug, Default)]
pub(super) struct Asks {
    latest: u64,
    open: BTreeMap<u64, OpenAsk>,
}

#[derive(Clone, Copy, Debug)]
struct OpenAsk {
    from: u32,
    ask: u64,
    to: u32,
}

impl Asks {
    /// Removes and returns the requests that match the predicate.
    fn close(&mut self, is_so: impl Fn(&OpenAsk) -> bool) -> Vec<(u64, OpenAsk)> {
        let closed: Vec<_> =
            self.open.iter().filter(|(_, open)| is_so(open)).map(|(call, open)| (*call, *open)).collect();
        closed.iter().for_each(|(call, _)| _ = self.open.remove(call));
        closed
    }
}

/// Maximum number of names reserved because another token used them; browser tabs may not use reserved names.
const MAX_RESERVED_NAMES: usize = 1_024;

impl Actor {
    /// Returns whether a worker may evaluate under its name: the name is free, or a browser tab holds it and the worker's
    /// own token was not given to a page. A tab may not take a name that another token has used, since requests for that
    /// worker would reach the tab instead.
    pub(super) fn may_have_name(&self, Accepted { name, token, .. }: &Accepted) -> bool {
        let is_of_page = self.tokens.is_of_page(*token);
        let holder = self.evaluator(name).and_then(|id| self.peers.get(&id));
        let is_free = holder.is_none_or(|holder| !is_of_page && self.tokens.is_of_page(holder.token));
        is_free && !(is_of_page && self.reserved_names.contains(name))
    }

    /// Gives a worker its name, and expels a browser tab that holds it.
    pub(super) fn take_name(&mut self, Accepted { name, token, .. }: &Accepted) {
        const REASON: &str = "a worker that no page started has its name now";
        if let Some(id) = self.evaluator(name) {
            self.peers.get(&id).into_iter().for_each(|holder| holder.link.expel(REASON));
            self.forget(id, &Departure::expelled(REASON));
        }
        if !self.tokens.is_of_page(*token) && self.reserved_names.len() < MAX_RESERVED_NAMES {
            self.reserved_names.insert(name.clone());
        }
    }

    /// Returns the worker that evaluates under this name, if there is one.
    pub(super) fn evaluator(&self, name: &str) -> Option<u32> {
        let mut evaluators = self.peers.iter().filter(|(_, peer)| peer.service == PeerService::Evaluates);
        evaluators.find(|(_, peer)| peer.name == name).map(|(id, _)| *id)
    }

    pub(super) fn ask(&mut self, from: u32, Ask { ask, name, body }: Ask) {
        let Some(to) = self.evaluator(&name) else {
            return self.answer_ask(from, ask, AskOutcome::UnknownName, Vec::new());
        };
        if body.is_empty() {
            return self.answer_ask(from, ask, AskOutcome::Done, body);
        }
        if let Err(error) = self.pass_on(from, ask, to, body) {
            self.answer_ask(from, ask, AskOutcome::Failed, error.encode());
        }
    }

    fn pass_on(&mut self, from: u32, ask: u64, to: u32, body: Vec<u8>) -> Result<(), CommandError> {
        let refused = |kind, why: &str| Err(CommandError::new(kind, why));
        if self.peers.get(&from).is_none_or(|peer| peer.service != PeerService::Asks) {
            return refused(CommandErrorKind::Unhealthy, "this worker did not say that it asks others");
        }
        if self.peers.get(&from).is_none_or(|peer| self.tokens.is_of_page(peer.token)) {
            return refused(CommandErrorKind::Unhealthy, "the token of a page is not good for asking other workers");
        }
        if !WorkerCommand::is_for_others(&body) {
            return refused(CommandErrorKind::Malformed, "only evaluations can be asked of other workers");
        }
        if self.asks.open.values().filter(|open| open.from == from).count() >= MAX_ASKS {
            return refused(CommandErrorKind::Busy, "too much is asked by one worker");
        }
        if self.peers.get(&to).is_some_and(|known| known.link.queued_bytes() > MAX_ASK_BACKLOG_BYTES) {
            return refused(CommandErrorKind::Busy, "the worker does not take what it is asked: try again later");
        }
        self.asks.latest += 1;
        let call = self.asks.latest;
        self.call(to, call, &Message::Call(Call { call, body }))?;
        self.asks.open.insert(call, OpenAsk { from, ask, to });
        Ok(())
    }

    /// Forwards the answer of a call to the handle that asked; answers of cancelled calls are dropped.
    pub(super) fn handle_asked(&mut self, CallResult { call, ok, body }: CallResult) {
        if let Some(OpenAsk { from, ask, .. }) = self.asks.open.remove(&call) {
            self.answer_ask(from, ask, if ok { AskOutcome::Done } else { AskOutcome::Failed }, body);
        }
    }

    pub(super) fn cancel_ask(&mut self, from: u32, AskCancel { ask }: AskCancel) {
        let cancelled = self.asks.close(|open| open.from == from && open.ask == ask);
        self.cancel_calls(cancelled);
    }

    /// Cleans up after a peer that disconnected: cancels its own requests and answers those addressed to it with `Left`.
    pub(super) fn forget_asks(&mut self, gone: u32) {
        let cancelled = self.asks.close(|open| open.from == gone);
        self.cancel_calls(cancelled);
        for (_, open) in self.asks.close(|open| open.to == gone) {
            self.answer_ask(open.from, open.ask, AskOutcome::Left, Vec::new());
        }
    }

    fn cancel_calls(&self, calls: Vec<(u64, OpenAsk)>) {
        for (call, open) in calls {
            let link = self.peers.get(&open.to).map(|peer| &peer.link);
            // The message is small.
            link.into_iter().for_each(|link| _ = link.send(&Message::CallCancel(CallCancel { call })));
        }
    }

    fn answer_ask(&self, from: u32, ask: u64, outcome: AskOutcome, body: Vec<u8>) {
        let Some(peer) = self.peers.get(&from) else { return };
        if peer.link.queued_bytes() > MAX_ASK_BACKLOG_BYTES {
            return peer.link.expel("it takes no answers");
        }
        // The body fits: its cap equals that of a result.
        let _ = peer.link.send(&Message::Asked(Asked { ask, outcome: outcome.to_wire(), body }));
    }
}

//! What workers ask of those that evaluate, by their names, and what comes of it.

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

/// The asks that have no answer, by their calls.
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
    /// Closes those of which something is so.
    fn close(&mut self, is_so: impl Fn(&OpenAsk) -> bool) -> Vec<(u64, OpenAsk)> {
        let closed: Vec<_> =
            self.open.iter().filter(|(_, open)| is_so(open)).map(|(call, open)| (*call, *open)).collect();
        closed.iter().for_each(|(call, _)| _ = self.open.remove(call));
        closed
    }
}

/// Names that pages may not have, since another token had them: the first so many.
const MAX_RESERVED_NAMES: usize = 1_024;

impl Actor {
    /// Returns whether a worker may evaluate under its name: nothing else does, or only a tab where the worker's own token was not
    /// given to a page. A tab may not have a name that another token had: it would be asked in the place of that worker.
    pub(super) fn may_have_name(&self, Accepted { name, token, .. }: &Accepted) -> bool {
        let is_of_page = self.tokens.is_of_page(*token);
        let holder = self.evaluator(name).and_then(|id| self.peers.get(&id));
        let is_free = holder.is_none_or(|holder| !is_of_page && self.tokens.is_of_page(holder.token));
        is_free && !(is_of_page && self.reserved_names.contains(name))
    }

    /// Gives a worker its name, in the place of a tab that has it.
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

    /// Whether a worker evaluates under this name, and which.
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
        let Some(known) = self.peers.get_mut(&to) else { return Ok(()) };
        if known.link.queued_bytes() > MAX_ASK_BACKLOG_BYTES {
            return refused(CommandErrorKind::Busy, "the worker does not take what it is asked: try again later");
        }
        self.asks.latest += 1;
        let call = self.asks.latest;
        // Before anything of it is sent: the answer may come at once.
        known.link.note_call();
        if let Err(error) = known.link.send(&Message::Call(Call { call, body })) {
            known.link.note_result();
            return refused(CommandErrorKind::TooLarge, &error.to_string());
        }
        known.calls.insert(call);
        self.asks.open.insert(call, OpenAsk { from, ask, to });
        Ok(())
    }

    /// Returns the answer of a call to the handle that has asked; that of a cancelled call is dropped.
    pub(super) fn handle_asked(&mut self, CallResult { call, ok, body }: CallResult) {
        if let Some(OpenAsk { from, ask, .. }) = self.asks.open.remove(&call) {
            self.answer_ask(from, ask, if ok { AskOutcome::Done } else { AskOutcome::Failed }, body);
        }
    }

    pub(super) fn cancel_ask(&mut self, from: u32, AskCancel { ask }: AskCancel) {
        let cancelled = self.asks.close(|open| open.from == from && open.ask == ask);
        self.cancel_calls(cancelled);
    }

    /// A peer has left: what it has asked for is cancelled, and what it was asked is answered with `Left`.
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
            // It is small.
            link.into_iter().for_each(|link| _ = link.send(&Message::CallCancel(CallCancel { call })));
        }
    }

    fn answer_ask(&self, from: u32, ask: u64, outcome: AskOutcome, body: Vec<u8>) {
        let Some(peer) = self.peers.get(&from) else { return };
        if peer.link.queued_bytes() > MAX_ASK_BACKLOG_BYTES {
            return peer.link.expel("it takes no answers");
        }
        // It has room for what a result may have.
        let _ = peer.link.send(&Message::Asked(Asked { ask, outcome: outcome.to_wire(), body }));
    }
}

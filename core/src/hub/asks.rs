//! Forwards workers' requests to evaluators, found by name, and their answers back.

use super::{
    Hub, HubRun, PeerConnection,
    limits::{MAX_ANSWER_BACKLOG_BYTES, MAX_ASK_BACKLOG_BYTES, MAX_ASKS},
};
use crate::{
    prelude::*,
    protocol::{
        AskOutcome, Message,
        handshake::PeerService,
        message::{Ask, AskCancel, Asked, Call, CallCancel, CallResult},
    },
    worker::{CommandError, CommandErrorKind, WorkerCommand},
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
        self.open.extract_if(.., |_, open| is_so(open)).collect()
    }
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
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
        let asker = self.peers.get(&from).filter(|peer| peer.service == PeerService::Asks);
        let Some(asker) = asker else {
            return refused(CommandErrorKind::Unhealthy, "this worker did not say that it asks others");
        };
        if self.tokens.is_of_page(asker.token) {
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
        known.call(call, &Message::Call(Call { call, body }))?;
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
    pub(super) fn forget_asks(&mut self, left: u32) {
        let cancelled = self.asks.close(|open| open.from == left);
        self.cancel_calls(cancelled);
        for (_, open) in self.asks.close(|open| open.to == left) {
            self.answer_ask(open.from, open.ask, AskOutcome::Left, Vec::new());
        }
    }

    fn cancel_calls(&self, calls: Vec<(u64, OpenAsk)>) {
        for (call, open) in calls {
            let peer = self.peers.get(&open.to);
            // The message is small.
            peer.into_iter().for_each(|peer| _ = peer.link.send(&Message::CallCancel(CallCancel { call })));
        }
    }

    fn answer_ask(&self, from: u32, ask: u64, outcome: AskOutcome, body: Vec<u8>) {
        let Some(peer) = self.peers.get(&from) else { return };
        let queued = peer.link.queued_bytes();
        if queued > 0 && queued + body.len() > MAX_ANSWER_BACKLOG_BYTES {
            return peer.link.expel("it takes no answers");
        }
        // The body fits: its cap equals that of a result.
        let _ = peer.link.send(&Message::Asked(Asked { ask, outcome: outcome.to_wire(), body }));
    }
}

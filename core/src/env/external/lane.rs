//! A lane: the episode that its driver is in, the one that the sampler is in, and the turns in between.

use super::ExternalError;
use crate::{
    env::multi_agent::{AgentRows, Debts, Roster, Turn},
    prelude::*,
};

/// What a turn is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// The driver waits for actions.
    #[default]
    Asked,
    /// The driver has acted by itself.
    Logged,
    /// The episode has ended.
    Ended,
    /// The driver is gone, and the episode with it.
    Abandoned,
}

/// What a driver has said.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Of the episode.
    pub(super) serial: u64,
    pub(super) kind: Kind,
    pub(super) turn: Turn,
    /// What the driver did by itself.
    pub(super) actions: AgentRows,
}

/// How far a request for actions is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Request {
    /// There is none.
    #[default]
    None,
    /// Nobody has answered.
    Made,
    /// The actions can be taken.
    Answered,
}

/// The open episode.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) serial: u64,
    pub(super) training_enabled: bool,
    /// It has had a turn.
    pub(super) observed: bool,
    pub(super) request: Request,
}

/// The turn that the sampler has taken last, if the episode goes on after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) serial: u64,
    /// The driver wants to know the answer.
    pub(super) asked: bool,
    /// The sampler owes an answer.
    pub(super) waits: bool,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// On the drivers' side.
    pub(super) open: Option<Open>,
    /// What to say about the last episode that was closed.
    past: Option<(u64, ExternalError)>,
    /// The next turn, as far as it is known.
    pub(super) next: Turn,
    pub(super) debts: Debts,
    /// Agents that have had an observation.
    pub(super) seen: Roster<()>,
    /// Agents that have had their last one.
    pub(super) done: Roster<()>,
    /// Actions that were asked for.
    pub(super) answer: AgentRows,
    pub(super) queue: VecDeque<Entry>,
    /// Room to be used again.
    spare: Vec<Entry>,
    /// On the sampler's side.
    pub(super) taken: Option<Taken>,
    /// Agents that the sampler owes an action.
    pub(super) acting: Roster<()>,
}

impl Lane {
    pub(super) fn begin(&mut self, id: u64, serial: u64, training_enabled: bool) {
        self.open = Some(Open { id, serial, training_enabled, observed: false, request: Request::None });
        self.next.clear();
        self.debts.clear();
        self.seen.clear();
        self.done.clear();
    }

    pub(super) fn close(&mut self, past: ExternalError) {
        self.past = self.open.take().map(|open| (open.id, past));
    }

    /// What to say about an episode that was here.
    pub(super) fn remembers(&self, id: u64) -> Option<ExternalError> {
        self.past.as_ref().filter(|(other, _)| *other == id).map(|(_, past)| past.clone())
    }

    /// Puts the next turn into the queue.
    pub(super) fn push(&mut self, kind: Kind, actions: Option<&AgentRows>) {
        let Some(open) = &mut self.open else { return };
        let mut entry = self.spare.pop().unwrap_or_default();
        (entry.serial, entry.kind) = (open.serial, kind);
        open.observed = true;
        if kind == Kind::Asked {
            open.request = Request::Made;
        }
        entry.turn.clear();
        core::mem::swap(&mut entry.turn, &mut self.next);
        entry.actions.clear();
        for (agent, action) in actions.into_iter().flat_map(AgentRows::iter) {
            entry.actions.set(agent, action);
        }
        self.queue.push_back(entry);
    }

    /// The oldest turn, unless the sampler still owes the answer to the one before.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        if self.taken.is_some_and(|taken| taken.waits) {
            return None;
        }
        self.queue.pop_front()
    }

    /// The entry's memory is free again.
    pub(super) fn recycle(&mut self, entry: Entry) {
        self.spare.push(entry);
    }

    /// The sampler gives up the episode that it is in: nobody is interested in what is left of it. Returns its number if
    /// its driver still goes on.
    pub(super) fn give_up(&mut self) -> Option<u64> {
        let serial = self.taken.take()?.serial;
        self.acting.clear();
        while self.queue.front().is_some_and(|entry| entry.serial == serial) {
            self.spare.extend(self.queue.pop_front());
        }
        self.open.as_ref().filter(|open| open.serial == serial).map(|open| open.id)
    }
}

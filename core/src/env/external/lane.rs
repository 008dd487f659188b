//! A lane: the episode of its driver, the episode of the sampler, and the queued turns between them.

use super::ExternalError;
use crate::{
    env::multi_agent::{AgentRows, Debts, Roster, Turn},
    prelude::*,
};

/// Kind of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TurnKind {
    /// The driver requests actions.
    #[default]
    Asked,
    /// The driver has acted itself.
    Logged,
    /// The episode has ended.
    Ended,
    /// The driver has exited, and abandons the episode.
    Abandoned,
}

/// A queued turn.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Serial number of the episode.
    pub(super) serial: u64,
    pub(super) kind: TurnKind,
    pub(super) turn: Turn,
    /// Actions that the driver took itself.
    pub(super) actions: AgentRows,
}

/// State of a request for actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Request {
    /// There is none.
    #[default]
    None,
    /// Not answered yet.
    Made,
    /// The actions can be taken.
    Answered,
}

/// The open episode.
#[derive(Debug)]
pub(super) struct OpenExternal {
    pub(super) id: u64,
    pub(super) serial: u64,
    pub(super) training_enabled: bool,
    /// Whether it has had a turn.
    pub(super) observed: bool,
    pub(super) request: Request,
}

/// The latest turn that the sampler has taken, if the episode continues after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) serial: u64,
    /// Whether the driver requests the answer.
    pub(super) asked: bool,
    /// Whether the sampler has not answered yet.
    pub(super) waits: bool,
}

#[derive(Debug, Default)]
pub(super) struct DrivenLane {
    /// The driver's episode.
    pub(super) open: Option<OpenExternal>,
    /// The last closed episode, and the error for calls that refer to it.
    past: Option<(u64, ExternalError)>,
    /// The next turn so far.
    pub(super) next: Turn,
    pub(super) debts: Debts,
    /// Agents that have had an observation.
    pub(super) seen: Roster<()>,
    /// Agents that have had their last one.
    pub(super) done: Roster<()>,
    /// The requested actions.
    pub(super) answer: AgentRows,
    pub(super) queue: VecDeque<Entry>,
    /// Entries for reuse.
    spare: Vec<Entry>,
    /// The sampler's turn.
    pub(super) taken: Option<Taken>,
    /// Agents whose actions are still due from the sampler.
    pub(super) acting: Roster<()>,
}

impl DrivenLane {
    pub(super) fn begin(&mut self, id: u64, serial: u64, training_enabled: bool) {
        self.open = Some(OpenExternal { id, serial, training_enabled, observed: false, request: Request::None });
        self.next.clear();
        self.debts.clear();
        self.seen.clear();
        self.done.clear();
    }

    pub(super) fn close(&mut self, past: ExternalError) {
        self.past = self.open.take().map(|open| (open.id, past));
    }

    /// Returns the error for a closed episode, if it was here.
    pub(super) fn closed_reason(&self, id: u64) -> Option<ExternalError> {
        self.past.as_ref().filter(|(other, _)| *other == id).map(|(_, past)| past.clone())
    }

    /// Queues the next turn.
    pub(super) fn push(&mut self, kind: TurnKind, actions: Option<&AgentRows>) {
        let Some(open) = &mut self.open else { return };
        let mut entry = self.spare.pop().unwrap_or_default();
        (entry.serial, entry.kind) = (open.serial, kind);
        open.observed = true;
        if kind == TurnKind::Asked {
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

    /// Returns the oldest turn, unless the sampler has not answered the one before.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        if self.taken.is_some_and(|taken| taken.waits) {
            return None;
        }
        self.queue.pop_front()
    }

    /// Keeps an entry's memory for reuse.
    pub(super) fn recycle(&mut self, entry: Entry) {
        self.spare.push(entry);
    }

    /// Drops the sampler's episode with its queued turns. Returns its number if its driver still continues it.
    pub(super) fn give_up(&mut self) -> Option<u64> {
        let serial = self.taken.take()?.serial;
        self.acting.clear();
        while self.queue.front().is_some_and(|entry| entry.serial == serial) {
            self.spare.extend(self.queue.pop_front());
        }
        self.open.as_ref().filter(|open| open.serial == serial).map(|open| open.id)
    }
}

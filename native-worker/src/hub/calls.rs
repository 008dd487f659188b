//! Commands of the program itself to workers, outside of a run: who joins and leaves, calls and their results.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use rollmesh_core::{
    protocol::{
        Message,
        handshake::PeerService,
        message::{self, CallProgress, CallResult},
    },
    worker::{CommandError, CommandErrorKind},
};
use tokio::sync::mpsc;

use super::{
    Hub,
    actor::{Actor, Event, Peer},
    children::ChildTerms,
};
use crate::{
    launch::{LaunchError, Launcher, WorkerSpec},
    pulse::Pulse,
};

/// Notifications about workers.
#[derive(Debug)]
pub(crate) enum WorkerNews {
    /// A worker joined; `child` is the number of a local process. Browsers may throttle their tabs.
    Joined { peer: u32, child: Option<u32>, pulse: Pulse, is_throttled: bool },
    /// A worker disconnected.
    Left { peer: u32, reason: String },
    /// A worker answered a call.
    Result { peer: u32, result: CallResult },
    /// A local process ended, and another one takes its place.
    Replaced { child: u32, by: u32 },
    /// A local process ended and is not replaced.
    GaveUp(String),
}

/// Receives the notifications. Must not block.
pub(crate) type NewsSink = Box<dyn Fn(WorkerNews) + Send>;

/// When local processes that ended unexpectedly are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// Minimum delay after the end.
    pub(crate) delay: Duration,
    /// Maximum number of replacements in total.
    pub(crate) max: u32,
}

impl Default for Replacement {
    /// Replaces at once, without limit.
    fn default() -> Self {
        Self { delay: Duration::ZERO, max: u32::MAX }
    }
}

pub(super) type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Commands of the program to workers.
pub(crate) enum WorkerOrder {
    /// Notify `sink` about all workers, beginning with those that are connected already.
    Listen { sink: NewsSink, replacement: Replacement },
    /// Send a message to a worker.
    Send { peer: u32, message: Box<Message> },
    /// Start local processes, all or none, with this launcher or the hub's own; replies with their numbers.
    Start {
        number: u32,
        spec: Box<WorkerSpec>,
        /// Environment variables in addition to the hub's.
        environs: BTreeMap<String, String>,
        launcher: Option<Arc<dyn Launcher>>,
        reply: Reply<Result<Vec<u32>, LaunchError>>,
    },
    /// Say goodbye to a worker and do not replace it.
    Dismiss { peer: u32 },
    /// End a local process and do not replace it: after a goodbye if it has joined, else at once. Replies when it has exited
    /// and its resources are released.
    End { child: u32, gone: Reply<()> },
    /// Kill a local process; it is replaced as if it had ended by itself.
    Kill { child: u32 },
    /// Return the process ids of the local workers.
    Pids(Reply<Vec<u32>>),
}

impl fmt::Debug for WorkerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listen { .. } => "Listen",
            Self::Send { .. } => "Send",
            Self::Start { .. } => "Start",
            Self::Dismiss { .. } => "Dismiss",
            Self::End { .. } => "End",
            Self::Kill { .. } => "Kill",
            Self::Pids(_) => "Pids",
        })
    }
}

/// A handle for sending commands to a hub's workers.
#[derive(Clone, Debug)]
pub(crate) struct Workers(mpsc::Sender<Event>);

impl Hub {
    pub(crate) fn workers(&self) -> Workers {
        Workers(self.events.clone())
    }
}

impl Workers {
    pub(crate) async fn send(&self, order: WorkerOrder) {
        // A hub that has stopped ignores commands.
        let _ = self.0.send(Event::Workers(order)).await;
    }
}

impl Actor {
    pub(super) fn obey_program(&mut self, order: WorkerOrder) {
        match order {
            WorkerOrder::Listen { sink, replacement } => {
                self.children.replace_as(replacement);
                for (&peer, known) in self.peers.iter().filter(|(_, known)| known.is_worker()) {
                    sink(known.joined(peer));
                }
                self.listener = Some(sink);
            }
            WorkerOrder::Send { peer, message } => self.send_to_worker(peer, &message),
            WorkerOrder::Start { number, spec, environs, launcher, reply } => {
                let launcher = launcher.unwrap_or_else(|| self.children.launcher());
                let terms = ChildTerms { launcher, spec: *spec, environs };
                reply(self.add_children_on(&Arc::new(terms), number as usize));
            }
            WorkerOrder::Dismiss { peer } => self.dismiss(peer),
            WorkerOrder::End { child, gone } => self.end_child(child, gone),
            WorkerOrder::Kill { child } => self.children.kill(child),
            WorkerOrder::Pids(reply) => reply(self.children.pids()),
        }
    }

    /// Notifies the listener, if there is one.
    pub(super) fn tell(&self, news: WorkerNews) {
        if let Some(listener) = &self.listener {
            listener(news);
        }
    }

    fn send_to_worker(&mut self, peer: u32, message: &Message) {
        let (Message::Call(message::Call { call, .. }) | Message::WorkerSetup(message::WorkerSetup { call, .. })) =
            message
        else {
            // No other kind of message is sent this way.
            return;
        };
        if let Err(error) = self.call(peer, *call, message) {
            let result = CallResult { call: *call, ok: false, body: error.encode() };
            self.tell(WorkerNews::Result { peer, result });
        }
    }

    /// Sends a call to a worker that is connected, and expects its result.
    pub(super) fn call(&mut self, peer: u32, call: u64, message: &Message) -> Result<(), CommandError> {
        let Some(known) = self.peers.get_mut(&peer) else { return Ok(()) };
        // Counted before anything is sent, since the answer may arrive at once.
        known.link.note_call();
        if let Err(error) = known.link.send(message) {
            known.link.note_result();
            return Err(CommandError::new(CommandErrorKind::TooLarge, error.to_string()));
        }
        known.calls.insert(call);
        Ok(())
    }

    /// Checks that the progress belongs to a call that the worker was asked. Its arrival counts as progress by itself.
    pub(super) fn handle_call_progress(&mut self, peer: u32, progress: CallProgress) {
        if self.peers.get(&peer).is_some_and(|known| !known.calls.contains(&progress.call)) {
            self.notice_offence(format!("worker {peer} works on call {}, which was not made", progress.call));
            self.blame(peer);
        }
    }

    /// Forwards the result of an open call, once; unsolicited results are an offence, since they would only fill the memory.
    pub(super) fn handle_result(&mut self, peer: u32, result: CallResult) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        if !known.calls.remove(&result.call) {
            self.notice_offence(format!("worker {peer} answered call {}, which was not made", result.call));
            return self.blame(peer);
        }
        known.link.note_result();
        if known.service == PeerService::Evaluates {
            return self.handle_asked(result);
        }
        if let Some(child) = known.child {
            self.children.was_useful(child);
        }
        self.tell(WorkerNews::Result { peer, result });
    }
}

impl Peer {
    /// Returns the notification for a worker that joined.
    pub(super) fn joined(&self, peer: u32) -> WorkerNews {
        WorkerNews::Joined { peer, child: self.child, pulse: self.link.pulse(), is_throttled: self.is_throttled() }
    }

    /// True if the peer may be slowed down at any time, like a browser tab.
    pub(super) fn is_throttled(&self) -> bool {
        self.kind == "browser"
    }
}

//! Commands of the program itself to workers, outside of a run: who joins and leaves, calls and their results.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rollmesh_core::{
    hub::Peer,
    protocol::{Message, message::CallResult},
};
use tokio::sync::mpsc;

use super::{
    Hub,
    actor::{Actor, Event},
    children::ChildTerms,
    link::PeerLink,
};
use crate::{
    launch::{LaunchError, Launcher, WorkerSpec},
    pulse::Pulse,
};

/// Notifications about workers.
#[derive(Debug)]
pub(crate) enum WorkerNotification {
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
pub(crate) type NotificationSink = Box<dyn Fn(WorkerNotification) + Send>;

/// When local processes that ended unexpectedly are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// Minimum delay after the end.
    pub(crate) delay: Duration,
    /// Maximum number of replacements in total.
    pub(crate) max: u32,
}

impl Default for Replacement {
    /// Replaces immediately, without limit.
    fn default() -> Self {
        Self { delay: Duration::ZERO, max: u32::MAX }
    }
}

pub(super) type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Commands of the program to workers.
pub(crate) enum WorkerAction {
    /// Notify `sink` about all workers, beginning with those that are connected already.
    Listen { sink: NotificationSink, replacement: Replacement },
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
    /// End a local process and do not replace it: after a goodbye if it has joined, else immediately. Replies when it has exited
    /// and its resources are released.
    End { child: u32, gone: Reply<()> },
    /// Kill a local process; it is replaced as if it had ended by itself.
    Kill { child: u32 },
    /// Return the process ids of the local workers.
    Pids(Reply<Vec<u32>>),
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
    pub(crate) async fn send(&self, action: WorkerAction) {
        // A hub that has stopped ignores commands.
        let _ = self.0.send(Event::Workers(action)).await;
    }
}

impl Actor {
    pub(super) fn handle_worker_action(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Listen { sink, replacement } => {
                self.children.replace_as(replacement);
                self.hub.workers().for_each(|(peer, known)| sink(joined(peer, known)));
                self.listener = Some(sink);
            }
            WorkerAction::Send { peer, message } => self.hub.call(peer, &message),
            WorkerAction::Start { number, spec, environs, launcher, reply } => {
                let launcher = launcher.unwrap_or_else(|| self.children.launcher());
                let terms = ChildTerms { launcher, spec: *spec, environs };
                reply(self.add_children_on(&Arc::new(terms), number as usize));
            }
            WorkerAction::Dismiss { peer } => self.hub.dismiss(peer),
            WorkerAction::End { child, gone } => self.end_child(child, gone),
            WorkerAction::Kill { child } => self.children.kill(child),
            WorkerAction::Pids(reply) => reply(self.children.pids()),
        }
    }

    /// Notifies the listener, if there is one.
    pub(super) fn notify(&self, notification: WorkerNotification) {
        if let Some(listener) = &self.listener {
            listener(notification);
        }
    }

    pub(super) fn notify_joined(&mut self, peer: u32) {
        let Some(known) = self.hub.peers.get(&peer) else { return };
        if let (Some(run), Some(child)) = (&mut self.hub.run, known.child) {
            run.note_joined(child);
        }
        self.notify(joined(peer, known));
    }
}

/// Returns the notification for a worker that joined.
fn joined(peer: u32, known: &Peer<PeerLink>) -> WorkerNotification {
    WorkerNotification::Joined {
        peer,
        child: known.child,
        pulse: known.link.pulse(),
        is_throttled: known.is_throttled(),
    }
}

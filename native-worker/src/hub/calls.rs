//! Commands of the program itself to workers, outside of a run: joining and leaving workers, calls and their results.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc},
};

use rollmesh_core::{
    hub::{Peer, Replacement},
    protocol::{
        Message,
        message::{CallResult, Request, Scale, WorkerRequest, WorkerRow},
    },
};
use serde_json::json;
use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::TrySendError},
};

use super::{
    Hub,
    actor::{Actor, Event},
    children::ChildTerms,
    link::PeerLink,
};
use crate::{
    launch::{LaunchError, Launcher, WorkerSpec},
    learner::run_schema,
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

/// The program's rows and notices about the workers that it calls, for dashboards.
#[derive(Clone, Debug, Default)]
pub(crate) struct CalledWorkers(Arc<Mutex<Called>>);

#[derive(Debug, Default)]
pub(crate) struct Called {
    /// See [`show_called`](rollmesh_core::hub::Hub::show_called).
    pub(crate) rows: Vec<WorkerRow>,
    /// Notices that dashboards have not been shown.
    pub(crate) notices: Vec<String>,
}

impl CalledWorkers {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Called> {
        // No code panics while holding the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) type OnExit = Box<dyn FnOnce() + Send>;

/// A handle for commands of the program to a hub's workers. The hub handles them in order; one that has stopped ignores them.
#[derive(Clone, Debug)]
pub(crate) struct Workers {
    events: mpsc::Sender<Event>,
    runtime: Handle,
}

impl Hub {
    /// Returns a handle for threads that do not belong to the hub's runtime, which is the current one.
    pub(crate) fn workers(&self) -> Workers {
        Workers { events: self.events.clone(), runtime: Handle::current() }
    }
}

impl Workers {
    /// Lets the actor execute a command after earlier events. Waits while the hub has many events to handle.
    fn command(&self, command: impl FnOnce(&mut Actor) + Send + 'static) {
        if let Err(TrySendError::Full(event)) = self.events.try_send(Event::ask(command)) {
            // Not a blocking send: the caller may be in a runtime of its own.
            let (done, is_sent) = std_mpsc::channel();
            let events = self.events.clone();
            self.runtime.spawn(async move { _ = done.send(events.send(event).await.is_ok()) });
            // The runtime ends with the hub.
            let _ = is_sent.recv();
        }
    }

    /// Works like [`command`](Self::command), and waits for its result; `None` if the hub has stopped.
    fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&mut Actor) -> T + Send + 'static) -> Option<T> {
        let (reply, answer) = std_mpsc::channel();
        self.command(move |actor| _ = reply.send(ask(actor)));
        answer.recv().ok()
    }

    /// Notifies `sink` about all workers, beginning with those that are connected already. Dashboards are shown `called`.
    pub(crate) fn listen(&self, sink: NotificationSink, replacement: Replacement, called: CalledWorkers) {
        self.command(move |actor| {
            // No settings are valid: the hub executes no runs.
            let mut schema = run_schema(&actor.maker.registry);
            schema["not"] = json!({});
            actor.hub.set_schema(schema.to_string());
            actor.called = called;
            actor.children.local.replace_as(replacement);
            actor.hub.workers().for_each(|(peer, known)| sink(joined(peer, known)));
            actor.listener = Some(sink);
        });
    }

    /// Returns a number for a worker without a connection; `None` if the hub has stopped.
    pub(crate) fn number_without_peer(&self) -> Option<u32> {
        self.ask(|actor| actor.hub.number_without_peer())
    }

    /// Sends a message to a worker.
    pub(crate) fn send(&self, peer: u32, message: Message) {
        self.command(move |actor| actor.hub.call(peer, &message));
    }

    /// Starts local processes, all or none, with this launcher or the hub's own, and with these environment variables in
    /// addition to the hub's; returns their numbers, `None` if the hub has stopped.
    pub(crate) fn start(
        &self,
        number: u32,
        spec: WorkerSpec,
        environs: BTreeMap<String, String>,
        launcher: Option<Arc<dyn Launcher>>,
    ) -> Option<Result<Vec<u32>, LaunchError>> {
        self.ask(move |actor| {
            let launcher = launcher.unwrap_or_else(|| actor.children.launcher());
            actor.add_children_on(&Arc::new(ChildTerms { launcher, spec, environs }), number as usize)
        })
    }

    /// Says goodbye to a worker and does not replace it.
    pub(crate) fn dismiss(&self, peer: u32) {
        self.command(move |actor| actor.hub.dismiss(peer));
    }

    /// Ends a local process and does not replace it: after a goodbye if it has joined, else immediately. Replies when it has
    /// exited and its resources are released.
    pub(crate) fn end(&self, child: u32, exited: impl FnOnce() + Send + 'static) {
        self.command(move |actor| actor.end_child(child, Box::new(exited)));
    }

    /// Kills a local process; it is replaced as if it had ended by itself.
    pub(crate) fn kill(&self, child: u32) {
        self.command(move |actor| actor.children.kill(child));
    }

    /// Returns the process ids of the local workers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.ask(|actor| actor.children.pids()).unwrap_or_default()
    }
}

impl Actor {
    /// Passes the program's rows and notices to the hub.
    pub(super) fn show_called(&mut self) {
        let (rows, notices) = {
            let mut called = self.called.lock();
            (called.rows.clone(), std::mem::take(&mut called.notices))
        };
        self.hub.show_called(rows);
        notices.iter().for_each(|notice| self.hub.show_notice(notice));
    }

    /// Returns the reason to refuse an operator's command that the program decides about, since it listens to workers,
    /// and the command's number.
    pub(super) fn refusal_of_listener(&self, message: &Message) -> Option<(u32, &'static str)> {
        self.listener.as_ref()?;
        let is_remote = |worker| self.hub.peers.get(&worker).is_some_and(|peer| peer.child.is_none());
        let has_number = "the program decides how many workers its group has: it adds and removes them";
        let has_no_runs = "this hub belongs to a program's worker group and executes no runs: `rollmesh hub` does";
        match message {
            Message::AddWorker(Request { request }) | Message::Scale(Scale { request, .. }) => {
                Some((*request, has_number))
            }
            Message::RemoveWorker(WorkerRequest { request, worker }) if !is_remote(*worker) => {
                Some((*request, has_number))
            }
            Message::StartRun(start) => Some((start.request, has_no_runs)),
            Message::ResumeRun(resume) => Some((resume.request, has_no_runs)),
            _ => None,
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
            run.record_joined(child);
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

//! Local workers: child processes of the hub, each with a token of its own.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{Token, TokenHash, TokenId};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{actor::Event, calls::Replacement, random_token};
use crate::launch::{LaunchError, LaunchOrder, LaunchedWorker, Launcher, WorkerSpec};

/// A child that ends before this time without having reached the hub has failed to start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Starts in a row that may fail.
const MAX_FAILED_STARTS: u32 = 5;
/// A child that was dismissed may take this long to go by itself.
const GRACE: Duration = Duration::from_secs(3);

/// The local workers that should be there.
pub(super) struct Children {
    launcher: Arc<dyn Launcher>,
    /// How they reach the hub: arguments of `worker`.
    way: Vec<String>,
    events: mpsc::Sender<Event>,
    next: u32,
    running: BTreeMap<u32, Running>,
    failed_starts: u32,
    replacement: Replacement,
    replaced: u32,
}

struct Running {
    token: TokenId,
    pid: Option<u32>,
    began: Instant,
    /// It has reached the hub: whatever ends it later, it can start.
    joined: bool,
    /// It is about to go, and not to be replaced.
    dismissed: bool,
    kill: Option<oneshot::Sender<()>>,
}

/// What follows from the end of a child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was meant to go.
    AsWished,
    /// It has to be replaced, after this pause.
    Replace(Duration),
    /// It is not to be replaced, as somebody wishes.
    NotReplaced,
    /// It ends again and again: no more attempts.
    GiveUp,
}

impl Children {
    pub(super) fn new(launcher: Arc<dyn Launcher>, way: Vec<String>, events: mpsc::Sender<Event>) -> Self {
        Self {
            launcher,
            way,
            events,
            next: 1,
            running: BTreeMap::new(),
            failed_starts: 0,
            replacement: Replacement::default(),
            replaced: 0,
        }
    }

    /// Sets who starts workers from now on.
    pub(super) fn launch_by(&mut self, launcher: Arc<dyn Launcher>) {
        self.launcher = launcher;
    }

    /// Sets when workers that ended are replaced.
    pub(super) fn replace_as(&mut self, replacement: Replacement) {
        self.replacement = replacement;
    }

    /// Workers that are there or about to be.
    pub(super) fn count(&self) -> usize {
        self.running.values().filter(|child| !child.dismissed).count()
    }

    /// The numbers of those, oldest first.
    pub(super) fn staying(&self) -> Vec<u32> {
        self.running.iter().filter(|(_, child)| !child.dismissed).map(|(&number, _)| number).collect()
    }

    /// Starts a worker with these environment variables besides the hub's; its number, and the token that it will
    /// present.
    pub(super) fn start(
        &mut self,
        spec: &WorkerSpec,
        extra_environs: &BTreeMap<String, String>,
    ) -> Result<(u32, Token), LaunchError> {
        let number = self.next;
        let token = random_token().map_err(|error| LaunchError::Failed(format!("there is no token: {error}")))?;
        let order = LaunchOrder { number, way: &self.way, token: &token, spec, environs: extra_environs };
        let worker = self.launcher.launch(&order)?;
        self.next += 1;
        let pid = worker.pid();
        let (kill, killed) = oneshot::channel();
        tokio::spawn(watch(number, worker, killed, self.events.clone()));
        let id = TokenHash::of(&token).id();
        let running =
            Running { token: id, pid, began: Instant::now(), joined: false, dismissed: false, kill: Some(kill) };
        self.running.insert(number, running);
        Ok((number, token))
    }

    /// The processes, by the system's numbers.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.running.values().filter_map(|child| child.pid).collect()
    }

    /// The child has reached the hub.
    pub(super) fn joined(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.joined = true;
        }
    }

    /// The child is about to be dismissed: if it ends before, that is as well.
    pub(super) fn do_not_replace(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.dismissed = true;
        }
    }

    /// The child ends now, as if it did so by itself.
    pub(super) fn kill(&mut self, number: u32) {
        if let Some(kill) = self.running.get_mut(&number).and_then(|child| child.kill.take()) {
            // It may be gone by now.
            let _ = kill.send(());
        }
    }

    /// The child is to go and not to come back. It is killed if it does not go by itself.
    pub(super) fn dismiss(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.dismissed = true;
            if let Some(kill) = child.kill.take() {
                tokio::spawn(async move {
                    sleep(GRACE).await;
                    // The child may be gone by now.
                    let _ = kill.send(());
                });
            }
        }
    }

    /// Asks for a replacement after a pause.
    pub(super) fn replace_after(&self, pause: Duration) {
        let events = self.events.clone();
        tokio::spawn(async move {
            sleep(pause).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::ReplaceChild).await;
        });
    }

    /// True without any child, also of those that are about to go.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn dismiss_all(&mut self) {
        let numbers: Vec<u32> = self.running.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.dismiss(number));
    }

    /// A child is gone: its token, to be revoked, and what follows.
    pub(super) fn handle_exit(&mut self, number: u32) -> Option<(TokenId, Ended)> {
        let child = self.running.remove(&number)?;
        if child.dismissed {
            return Some((child.token, Ended::AsWished));
        }
        let failed = !child.joined && child.began.elapsed() < SHORT_LIFE;
        self.failed_starts = if failed { self.failed_starts + 1 } else { 0 };
        let Replacement { delay, max } = self.replacement;
        let ended = match self.failed_starts {
            _ if self.replaced >= max => Ended::NotReplaced,
            0 | 1 => Ended::Replace(delay),
            n if n <= MAX_FAILED_STARTS => Ended::Replace(delay.max(Duration::from_millis(100 << n))),
            _ => Ended::GiveUp,
        };
        self.replaced = self.replaced.saturating_add(u32::from(matches!(ended, Ended::Replace(_))));
        Some((child.token, ended))
    }
}

/// Waits for the end of a child, or kills it.
async fn watch(
    number: u32,
    mut worker: Box<dyn LaunchedWorker>,
    killed: oneshot::Receiver<()>,
    events: mpsc::Sender<Event>,
) {
    let status = tokio::select! {
        status = worker.ended() => Some(status),
        // Without a sender left the hub is going, and takes its children along.
        _ = killed => None,
    };
    let status = match status {
        Some(status) => status,
        None => {
            worker.kill();
            worker.ended().await
        }
    };
    // What it was granted is free before anybody asks for it again.
    drop(worker);
    let _ = events.send(Event::ChildExited { number, status }).await;
}

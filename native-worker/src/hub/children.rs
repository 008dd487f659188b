//! Local workers: child processes of the hub, each with a token of its own.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hub::{LocalEnd, LocalWorkers},
    protocol::{Token, TokenHash, TokenId},
    time::Micros,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{UNENCRYPTED_FLAG, actor::Event, calls::OnExit, random_token};
use crate::{
    child::WORKER_GRACE,
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher, WorkerSpec},
    net::Trust,
};

/// Maximum length of a line of a child's log in bytes; a longer one is several, …
const MAX_LINE_BYTES: usize = 1 << 10;
/// … and maximum number of lines per second.
const MAX_LINES_PER_S: u32 = 50;

/// The settings with which a child, and the child that replaces it, is started.
#[derive(Clone, Debug)]
pub(super) struct ChildTerms {
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) spec: WorkerSpec,
    /// Environment variables in addition to the hub's.
    pub(super) environs: BTreeMap<String, String>,
}

impl PartialEq for ChildTerms {
    fn eq(&self, other: &Self) -> bool {
        let is_one_launcher = Arc::ptr_eq(&self.launcher, &other.launcher);
        is_one_launcher && self.spec == other.spec && self.environs == other.environs
    }
}

/// The way to the hub for workers on this machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    pub(super) url: String,
    pub(super) trust: Trust,
    /// Name of the kernels that they must use, if they may not choose.
    pub(super) kernels: Option<&'static str>,
}

impl Way {
    /// Returns the same as arguments of `rollmesh worker`.
    fn arguments(&self) -> Vec<String> {
        let trust = match self.trust.fingerprint {
            Some(fingerprint) => vec!["--tls-fingerprint".into(), fingerprint.to_string()],
            None => vec![UNENCRYPTED_FLAG.into()],
        };
        let kernels = self.kernels.map(|name| vec!["--kernels".into(), name.into()]).unwrap_or_default();
        [vec!["--hub".into(), self.url.clone()], trust, kernels].concat()
    }
}

/// The local workers that should be running, and their processes.
pub(super) struct Children {
    /// The default launcher.
    launcher: Arc<dyn Launcher>,
    pub(super) way: Way,
    pub(super) events: mpsc::Sender<Event>,
    /// Decides which of them run.
    pub(super) local: LocalWorkers,
    processes: BTreeMap<u32, ChildProcess>,
    /// Terms of scheduled replacements, by the number of the child that they replace.
    awaited: BTreeMap<u32, Arc<ChildTerms>>,
}

struct ChildProcess {
    terms: Arc<ChildTerms>,
    pid: Option<u32>,
    kill: Option<oneshot::Sender<()>>,
    /// Dropped when it connects, which lifts its deadline.
    starting: Option<oneshot::Sender<()>>,
    /// Callers waiting for its exit.
    when_gone: Vec<OnExit>,
}

/// A child that has exited.
pub(super) struct Exit {
    /// The token to revoke.
    pub(super) token: TokenId,
    pub(super) terms: Arc<ChildTerms>,
    /// The consequence of the exit.
    pub(super) end: LocalEnd,
}

impl Children {
    pub(super) fn new(launcher: Arc<dyn Launcher>, way: Way, events: mpsc::Sender<Event>) -> Self {
        let (processes, awaited) = (BTreeMap::new(), BTreeMap::new());
        Self { launcher, way, events, local: LocalWorkers::default(), processes, awaited }
    }

    /// Returns the default launcher.
    pub(super) fn launcher(&self) -> Arc<dyn Launcher> {
        self.launcher.clone()
    }

    /// Returns the numbers of those that [stay](LocalWorkers::staying) and were started with other environment variables.
    pub(super) fn with_other_environs(&self, terms: &ChildTerms) -> Vec<u32> {
        let has_others = |number: &u32| self.processes[number].terms.environs != terms.environs;
        self.local.staying().into_iter().filter(has_others).collect()
    }

    /// Returns the spare for a place on these terms, if they match. Its lifetime counts from now on.
    pub(super) fn take_spare(&mut self, terms: &ChildTerms, now: Micros) -> Option<u32> {
        let number = self.local.spare()?;
        self.processes.get(&number).filter(|child| *child.terms == *terms)?;
        self.local.employ_spare(now);
        Some(number)
    }

    /// Starts a worker. Returns its number and the token that it will present.
    pub(super) fn start(&mut self, terms: &Arc<ChildTerms>, now: Micros) -> Result<(u32, Token), LaunchError> {
        let number = self.local.next_number();
        let token = random_token().map_err(|error| LaunchError::Failed(format!("there is no token: {error}")))?;
        let (way, spec, environs) = (self.way.arguments(), &terms.spec, &terms.environs);
        let order = LaunchOrder { number, way: &way, token: &token, spec, environs };
        let mut worker = terms.launcher.launch(&order)?;
        let mut lines = LogLines::new(number, self.events.clone());
        worker.forward_log(Box::new(move |bytes| lines.push(bytes)));
        let (pid, limit) = (worker.pid(), worker.joins_within());
        let (kill, killed) = oneshot::channel();
        let (starting, started) = oneshot::channel();
        tokio::spawn(watch(number, worker, (killed, started), limit, self.events.clone()));
        self.local.handle_started(number, TokenHash::of(&token).id(), pid.is_none(), now);
        let (terms, kill, starting) = (terms.clone(), Some(kill), Some(starting));
        self.processes.insert(number, ChildProcess { terms, pid, kill, starting, when_gone: Vec::new() });
        Ok((number, token))
    }

    /// Returns the process ids of the children.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.values().filter_map(|child| child.pid).collect()
    }

    /// Records that the child is connected as this peer.
    pub(super) fn is_connected_as(&mut self, number: u32, peer: u32) {
        self.local.handle_connected(number, peer);
        if let Some(child) = self.processes.get_mut(&number) {
            child.starting = None;
        }
    }

    /// Kills the child now, as if it had ended by itself.
    pub(super) fn kill(&mut self, number: u32) {
        if let Some(kill) = self.processes.get_mut(&number).and_then(|child| child.kill.take()) {
            // It may have exited already.
            let _ = kill.send(());
        }
    }

    /// Kills the child now, and has it replaced without counting that.
    pub(super) fn restart(&mut self, number: u32) {
        if self.local.restart(number) {
            self.kill(number);
        }
    }

    /// Dismisses the child: it should exit and is not replaced. It is killed if it does not exit within [`WORKER_GRACE`].
    pub(super) fn dismiss(&mut self, number: u32) {
        self.local.dismiss(number);
        if let Some(kill) = self.processes.get_mut(&number).and_then(|child| child.kill.take()) {
            tokio::spawn(async move {
                sleep(WORKER_GRACE).await;
                // It may have exited already.
                let _ = kill.send(());
            });
        }
    }

    /// Schedules a replacement.
    pub(super) fn replace_at(&mut self, number: u32, terms: Arc<ChildTerms>, due: Micros) {
        self.awaited.insert(number, terms);
        self.local.replace_at(number, due);
    }

    /// Ends the wait for a scheduled replacement, and returns its terms; `None` if it was cancelled.
    pub(super) fn begin_replacement(&mut self, number: u32) -> Option<Arc<ChildTerms>> {
        self.local.forget_replacement(number);
        self.awaited.remove(&number)
    }

    /// Cancels all scheduled replacements.
    pub(super) fn forget_replacements(&mut self) {
        self.local.forget_replacements();
        self.awaited.clear();
    }

    /// Returns whether no child is running, not even a dismissed one.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub(super) fn dismiss_all(&mut self) {
        let numbers: Vec<u32> = self.processes.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.dismiss(number));
    }

    /// Replies when the child has exited and its resources are released.
    pub(super) fn notify_when_exited(&mut self, number: u32, reply: OnExit) {
        match self.processes.get_mut(&number) {
            Some(child) => child.when_gone.push(reply),
            None => reply(),
        }
    }

    /// Handles the exit of a child. Returns its consequences.
    pub(super) fn handle_exit(&mut self, number: u32, now: Micros) -> Option<Exit> {
        let ChildProcess { terms, when_gone, .. } = self.processes.remove(&number)?;
        when_gone.into_iter().for_each(|reply| reply());
        let (token, end) = self.local.handle_exit(number, now)?;
        Some(Exit { token, terms, end })
    }
}

/// Forwards a child's standard error, line by line, within limits; the rest is dropped.
struct LogLines {
    number: u32,
    events: mpsc::Sender<Event>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// The beginning of the current second, and the number of its lines.
    second: Instant,
    lines: u32,
}

impl LogLines {
    fn new(number: u32, events: mpsc::Sender<Event>) -> Self {
        Self { number, events, line: Vec::new(), second: Instant::now(), lines: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.line.push(*byte);
            if *byte == b'\n' || self.line.len() == MAX_LINE_BYTES {
                self.forward();
            }
        }
    }

    fn forward(&mut self) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.lines) = (Instant::now(), 0);
        }
        self.lines += 1;
        let text = String::from_utf8_lossy(&self.line);
        if self.lines <= MAX_LINES_PER_S && !text.trim().is_empty() {
            // A busy hub drops lines instead of holding up the child.
            let _ = self.events.try_send(Event::ChildSaid { number: self.number, line: text.trim_end().into() });
        }
        self.line.clear();
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        self.forward();
    }
}

/// Waits for a child's exit, or kills it: on request, or because it does not connect.
async fn watch(
    number: u32,
    mut worker: Box<dyn LaunchedWorker>,
    (killed, started): (oneshot::Receiver<()>, oneshot::Receiver<()>),
    limit: Option<Duration>,
    events: mpsc::Sender<Event>,
) {
    let overdue = async {
        match limit {
            Some(limit) if timeout(limit, started).await.is_err() => limit.as_secs(),
            _ => pending().await,
        }
    };
    let end = tokio::select! {
        end = worker.ended() => Ok(end),
        // The sender is dropped when the hub stops: its children end with it.
        _ = killed => Err(None),
        seconds = overdue => Err(Some(format!("it was killed, since it had not connected after {seconds} s"))),
    };
    let end = match end {
        Ok(end) => end,
        Err(reason) => {
            worker.kill();
            let LaunchedEnd { status, .. } = worker.ended().await;
            // Without signals (Windows) the exit status cannot distinguish this from a crash.
            let status = match reason {
                Some(reason) => format!("{reason}; {status}"),
                None => status,
            };
            LaunchedEnd { status, is_crash: false }
        }
    };
    // The launcher's resources are released before the exit is reported, so that they can be allocated again.
    drop(worker);
    let _ = events.send(Event::ChildExited { number, end }).await;
}

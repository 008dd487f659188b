//! Local workers: child processes of the hub, each with a token of its own.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{Token, TokenHash, TokenId};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    UNENCRYPTED_FLAG,
    actor::Event,
    calls::{OnExit, Replacement},
    random_token,
};
use crate::{
    child::WORKER_GRACE,
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher, WorkerSpec},
    net::Trust,
};

/// A child that exits without having connected, or before this time without having been useful, counts as a failed start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Maximum number of consecutive failed starts.
const MAX_FAILED_STARTS: u32 = 5;
/// Number of consecutive failures without a delay before the next start: a user may have killed the children.
const FREE_FAILED_STARTS: u32 = 2;
/// Delay before the next attempt when launchers have no place now, but soon may have one.
const NOT_YET: Duration = Duration::from_secs(1);
/// Maximum length of a line of a child's log in bytes; a longer one is several, …
const MAX_LINE_BYTES: usize = 1 << 10;
/// … and maximum number of lines per second.
const MAX_LINES_PER_S: u32 = 50;

/// What a child, and the child that replaces it, is started with.
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

/// How workers on this machine reach the hub.
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

/// The local workers that should be running.
pub(super) struct Children {
    /// The default launcher.
    launcher: Arc<dyn Launcher>,
    pub(super) way: Way,
    pub(super) events: mpsc::Sender<Event>,
    next: u32,
    running: BTreeMap<u32, RunningChild>,
    /// A spare child, started before it is needed: it takes the place of the next one that ends. Until then it is not
    /// counted.
    spare: Option<u32>,
    failed_starts: u32,
    /// Consecutive short lives that ended with a crash while holding a lease.
    crashes: u32,
    replacement: Replacement,
    replaced: u32,
    /// Replacements waiting for their delay to pass, by the number of the child that they replace.
    awaited: BTreeMap<u32, Arc<ChildTerms>>,
}

struct RunningChild {
    terms: Arc<ChildTerms>,
    token: TokenId,
    pid: Option<u32>,
    /// The peer id of its current or latest connection.
    peer: Option<u32>,
    began: Instant,
    /// True once it has done useful work: whatever ends it later, its start was successful.
    is_useful: bool,
    /// True if its process crashed while it held a lease: its start was successful and the environment is at fault.
    crashed_at_work: bool,
    /// True if it is to exit and not to be replaced.
    dismissed: bool,
    /// True if it is to exit and to be replaced, which is no failure.
    is_restarted: bool,
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
    pub(super) ended: AfterExit,
}

/// What follows from a child's exit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterExit {
    /// It was dismissed, or was a spare.
    AsWished,
    /// Replace it after this delay.
    Replace(Duration),
    /// Do not replace it: the configured number of replacements is used up.
    NotReplaced,
    /// Give up: it failed too many times in a row.
    GiveUp,
}

impl Children {
    pub(super) fn new(launcher: Arc<dyn Launcher>, way: Way, events: mpsc::Sender<Event>) -> Self {
        Self {
            launcher,
            way,
            events,
            next: 1,
            running: BTreeMap::new(),
            spare: None,
            failed_starts: 0,
            crashes: 0,
            replacement: Replacement::default(),
            replaced: 0,
            awaited: BTreeMap::new(),
        }
    }

    /// Returns the default launcher.
    pub(super) fn launcher(&self) -> Arc<dyn Launcher> {
        self.launcher.clone()
    }

    /// Sets when workers that ended are replaced.
    pub(super) fn replace_as(&mut self, replacement: Replacement) {
        self.replacement = replacement;
    }

    /// Returns the number of workers that are running or about to be started.
    pub(super) fn count(&self) -> usize {
        self.staying().len() + self.awaited.len()
    }

    /// Returns the numbers of the running children, oldest first, without the spare and the dismissed.
    pub(super) fn staying(&self) -> Vec<u32> {
        let staying = self.running.iter().filter(|(number, child)| !child.dismissed && !self.is_spare(**number));
        staying.map(|(&number, _)| number).collect()
    }

    /// Returns the numbers of those that [stay](Self::staying) and were started with other environment variables.
    pub(super) fn with_other_environs(&self, terms: &ChildTerms) -> Vec<u32> {
        self.staying().into_iter().filter(|number| self.running[number].terms.environs != terms.environs).collect()
    }

    /// True if the child is the spare.
    pub(super) fn is_spare(&self, number: u32) -> bool {
        self.spare == Some(number)
    }

    /// True if there is no spare, and ended children are replaced immediately and without limit.
    pub(super) fn wants_spare(&self) -> bool {
        self.spare.is_none() && self.replacement == Replacement::default()
    }

    /// Makes the child the spare.
    pub(super) fn keep_as_spare(&mut self, number: u32) {
        self.spare = Some(number);
    }

    /// Returns the spare for a place on these terms, if they match. Its lifetime counts from now on.
    pub(super) fn take_spare(&mut self, terms: &ChildTerms) -> Option<u32> {
        let number = self.spare?;
        let child = self.running.get_mut(&number).filter(|child| *child.terms == *terms)?;
        child.began = Instant::now();
        self.spare = None;
        Some(number)
    }

    /// Returns the spare when it is no longer needed; there is none afterwards.
    pub(super) fn release_spare(&mut self) -> Option<u32> {
        self.spare.take()
    }

    /// Returns an unused child number.
    pub(super) fn next_number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Starts a worker. Returns its number and the token that it will present.
    pub(super) fn start(&mut self, terms: &Arc<ChildTerms>) -> Result<(u32, Token), LaunchError> {
        let number = self.next_number();
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
        let id = TokenHash::of(&token).id();
        let running = RunningChild {
            terms: terms.clone(),
            token: id,
            pid,
            peer: None,
            began: Instant::now(),
            is_useful: false,
            crashed_at_work: false,
            dismissed: false,
            is_restarted: false,
            kill: Some(kill),
            starting: Some(starting),
            when_gone: Vec::new(),
        };
        self.running.insert(number, running);
        Ok((number, token))
    }

    /// Returns the process ids of the children.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.running.values().filter_map(|child| child.pid).collect()
    }

    /// Returns the peer id of the child's latest connection, `None` if it never connected or has exited.
    pub(super) fn peer_of(&self, number: u32) -> Option<u32> {
        self.running.get(&number).and_then(|child| child.peer)
    }

    /// Records that the child is connected as this peer.
    pub(super) fn is_connected_as(&mut self, number: u32, peer: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.peer = Some(peer);
            child.starting = None;
        }
    }

    /// Records that the child has done useful work.
    pub(super) fn was_useful(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.is_useful = true;
            self.failed_starts = 0;
        }
    }

    /// Forgets earlier failed starts: an operator has requested workers, a run needs them, or a
    /// launcher may start them elsewhere.
    pub(super) fn forget_failed_starts(&mut self) {
        self.failed_starts = 0;
    }

    /// Counts a failed start. The start of a child that has connected and lives is successful, whatever ends it later, and ends
    /// the failures in a row: one place that fails must not stand for all.
    fn count_failed_start(&mut self) {
        for child in self.running.values_mut().filter(|child| !child.is_useful) {
            if child.peer.is_some() && child.began.elapsed() >= SHORT_LIFE {
                child.is_useful = true;
                self.failed_starts = 0;
            }
        }
        self.failed_starts = self.failed_starts.saturating_add(1);
    }

    /// Records that the child's process crashed while it held a lease. If other workers succeed with the fragment, the child
    /// is replaced without limit, but with delays.
    pub(super) fn has_crashed_at_work(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.crashed_at_work = true;
        }
    }

    /// True until the child has exited.
    pub(super) fn is_running(&self, number: u32) -> bool {
        self.running.contains_key(&number)
    }

    /// True for a child that is no process of this machine.
    pub(super) fn is_elsewhere(&self, number: u32) -> bool {
        self.running.get(&number).is_some_and(|child| child.pid.is_none())
    }

    /// True if the child will be replaced, or was dismissed.
    pub(super) fn may_end(&self, number: u32) -> bool {
        let more = self.replaced < self.replacement.max;
        self.running.get(&number).is_some_and(|child| child.dismissed || more)
    }

    /// True if the child may be ended because it has not connected again since it was this peer. It may have been another one
    /// meanwhile, whose connection was lost just now.
    pub(super) fn is_silent_since(&self, number: u32, peer: u32) -> bool {
        self.may_end(number) && self.peer_of(number) == Some(peer)
    }

    /// Marks the child as dismissed, before it is commanded to exit: if it exits earlier, that is not a failure.
    pub(super) fn do_not_replace(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.dismissed = true;
        }
    }

    /// Kills the child now, as if it had ended by itself.
    pub(super) fn kill(&mut self, number: u32) {
        if let Some(kill) = self.running.get_mut(&number).and_then(|child| child.kill.take()) {
            // It may have exited already.
            let _ = kill.send(());
        }
    }

    /// Kills the child now, and has it replaced without counting that.
    pub(super) fn restart(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number).filter(|child| !child.dismissed) {
            child.is_restarted = true;
            self.kill(number);
        }
    }

    /// Dismisses the child: it should exit and is not replaced. It is killed if it does not exit within [`WORKER_GRACE`].
    pub(super) fn dismiss(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.dismissed = true;
            if let Some(kill) = child.kill.take() {
                tokio::spawn(async move {
                    sleep(WORKER_GRACE).await;
                    // It may have exited already.
                    let _ = kill.send(());
                });
            }
        }
    }

    /// Schedules a replacement after a delay.
    pub(super) fn replace_after(&mut self, number: u32, terms: Arc<ChildTerms>, pause: Duration) {
        self.awaited.insert(number, terms);
        let events = self.events.clone();
        tokio::spawn(async move {
            sleep(pause).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::ReplaceChild { number }).await;
        });
    }

    /// Begins a scheduled replacement and returns its terms, `None` if it was cancelled.
    pub(super) fn begin_replacement(&mut self, number: u32) -> Option<Arc<ChildTerms>> {
        self.awaited.remove(&number)
    }

    /// Cancels all scheduled replacements.
    pub(super) fn forget_replacements(&mut self) {
        self.awaited.clear();
    }

    /// True if replacements are scheduled.
    pub(super) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Schedules a check whether a child has reconnected that was this peer.
    pub(super) fn ask_for(&self, number: u32, peer: u32, patience: Duration) {
        let events = self.events.clone();
        tokio::spawn(async move {
            sleep(patience).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::ChildSilent { number, peer }).await;
        });
    }

    /// True if no child is running, not even a dismissed one.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn dismiss_all(&mut self) {
        let numbers: Vec<u32> = self.running.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.dismiss(number));
    }

    /// Replies when the child has exited and its resources are released.
    pub(super) fn notify_when_exited(&mut self, number: u32, reply: OnExit) {
        match self.running.get_mut(&number) {
            Some(child) => child.when_gone.push(reply),
            None => reply(),
        }
    }

    /// Handles the exit of a child and decides what follows.
    pub(super) fn handle_exit(&mut self, number: u32) -> Option<Exit> {
        let child = self.running.remove(&number)?;
        let RunningChild {
            terms,
            token,
            peer,
            began,
            is_useful,
            crashed_at_work,
            dismissed,
            is_restarted,
            when_gone,
            ..
        } = child;
        when_gone.into_iter().for_each(|reply| reply());
        if dismissed || self.spare.take_if(|spare| *spare == number).is_some() {
            return Some(Exit { token, terms, ended: AfterExit::AsWished });
        }
        if is_restarted {
            return Some(Exit { token, terms, ended: AfterExit::Replace(Duration::ZERO) });
        }
        // One that never connected has failed however long that took, in the queue of a cluster for example.
        let failed = !is_useful && (peer.is_none() || began.elapsed() < SHORT_LIFE);
        if crashed_at_work {
            // A crash at work is no failed start and never leads to giving up.
            self.crashes = if failed { self.crashes.saturating_add(1).min(MAX_FAILED_STARTS) } else { 0 };
        } else if failed {
            self.count_failed_start();
        } else {
            self.failed_starts = 0;
        }
        let ended = match self.replaced >= self.replacement.max {
            true => AfterExit::NotReplaced,
            false if crashed_at_work => self.attempt_after(self.crashes),
            false => self.attempt_after(self.failed_starts),
        };
        self.replaced = self.replaced.saturating_add(u32::from(matches!(ended, AfterExit::Replace(_))));
        Some(Exit { token, terms, ended })
    }

    /// Handles a child that could not be started and decides what follows. Waiting for a launcher is no failure: the hub
    /// limits that itself.
    pub(super) fn handle_failed_start(&mut self, error: &LaunchError) -> AfterExit {
        if let LaunchError::NotYet(_) = error {
            return AfterExit::Replace(self.replacement.delay.max(NOT_YET));
        }
        self.count_failed_start();
        match self.attempt_after(self.failed_starts) {
            AfterExit::Replace(pause) => AfterExit::Replace(pause.max(pause_after(self.failed_starts))),
            ended => ended,
        }
    }

    /// Decides after this many consecutive failures: the first ones are retried immediately, the next ones after exponential
    /// backoff, and then it gives up.
    fn attempt_after(&self, failures: u32) -> AfterExit {
        let delay = self.replacement.delay;
        match failures {
            0..=FREE_FAILED_STARTS => AfterExit::Replace(delay),
            n if n <= MAX_FAILED_STARTS => AfterExit::Replace(delay.max(pause_after(n))),
            _ => AfterExit::GiveUp,
        }
    }
}

/// Returns the delay after this many consecutive failures (exponential backoff).
fn pause_after(failed_starts: u32) -> Duration {
    Duration::from_millis(100 << failed_starts.min(MAX_FAILED_STARTS))
}

/// Forwards what a child writes to its standard error, line by line, within limits; the rest is dropped.
struct LogLines {
    number: u32,
    events: mpsc::Sender<Event>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// When the current second began, and the number of its lines.
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

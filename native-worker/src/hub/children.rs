//! Local workers: child processes of the hub, each with a token of its own.

#[cfg(test)]
mod tests;

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

use super::{
    UNENCRYPTED_FLAG,
    actor::Event,
    calls::{Replacement, Reply},
    random_token,
};
use crate::{
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher, WorkerSpec},
    net::Trust,
};

/// A child that ends before this time without having been of any use has failed to start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Starts in a row that may fail.
const MAX_FAILED_STARTS: u32 = 5;
/// Children in a row that may fail before the next one has to wait: somebody may kill them.
const FREE_FAILED_STARTS: u32 = 2;
/// A child that was dismissed may take this long to go by itself.
const GRACE: Duration = Duration::from_secs(3);

/// With what a child is started, and whoever takes its place.
#[derive(Clone, Debug)]
pub(super) struct ChildTerms {
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) spec: WorkerSpec,
    /// Environment variables besides the hub's.
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
    /// The name of the kernels that they run, if it is not their choice.
    pub(super) kernels: Option<&'static str>,
}

impl Way {
    /// The same as arguments of `rollmesh worker`.
    fn arguments(&self) -> Vec<String> {
        let trust = match self.trust.fingerprint {
            Some(fingerprint) => vec!["--tls-fingerprint".into(), fingerprint.to_string()],
            None => vec![UNENCRYPTED_FLAG.into()],
        };
        let kernels = self.kernels.map(|name| vec!["--kernels".into(), name.into()]).unwrap_or_default();
        [vec!["--hub".into(), self.url.clone()], trust, kernels].concat()
    }
}

/// The local workers that should be there.
pub(super) struct Children {
    /// Who starts those of whom nobody says anything else.
    launcher: Arc<dyn Launcher>,
    pub(super) way: Way,
    pub(super) events: mpsc::Sender<Event>,
    next: u32,
    running: BTreeMap<u32, Running>,
    /// One that was started before anybody needs it, and takes the place of the next one that ends. It counts as none of them
    /// until then.
    spare: Option<u32>,
    failed_starts: u32,
    /// Short lives in a row that ended with a crash at work.
    crashes: u32,
    replacement: Replacement,
    replaced: u32,
    /// Replacements that wait for their time, by the child whose place they take.
    awaited: BTreeMap<u32, Arc<ChildTerms>>,
}

struct Running {
    terms: Arc<ChildTerms>,
    token: TokenId,
    pid: Option<u32>,
    /// As what it is connected to the hub, or was last.
    peer: Option<u32>,
    began: Instant,
    /// It has done something for somebody: whatever ends it later, it can work.
    is_useful: bool,
    /// Its process crashed while it held a lease: it has started well, and the environment is to blame.
    crashed_at_work: bool,
    /// It is about to go, and not to be replaced.
    dismissed: bool,
    kill: Option<oneshot::Sender<()>>,
    /// Who wants to know when it is gone.
    when_gone: Vec<Reply<()>>,
}

/// A child is gone.
pub(super) struct Exit {
    /// To be revoked.
    pub(super) token: TokenId,
    pub(super) terms: Arc<ChildTerms>,
    pub(super) ended: Ended,
}

/// What follows from the end of a child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was meant to go, or had no place.
    AsWished,
    /// It has to be replaced, after this pause.
    Replace(Duration),
    /// It is not to be replaced, as somebody wishes.
    NotReplaced,
    /// It ends again and again: no more attempts.
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

    /// Who starts workers, unless somebody else is to.
    pub(super) fn launcher(&self) -> Arc<dyn Launcher> {
        self.launcher.clone()
    }

    /// Sets when workers that ended are replaced.
    pub(super) fn replace_as(&mut self, replacement: Replacement) {
        self.replacement = replacement;
    }

    /// Workers that are there or about to be.
    pub(super) fn count(&self) -> usize {
        self.staying().len() + self.awaited.len()
    }

    /// The numbers of those that are there, oldest first.
    pub(super) fn staying(&self) -> Vec<u32> {
        let staying = self.running.iter().filter(|(number, child)| !child.dismissed && !self.is_spare(**number));
        staying.map(|(&number, _)| number).collect()
    }

    /// True if the child waits for a place.
    pub(super) fn is_spare(&self, number: u32) -> bool {
        self.spare == Some(number)
    }

    /// True if there is no spare one, and ended ones are replaced at once and always.
    pub(super) fn wants_spare(&self) -> bool {
        self.spare.is_none() && self.replacement == Replacement::default()
    }

    /// The child is the spare one from now on.
    pub(super) fn keep_as_spare(&mut self, number: u32) {
        self.spare = Some(number);
    }

    /// The spare one, for a place on these terms; its life begins with this.
    pub(super) fn take_spare(&mut self, terms: &ChildTerms) -> Option<u32> {
        let number = self.spare?;
        let child = self.running.get_mut(&number).filter(|child| *child.terms == *terms)?;
        child.began = Instant::now();
        self.spare = None;
        Some(number)
    }

    /// The spare one, which nobody needs any more.
    pub(super) fn release_spare(&mut self) -> Option<u32> {
        self.spare.take()
    }

    /// A number that no child has had.
    pub(super) fn next_number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Starts a worker; its number, and the token that it will present.
    pub(super) fn start(&mut self, terms: &Arc<ChildTerms>) -> Result<(u32, Token), LaunchError> {
        let number = self.next_number();
        let token = random_token().map_err(|error| LaunchError::Failed(format!("there is no token: {error}")))?;
        let (way, spec, environs) = (self.way.arguments(), &terms.spec, &terms.environs);
        let order = LaunchOrder { number, way: &way, token: &token, spec, environs };
        let worker = terms.launcher.launch(&order)?;
        let pid = worker.pid();
        let (kill, killed) = oneshot::channel();
        tokio::spawn(watch(number, worker, killed, self.events.clone()));
        let id = TokenHash::of(&token).id();
        let running = Running {
            terms: terms.clone(),
            token: id,
            pid,
            peer: None,
            began: Instant::now(),
            is_useful: false,
            crashed_at_work: false,
            dismissed: false,
            kill: Some(kill),
            when_gone: Vec::new(),
        };
        self.running.insert(number, running);
        Ok((number, token))
    }

    /// The processes, by the system's numbers.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.running.values().filter_map(|child| child.pid).collect()
    }

    /// As what the child was connected to the hub last; none if it never was, or has ended.
    pub(super) fn peer_of(&self, number: u32) -> Option<u32> {
        self.running.get(&number).and_then(|child| child.peer)
    }

    /// The child is connected to the hub as this peer.
    pub(super) fn is_connected_as(&mut self, number: u32, peer: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.peer = Some(peer);
        }
    }

    /// The child has done something for somebody.
    pub(super) fn was_useful(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.is_useful = true;
            self.failed_starts = 0;
        }
    }

    /// The child's process crashed while it held a lease. Where others succeed with the fragment it is replaced for ever, but
    /// not at full speed.
    pub(super) fn has_crashed_at_work(&mut self, number: u32) {
        if let Some(child) = self.running.get_mut(&number) {
            child.crashed_at_work = true;
        }
    }

    /// True until the child has ended.
    pub(super) fn is_running(&self, number: u32) -> bool {
        self.running.contains_key(&number)
    }

    /// True if another child follows this one, or nobody wants one.
    pub(super) fn may_end(&self, number: u32) -> bool {
        let more = self.replaced < self.replacement.max;
        self.running.get(&number).is_some_and(|child| child.dismissed || more)
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
    pub(super) fn replace_after(&mut self, number: u32, terms: Arc<ChildTerms>, pause: Duration) {
        self.awaited.insert(number, terms);
        let events = self.events.clone();
        tokio::spawn(async move {
            sleep(pause).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::ReplaceChild { number }).await;
        });
    }

    /// It is time for a replacement, on these terms; none if nobody wants it any more.
    pub(super) fn begin_replacement(&mut self, number: u32) -> Option<Arc<ChildTerms>> {
        self.awaited.remove(&number)
    }

    /// Nobody wants the replacements any more that wait for their time.
    pub(super) fn forget_replacements(&mut self) {
        self.awaited.clear();
    }

    /// True if replacements wait for their time.
    pub(super) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Asks, after a while, whether a child that has lost its connection has another one.
    pub(super) fn ask_for(&self, number: u32, patience: Duration) {
        let events = self.events.clone();
        tokio::spawn(async move {
            sleep(patience).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::ChildSilent { number }).await;
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

    /// Tells when a child is gone, and what it was granted is free.
    pub(super) fn tell_when_gone(&mut self, number: u32, reply: Reply<()>) {
        match self.running.get_mut(&number) {
            Some(child) => child.when_gone.push(reply),
            None => reply(()),
        }
    }

    /// A child is gone: what follows.
    pub(super) fn handle_exit(&mut self, number: u32) -> Option<Exit> {
        let child = self.running.remove(&number)?;
        let Running { terms, token, began, is_useful, crashed_at_work, dismissed, when_gone, .. } = child;
        when_gone.into_iter().for_each(|reply| reply(()));
        if dismissed || self.spare.take_if(|spare| *spare == number).is_some() {
            return Some(Exit { token, terms, ended: Ended::AsWished });
        }
        let failed = !is_useful && began.elapsed() < SHORT_LIFE;
        if crashed_at_work {
            // It is no failed start, and never too many.
            self.crashes = if failed { self.crashes.saturating_add(1).min(MAX_FAILED_STARTS) } else { 0 };
        } else {
            self.failed_starts = if failed { self.failed_starts.saturating_add(1) } else { 0 };
        }
        let ended = match self.replaced >= self.replacement.max {
            true => Ended::NotReplaced,
            false if crashed_at_work => self.attempt_after(self.crashes),
            false => self.attempt_after(self.failed_starts),
        };
        self.replaced = self.replaced.saturating_add(u32::from(matches!(ended, Ended::Replace(_))));
        Some(Exit { token, terms, ended })
    }

    /// A child could not even be started: what follows.
    pub(super) fn handle_failed_start(&mut self) -> Ended {
        self.failed_starts = self.failed_starts.saturating_add(1);
        match self.attempt_after(self.failed_starts) {
            Ended::Replace(pause) => Ended::Replace(pause.max(pause_after(self.failed_starts))),
            ended => ended,
        }
    }

    fn attempt_after(&self, failures: u32) -> Ended {
        let delay = self.replacement.delay;
        match failures {
            0..=FREE_FAILED_STARTS => Ended::Replace(delay),
            n if n <= MAX_FAILED_STARTS => Ended::Replace(delay.max(pause_after(n))),
            _ => Ended::GiveUp,
        }
    }
}

/// The pause after so many failures in a row.
fn pause_after(failed_starts: u32) -> Duration {
    Duration::from_millis(100 << failed_starts.min(MAX_FAILED_STARTS))
}

/// Waits for the end of a child, or kills it.
async fn watch(
    number: u32,
    mut worker: Box<dyn LaunchedWorker>,
    killed: oneshot::Receiver<()>,
    events: mpsc::Sender<Event>,
) {
    let end = tokio::select! {
        end = worker.ended() => Some(end),
        // Without a sender left the hub is going, and takes its children along.
        _ = killed => None,
    };
    let end = match end {
        Some(end) => end,
        None => {
            worker.kill();
            // Where there are no signals its status cannot tell this from a crash.
            LaunchedEnd { is_crash: false, ..worker.ended().await }
        }
    };
    // What it was granted is free before anybody asks for it again.
    drop(worker);
    let _ = events.send(Event::ChildExited { number, end }).await;
}

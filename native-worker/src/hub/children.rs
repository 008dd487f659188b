//! Local workers: child processes of the hub, each with a token of its own.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{Token, TokenHash, TokenId};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{TOKEN_VARIABLE, actor::Event, random_token};

/// A child that ends before this time without having reached the hub has failed to start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Starts in a row that may fail.
const MAX_FAILED_STARTS: u32 = 5;
/// A child that was dismissed may take this long to go by itself.
const GRACE: Duration = Duration::from_secs(3);

/// The local workers that should be there.
pub(super) struct Children {
    program: PathBuf,
    /// How they reach the hub: arguments of `worker`.
    way: Vec<String>,
    events: mpsc::Sender<Event>,
    next: u32,
    running: BTreeMap<u32, Running>,
    failed_starts: u32,
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
    /// It ends again and again: no more attempts.
    GiveUp,
}

impl Children {
    pub(super) fn new(program: PathBuf, way: Vec<String>, events: mpsc::Sender<Event>) -> Self {
        Self { program, way, events, next: 1, running: BTreeMap::new(), failed_starts: 0 }
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
    pub(super) fn start(&mut self, extra_environs: &BTreeMap<String, String>) -> io::Result<(u32, Token)> {
        let number = self.next;
        let token = random_token().map_err(io::Error::other)?;
        let mut command = Command::new(&self.program);
        // Ctrl-C in the hub's terminal is for the hub, which tells its children.
        #[cfg(unix)]
        command.process_group(0);
        let child = command
            .arg("worker")
            .args(&self.way)
            .args(["--name", &format!("local-{number}"), "--until-stdin-closes"])
            .envs(extra_environs)
            .env(TOKEN_VARIABLE, token.to_hex())
            // The pipe closes with the hub, however it ends: no worker outlives it.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        self.next += 1;
        let pid = child.id();
        let (kill, killed) = oneshot::channel();
        tokio::spawn(watch(number, child, killed, self.events.clone()));
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
        let ended = match self.failed_starts {
            0 | 1 => Ended::Replace(Duration::ZERO),
            n if n <= MAX_FAILED_STARTS => Ended::Replace(Duration::from_millis(100 << n)),
            _ => Ended::GiveUp,
        };
        Some((child.token, ended))
    }
}

/// Waits for the end of a child, or kills it.
async fn watch(number: u32, mut child: Child, killed: oneshot::Receiver<()>, events: mpsc::Sender<Event>) {
    // Taken out, since waiting for the child would close it: the child takes that for the end of the hub.
    let stdin = child.stdin.take();
    let status: io::Result<ExitStatus> = tokio::select! {
        status = child.wait() => status,
        // Without a sender left the hub is going, and takes its children along.
        _ = killed => {
            let _ = child.start_kill();
            timeout(GRACE, child.wait()).await.unwrap_or_else(|_| Err(io::Error::other("it does not end")))
        }
    };
    drop(stdin);
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    let _ = events.send(Event::ChildExited { number, status }).await;
}

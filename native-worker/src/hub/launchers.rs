//! The hub's launchers: this machine's, and programs that have connected to start workers elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message, TokenHash, TokenId,
    handshake::Accepted,
    message::{EndWorker, LaunchWorker, LauncherReady, WorkerEnded},
    printable,
};
use tokio::{sync::oneshot, time::timeout};

use super::link::{CloseReason, PeerLink};
use crate::{
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher},
    net::LAUNCHER_ABSENCE,
};

/// Time for a launcher to report the end of a worker that it was told to end.
const KILLED: Duration = Duration::from_secs(20);

/// Starts the hub's local workers: through the launchers that are connected, or expected back; on this machine if there are
/// none.
#[derive(Clone, Debug)]
pub(super) struct Launchers {
    here: Arc<dyn Launcher>,
    elsewhere: Arc<Mutex<RemoteLaunchers>>,
}

/// Identifies a launcher over its connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LauncherKey {
    pub(super) token: TokenId,
    pub(super) name: String,
}

impl LauncherKey {
    pub(super) fn of(accepted: &Accepted) -> Self {
        Self { token: accepted.token, name: accepted.name.clone() }
    }
}

#[derive(Debug)]
struct RemoteLaunchers {
    /// Distinguishes the workers of this hub from those of earlier hubs.
    life: u32,
    launchers: BTreeMap<LauncherKey, RemoteLauncher>,
    /// Workers that are being started or running, by id.
    workers: BTreeMap<u64, PlacedWorker>,
}

/// A connected launcher, or one that is expected back.
#[derive(Debug)]
struct RemoteLauncher {
    peer: u32,
    link: PeerLink,
    capacity: usize,
    token_seconds: u32,
    absent_since: Option<Instant>,
}

/// A worker of a connected launcher.
#[derive(Debug)]
struct PlacedWorker {
    by: LauncherKey,
    token: TokenId,
    /// The resume id that was given to the one worker that its token admits; `None` before it has joined.
    session: Option<[u8; 16]>,
    end: oneshot::Sender<LaunchedEnd>,
}

impl Launchers {
    pub(super) fn new(here: Arc<dyn Launcher>, life: u32) -> Self {
        let elsewhere = RemoteLaunchers { life, launchers: BTreeMap::new(), workers: BTreeMap::new() };
        Self { here, elsewhere: Arc::new(Mutex::new(elsewhere)) }
    }

    fn elsewhere(&self) -> MutexGuard<'_, RemoteLaunchers> {
        lock(&self.elsewhere)
    }

    /// Handles a launcher's report of its state. Workers that it no longer has are reported as ended, and it is told to end
    /// those that this hub does not know. Returns the link of an older connection of the same launcher.
    pub(super) fn handle_ready(
        &self,
        (peer, key, link): (u32, LauncherKey, &PeerLink),
        ready: &LauncherReady,
    ) -> Option<PeerLink> {
        let mut elsewhere = self.elsewhere();
        let running: BTreeSet<u64> = ready.running.iter().copied().collect();
        for id in running.iter().filter(|id| elsewhere.workers.get(id).is_none_or(|worker| worker.by != key)) {
            let _ = link.send(&Message::EndWorker(EndWorker { worker: *id }));
        }
        let remote = RemoteLauncher {
            peer,
            link: link.clone(),
            capacity: ready.capacity.min(LauncherReady::MAX_WORKERS as u32) as usize,
            token_seconds: ready.token_seconds.min(LauncherReady::MAX_TOKEN_SECONDS),
            absent_since: None,
        };
        let before = elsewhere.launchers.insert(key.clone(), remote);
        let before = before.filter(|before| before.peer != peer);
        if before.is_some() {
            elsewhere.end_where(|id, worker| worker.by == key && !running.contains(&id), "its launcher lost it");
        }
        before.filter(|before| before.absent_since.is_none()).map(|before| before.link)
    }

    /// Handles a launcher's report that a worker has ended; others' workers are none of its business.
    pub(super) fn handle_ended(&self, peer: u32, ended: &WorkerEnded) {
        let mut elsewhere = self.elsewhere();
        let Some(worker) = elsewhere.workers.get(&ended.worker) else { return };
        if elsewhere.launchers.get(&worker.by).is_some_and(|launcher| launcher.peer == peer) {
            let end = LaunchedEnd { status: printable(&ended.status), is_crash: ended.is_crash };
            elsewhere.end(ended.worker, end);
        }
    }

    /// Records that a launcher's connection was lost.
    pub(super) fn handle_lost(&self, peer: u32) {
        if let Some(launcher) = self.elsewhere().launchers.values_mut().find(|launcher| launcher.peer == peer) {
            launcher.absent_since = Some(Instant::now());
        }
    }

    /// Returns the launchers that are absent for too long or whose token is not valid any more.
    pub(super) fn over(&self, is_valid: impl Fn(TokenId) -> bool) -> Vec<LauncherKey> {
        let is_over = |(key, launcher): &(&LauncherKey, &RemoteLauncher)| {
            launcher.absent_since.is_some_and(|since| since.elapsed() >= LAUNCHER_ABSENCE) || !is_valid(key.token)
        };
        self.elsewhere().launchers.iter().filter(is_over).map(|(key, _)| key.clone()).collect()
    }

    /// True if the launcher is connected.
    pub(super) fn is_present(&self, key: &LauncherKey) -> bool {
        self.elsewhere().launchers.get(key).is_some_and(|launcher| launcher.absent_since.is_none())
    }

    /// Returns the launcher of this connection.
    pub(super) fn of_peer(&self, peer: u32) -> Option<LauncherKey> {
        let elsewhere = self.elsewhere();
        elsewhere.launchers.iter().find(|(_, launcher)| launcher.peer == peer).map(|(key, _)| key.clone())
    }

    /// Returns the numbers of a launcher's workers.
    pub(super) fn workers_of(&self, key: &LauncherKey) -> Vec<u32> {
        // The lower half of an id is the number.
        self.elsewhere().workers.iter().filter(|(_, worker)| worker.by == *key).map(|(&id, _)| id as u32).collect()
    }

    /// Removes a launcher; its workers count as ended.
    pub(super) fn remove(&self, key: &LauncherKey) {
        let mut elsewhere = self.elsewhere();
        elsewhere.end_where(|_, worker| worker.by == *key, "its launcher left");
        if let Some(launcher) = elsewhere.launchers.remove(key) {
            launcher.link.close(CloseReason::Done, "this launcher was removed");
        }
    }

    /// Removes all launchers, when the hub stops.
    pub(super) fn remove_all(&self) {
        let keys: Vec<LauncherKey> = self.elsewhere().launchers.keys().cloned().collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// Returns for how many seconds the token of a worker is valid until that worker has joined; `None` if no connected
    /// launcher starts it.
    pub(super) fn token_seconds(&self, token: TokenId) -> Option<u32> {
        let elsewhere = self.elsewhere();
        let worker = elsewhere.placed(token)?;
        elsewhere.launchers.get(&worker.by).map(|launcher| launcher.token_seconds)
    }

    /// Returns the name of the launcher that has started the worker with this token.
    pub(super) fn name(&self, token: TokenId) -> Option<String> {
        self.elsewhere().placed(token).map(|worker| worker.by.name.clone())
    }

    /// True if this token may admit a peer that asks to resume this session: the token of a launcher's worker admits one.
    pub(super) fn may_join(&self, token: TokenId, resume: Option<[u8; 16]>) -> bool {
        self.elsewhere().placed(token).is_none_or(|worker| worker.session.is_none() || worker.session == resume)
    }

    /// Records the session of an admitted peer. True if it is the first of its token.
    pub(super) fn joined(&self, token: TokenId, session: [u8; 16]) -> bool {
        let mut elsewhere = self.elsewhere();
        let worker = elsewhere.workers.values_mut().find(|worker| worker.token == token);
        worker.is_some_and(|worker| worker.session.replace(session).is_none())
    }
}

impl Launcher for Launchers {
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        let mut elsewhere = self.elsewhere();
        if elsewhere.launchers.is_empty() {
            drop(elsewhere);
            return self.here.launch(order);
        }
        if !order.environs.is_empty() {
            let (what, needs) = ("environment variables of a run", "workers of the hub's own machine");
            return Err(LaunchError::Unsupported { what, needs });
        }
        let spec = serde_json::to_string(order.spec).map_err(|error| LaunchError::Failed(error.to_string()))?;
        let by = elsewhere.roomiest()?;
        let worker = u64::from(elsewhere.life) << 32 | u64::from(order.number);
        let message = LaunchWorker { worker, number: order.number, token: *order.token, spec };
        if let Some(launcher) = elsewhere.launchers.get(&by) {
            launcher
                .link
                .send(&Message::LaunchWorker(message))
                .map_err(|error| LaunchError::Failed(error.to_string()))?;
        }
        let (end, ended) = oneshot::channel();
        let token = TokenHash::of(order.token).id();
        elsewhere.workers.insert(worker, PlacedWorker { by, token, session: None, end });
        Ok(Box::new(WorkerElsewhere { worker, elsewhere: self.elsewhere.clone(), ended, is_killed: false }))
    }
}

impl RemoteLaunchers {
    /// Returns the launcher with the most free places.
    fn roomiest(&self) -> Result<LauncherKey, LaunchError> {
        let mut taken = BTreeMap::<&LauncherKey, usize>::new();
        self.workers.values().for_each(|worker| *taken.entry(&worker.by).or_default() += 1);
        let present = self.launchers.iter().filter(|(_, launcher)| launcher.absent_since.is_none());
        let free = present
            .map(|(key, launcher)| (launcher.capacity.saturating_sub(taken.get(key).copied().unwrap_or(0)), key));
        match free.max_by_key(|(free, _)| *free) {
            None => Err(LaunchError::Failed("the launchers have lost their connections".into())),
            Some((0, _)) => Err(LaunchError::NoPlace { workers: self.workers.len() as u64 }),
            Some((_, key)) => Ok(key.clone()),
        }
    }

    fn placed(&self, token: TokenId) -> Option<&PlacedWorker> {
        self.workers.values().find(|worker| worker.token == token)
    }

    fn end(&mut self, worker: u64, end: LaunchedEnd) {
        if let Some(worker) = self.workers.remove(&worker) {
            // The hub may no longer wait for it.
            let _ = worker.end.send(end);
        }
    }

    fn end_where(&mut self, is_over: impl Fn(u64, &PlacedWorker) -> bool, status: &str) {
        let over = self.workers.iter().filter(|(id, worker)| is_over(**id, worker));
        let over: Vec<u64> = over.map(|(&id, _)| id).collect();
        over.into_iter().for_each(|id| self.end(id, LaunchedEnd::plain(status)));
    }

    /// Tells the worker's launcher to end it; one that is absent is told when it returns.
    fn kill(&self, id: u64) {
        if let Some(launcher) = self.workers.get(&id).and_then(|worker| self.launchers.get(&worker.by)) {
            // It is small.
            let _ = launcher.link.send(&Message::EndWorker(EndWorker { worker: id }));
        }
    }
}

fn lock(elsewhere: &Mutex<RemoteLaunchers>) -> MutexGuard<'_, RemoteLaunchers> {
    // No code panics while holding the lock.
    elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hub's handle of a worker that a connected launcher has started.
struct WorkerElsewhere {
    worker: u64,
    elsewhere: Arc<Mutex<RemoteLaunchers>>,
    ended: oneshot::Receiver<LaunchedEnd>,
    is_killed: bool,
}

impl LaunchedWorker for WorkerElsewhere {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn kill(&mut self) {
        self.is_killed = true;
        lock(&self.elsewhere).kill(self.worker);
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(async {
            let ended = if self.is_killed {
                timeout(KILLED, &mut self.ended).await.map_err(|_| "its launcher does not say that it has ended")
            } else {
                Ok((&mut self.ended).await)
            };
            match ended {
                Ok(Ok(end)) => end,
                Ok(Err(_)) => LaunchedEnd::plain("its launcher is gone"),
                Err(late) => LaunchedEnd::plain(late),
            }
        })
    }
}

impl Drop for WorkerElsewhere {
    fn drop(&mut self) {
        let mut elsewhere = lock(&self.elsewhere);
        elsewhere.kill(self.worker);
        elsewhere.workers.remove(&self.worker);
    }
}

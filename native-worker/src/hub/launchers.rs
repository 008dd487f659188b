//! The hub's launchers: this machine's, and programs that have connected to start workers elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rollmesh_core::{
    hub::{CloseReason, PeerConnection as _},
    protocol::{
        Message, TokenHash, TokenId,
        handshake::Accepted,
        message::{EndWorker, LaunchWorker, LauncherList, LauncherReady, LauncherRow, WorkerEnded},
        printable,
    },
};
use tokio::{sync::oneshot, time::timeout};

use super::link::PeerLink;
use crate::{
    envs::ENV_MEMORY_VARIABLE,
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher},
    net::LAUNCHER_ABSENCE,
};

/// Time for a launcher to report the end of a worker that it was commanded to end.
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
    /// Its session, which outlives its connection and its token.
    session: [u8; 16],
    link: PeerLink,
    capacity: usize,
    token_seconds: u32,
    absent_since: Option<Instant>,
    /// Workers that it was commanded to end and that the hub does not count as running any more; each still takes a place.
    ending: BTreeSet<u64>,
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

    /// Lets the launcher of a session, and its workers, depend on the token that it has now. A launcher that has this token and
    /// name already is another one: then nothing changes.
    pub(super) fn rename(&self, session: [u8; 16], key: &LauncherKey) {
        let mut elsewhere = self.elsewhere();
        let is_resumed = |launcher: &RemoteLauncher| launcher.session == session && session != [0; 16];
        let old = elsewhere.launchers.iter().find(|(old, launcher)| old.name == key.name && is_resumed(launcher));
        let old = old.map(|(old, _)| old.clone());
        let Some(old) = old.filter(|_| !elsewhere.launchers.contains_key(key)) else { return };
        let launcher = elsewhere.launchers.remove(&old);
        elsewhere.launchers.extend(launcher.map(|launcher| (key.clone(), launcher)));
        elsewhere.workers.values_mut().filter(|worker| worker.by == old).for_each(|worker| worker.by = key.clone());
    }

    /// Handles a launcher's report of its state. Workers that it no longer has are reported as ended, and it is commanded to end
    /// those that this hub does not know. Returns the link of an older connection of the same launcher.
    pub(super) fn handle_ready(
        &self,
        (peer, key, session, link): (u32, LauncherKey, [u8; 16], &PeerLink),
        ready: &LauncherReady,
    ) -> Option<PeerLink> {
        let mut elsewhere = self.elsewhere();
        let running: BTreeSet<u64> = ready.running.iter().copied().collect();
        let is_unknown = |id: &u64| elsewhere.workers.get(id).is_none_or(|worker| worker.by != key);
        let ending: BTreeSet<u64> = running.iter().copied().filter(is_unknown).collect();
        for &worker in &ending {
            let _ = link.send(&Message::EndWorker(EndWorker { worker }));
        }
        let remote = RemoteLauncher {
            peer,
            session,
            link: link.clone(),
            capacity: ready.capacity.min(LauncherReady::MAX_WORKERS as u32) as usize,
            token_seconds: ready.token_seconds.min(LauncherReady::MAX_TOKEN_SECONDS),
            absent_since: None,
            ending,
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
        let by = elsewhere.launchers.iter_mut().find(|(_, launcher)| launcher.peer == peer);
        let Some((key, launcher)) = by else { return };
        launcher.ending.remove(&ended.worker);
        let key = key.clone();
        if elsewhere.workers.get(&ended.worker).is_some_and(|worker| worker.by == key) {
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

    /// Returns the launchers for dashboards.
    pub(super) fn list(&self) -> LauncherList {
        let elsewhere = self.elsewhere();
        let row = |(key, launcher): (&LauncherKey, &RemoteLauncher)| LauncherRow {
            name: key.name.clone(),
            capacity: launcher.capacity as u32,
            running: elsewhere.running(key) as u32,
            absent: launcher.absent_since.is_some(),
        };
        LauncherList { launchers: elsewhere.launchers.iter().take(LauncherList::MAX).map(row).collect() }
    }

    /// True if no launcher is connected or expected back.
    pub(super) fn is_empty(&self) -> bool {
        self.elsewhere().launchers.is_empty()
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
        // The memory of environments is limited by the other machine's own setting.
        if order.environs.keys().any(|name| name != ENV_MEMORY_VARIABLE) {
            let (what, needs) = ("environment variables of a run", "workers of the hub's own machine");
            return Err(LaunchError::Unsupported { what, needs });
        }
        let spec = serde_json::to_string(order.spec).map_err(|error| LaunchError::Failed(error.to_string()))?;
        let (by, launcher) = elsewhere.roomiest()?;
        let worker = u64::from(elsewhere.life) << 32 | u64::from(order.number);
        let message = LaunchWorker { worker, number: order.number, token: *order.token, spec };
        launcher.link.send(&Message::LaunchWorker(message)).map_err(|error| LaunchError::Failed(error.to_string()))?;
        let joins_within = Duration::from_secs(launcher.token_seconds.into());
        let (end, ended) = oneshot::channel();
        let token = TokenHash::of(order.token).id();
        elsewhere.workers.insert(worker, PlacedWorker { by, token, session: None, end });
        let elsewhere = self.elsewhere.clone();
        Ok(Box::new(WorkerElsewhere { worker, elsewhere, ended, joins_within, is_killed: false }))
    }
}

impl RemoteLaunchers {
    /// Returns the connected launcher with the most free places.
    fn roomiest(&self) -> Result<(LauncherKey, &RemoteLauncher), LaunchError> {
        let free = |(key, launcher): &(&LauncherKey, &RemoteLauncher)| {
            launcher.capacity.saturating_sub(self.running(key) + launcher.ending.len())
        };
        let (present, absent): (Vec<_>, Vec<_>) =
            self.launchers.iter().partition(|(_, launcher)| launcher.absent_since.is_none());
        match present.iter().max_by_key(|launcher| free(launcher)) {
            Some(best) if free(best) > 0 => Ok((best.0.clone(), best.1)),
            _ if present.is_empty() || absent.iter().any(|launcher| free(launcher) > 0) => {
                Err(LaunchError::NotYet("launchers with free places have lost their connections"))
            }
            _ if present.iter().any(|(_, launcher)| !launcher.ending.is_empty()) => {
                Err(LaunchError::NotYet("the launchers' places are free once they have ended other workers"))
            }
            _ => Err(LaunchError::NoPlace { workers: present.iter().map(|(key, _)| self.running(key) as u64).sum() }),
        }
    }

    /// Returns the number of workers that are being started or running by a launcher.
    fn running(&self, key: &LauncherKey) -> usize {
        self.workers.values().filter(|worker| worker.by == *key).count()
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

    /// Commands the worker's launcher to end it; one that is absent gets the command when it returns.
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
    /// The lifetime of its token.
    joins_within: Duration,
    is_killed: bool,
}

impl LaunchedWorker for WorkerElsewhere {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn joins_within(&self) -> Option<Duration> {
        Some(self.joins_within)
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
                Ok(Err(_)) => LaunchedEnd::plain("its launcher has disconnected"),
                Err(late) => LaunchedEnd::plain(late),
            }
        })
    }
}

impl Drop for WorkerElsewhere {
    fn drop(&mut self) {
        let mut elsewhere = lock(&self.elsewhere);
        elsewhere.kill(self.worker);
        let worker = elsewhere.workers.remove(&self.worker);
        if let Some(launcher) = worker.and_then(|worker| elsewhere.launchers.get_mut(&worker.by)) {
            launcher.ending.insert(self.worker);
        }
    }
}

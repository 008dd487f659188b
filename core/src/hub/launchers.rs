//! Launchers that have connected to start workers elsewhere, and the workers that they run.

use super::{CloseReason, PeerConnection};
use crate::{
    prelude::*,
    protocol::{
        Message, Token, TokenHash, TokenId, TooLarge,
        handshake::Accepted,
        message::{EndWorker, LaunchWorker, LauncherList, LauncherReady, LauncherRow, WorkerEnded},
        printable,
    },
    time::Micros,
};

/// Identifies a launcher over its connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LauncherKey {
    /// The token that it depends on.
    pub token: TokenId,
    /// Its name.
    pub name: String,
}

impl LauncherKey {
    /// Returns the key of a launcher that is about to be admitted.
    #[must_use]
    pub fn of(accepted: &Accepted) -> Self {
        Self { token: accepted.token, name: accepted.name.clone() }
    }
}

/// A connection of a launcher that has reported its state.
#[derive(Clone, Debug)]
pub struct LauncherPeer<C> {
    /// The peer.
    pub id: u32,
    /// Its key.
    pub key: LauncherKey,
    /// Its session, which outlives its connection and its token.
    pub session: [u8; 16],
    /// Its connection.
    pub link: C,
}

/// The launchers that are connected or expected back, without I/O, and the workers that are being started or running by them.
#[derive(Debug)]
pub struct RemoteLaunchers<C> {
    /// Distinguishes the workers of this hub from those of earlier hubs.
    life: u32,
    /// The duration for which a launcher is expected back.
    max_absence: Micros,
    launchers: BTreeMap<LauncherKey, RemoteLauncher<C>>,
    /// Workers by id.
    workers: BTreeMap<u64, PlacedWorker>,
    ended: VecDeque<WorkerEnded>,
}

#[derive(Debug)]
struct RemoteLauncher<C> {
    peer: u32,
    session: [u8; 16],
    link: C,
    capacity: usize,
    token_seconds: u32,
    absent_since: Option<Micros>,
    /// Workers that it was commanded to end and that the hub does not count as running any more; each still takes a place.
    ending: BTreeSet<u64>,
}

#[derive(Debug)]
struct PlacedWorker {
    by: LauncherKey,
    token: TokenId,
    /// The resume id that was given to the one worker that its token admits; `None` before it has joined.
    session: Option<[u8; 16]>,
}

/// A worker that a launcher was commanded to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedLaunch {
    /// Its id.
    pub worker: u64,
    /// Seconds for which its token is valid until it has joined.
    pub token_seconds: u32,
}

/// The reason why no launcher can start a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLaunch {
    /// No connected launcher has a free place now, but soon one may: the reason.
    NotYet(&'static str),
    /// All places are taken.
    NoPlace {
        /// Number of workers that the launchers run.
        workers: u64,
    },
    /// The command does not fit into a message.
    TooLarge(TooLarge),
}

impl<C: PeerConnection + Clone> RemoteLaunchers<C> {
    /// Creates a hub's launchers, of which there are none yet. One that has lost its connection is expected back for
    /// `max_absence`.
    #[must_use]
    pub fn new(life: u32, max_absence: Micros) -> Self {
        let (launchers, workers, ended) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { life, max_absence, launchers, workers, ended }
    }

    /// Commands the connected launcher with the most free places to start a worker of this number. Its token is in the message.
    ///
    /// # Errors
    /// [`NoLaunch`]; then nothing was started.
    pub fn launch(&mut self, number: u32, token: &Token, spec: String) -> Result<PlacedLaunch, NoLaunch> {
        let (by, launcher) = self.roomiest()?;
        let worker = u64::from(self.life) << 32 | u64::from(number);
        let message = LaunchWorker { worker, number, token: *token, spec };
        launcher.link.send(&Message::LaunchWorker(message)).map_err(NoLaunch::TooLarge)?;
        let token_seconds = launcher.token_seconds;
        self.workers.insert(worker, PlacedWorker { by, token: TokenHash::of(token).id(), session: None });
        Ok(PlacedLaunch { worker, token_seconds })
    }

    /// Returns the end of a worker, or `None` if no other one has ended.
    pub fn poll_ended(&mut self) -> Option<WorkerEnded> {
        self.ended.pop_front()
    }

    /// Lets the launcher of a session, and its workers, depend on the token that it has now. A launcher that has this token and
    /// name already is another one: then nothing changes.
    pub fn rename(&mut self, session: [u8; 16], key: &LauncherKey) {
        let is_resumed = |launcher: &RemoteLauncher<C>| launcher.session == session && session != [0; 16];
        let old = self.launchers.iter().find(|(old, launcher)| old.name == key.name && is_resumed(launcher));
        let old = old.map(|(old, _)| old.clone());
        let Some(old) = old.filter(|_| !self.launchers.contains_key(key)) else { return };
        let launcher = self.launchers.remove(&old);
        self.launchers.extend(launcher.map(|launcher| (key.clone(), launcher)));
        self.workers.values_mut().filter(|worker| worker.by == old).for_each(|worker| worker.by = key.clone());
    }

    /// Handles a launcher's report of its state. Workers that it no longer has are reported as ended, and it is commanded to end
    /// those that this hub does not know. Returns the link of an older connection of the same launcher.
    pub fn handle_ready(&mut self, peer: LauncherPeer<C>, ready: &LauncherReady) -> Option<C> {
        let LauncherPeer { id: peer, key, session, link } = peer;
        let running: BTreeSet<u64> = ready.running.iter().copied().collect_ordered();
        let is_unknown = |id: &u64| self.workers.get(id).is_none_or(|worker| worker.by != key);
        let ending: BTreeSet<u64> = running.iter().copied().filter(is_unknown).collect_ordered();
        for &worker in &ending {
            // It is small.
            let _ = link.send(&Message::EndWorker(EndWorker { worker }));
        }
        let remote = RemoteLauncher {
            peer,
            session,
            link,
            capacity: ready.capacity.min(LauncherReady::MAX_WORKERS as u32) as usize,
            token_seconds: ready.token_seconds.min(LauncherReady::MAX_TOKEN_SECONDS),
            absent_since: None,
            ending,
        };
        let before = self.launchers.insert(key.clone(), remote);
        let before = before.filter(|before| before.peer != peer);
        if before.is_some() {
            self.end_where(|id, worker| worker.by == key && !running.contains(&id), "its launcher lost it");
        }
        before.filter(|before| before.absent_since.is_none()).map(|before| before.link)
    }

    /// Handles a launcher's report that a worker has ended; others' workers are none of its business.
    pub fn handle_ended(&mut self, peer: u32, ended: &WorkerEnded) {
        let by = self.launchers.iter_mut().find(|(_, launcher)| launcher.peer == peer);
        let Some((key, launcher)) = by else { return };
        launcher.ending.remove(&ended.worker);
        if self.workers.get(&ended.worker).is_some_and(|worker| worker.by == *key) {
            self.workers.remove(&ended.worker);
            self.ended.push_back(WorkerEnded { status: printable(&ended.status), ..*ended });
        }
    }

    /// Records that a launcher's connection was lost.
    pub fn handle_lost(&mut self, peer: u32, now: Micros) {
        if let Some(launcher) = self.launchers.values_mut().find(|launcher| launcher.peer == peer) {
            launcher.absent_since = Some(now);
        }
    }

    /// Returns the launchers that are absent for too long or whose token is not valid any more.
    pub fn over(&self, is_valid: impl Fn(TokenId) -> bool, now: Micros) -> Vec<LauncherKey> {
        let is_over = |(key, launcher): &(&LauncherKey, &RemoteLauncher<C>)| {
            launcher.absent_since.is_some_and(|since| now.since(since) >= self.max_absence) || !is_valid(key.token)
        };
        self.launchers.iter().filter(is_over).map(|(key, _)| key.clone()).collect()
    }

    /// Returns the launchers for dashboards.
    pub fn list(&self) -> LauncherList {
        let row = |(key, launcher): (&LauncherKey, &RemoteLauncher<C>)| LauncherRow {
            name: key.name.clone(),
            capacity: launcher.capacity as u32,
            running: self.running(key) as u32,
            absent: launcher.absent_since.is_some(),
        };
        LauncherList { launchers: self.launchers.iter().take(LauncherList::MAX).map(row).collect() }
    }

    /// Returns true if no launcher is connected or expected back.
    pub fn is_empty(&self) -> bool {
        self.launchers.is_empty()
    }

    /// Returns true if the launcher is connected.
    pub fn is_present(&self, key: &LauncherKey) -> bool {
        self.launchers.get(key).is_some_and(|launcher| launcher.absent_since.is_none())
    }

    /// Returns the launcher of this connection.
    pub fn of_peer(&self, peer: u32) -> Option<LauncherKey> {
        self.launchers.iter().find(|(_, launcher)| launcher.peer == peer).map(|(key, _)| key.clone())
    }

    /// Returns the numbers of a launcher's workers.
    pub fn workers_of(&self, key: &LauncherKey) -> Vec<u32> {
        // The lower half of an id is the number.
        self.workers.iter().filter(|(_, worker)| worker.by == *key).map(|(&id, _)| id as u32).collect()
    }

    /// Removes a launcher; its workers count as ended.
    pub fn remove(&mut self, key: &LauncherKey) {
        self.end_where(|_, worker| worker.by == *key, "its launcher left");
        if let Some(launcher) = self.launchers.remove(key) {
            launcher.link.close(CloseReason::Done, "this launcher was removed");
        }
    }

    /// Removes all launchers, when the hub stops.
    pub fn remove_all(&mut self) {
        let keys: Vec<LauncherKey> = self.launchers.keys().cloned().collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// Returns for how many seconds the token of a worker is valid until that worker has joined; `None` if no connected
    /// launcher starts it.
    pub fn token_seconds(&self, token: TokenId) -> Option<u32> {
        self.launchers.get(&self.placed(token)?.by).map(|launcher| launcher.token_seconds)
    }

    /// Returns the name of the launcher that has started the worker with this token.
    pub fn name(&self, token: TokenId) -> Option<String> {
        self.placed(token).map(|worker| worker.by.name.clone())
    }

    /// Returns true if this token may admit a peer that asks to resume this session: the token of a launcher's worker admits one.
    pub fn may_join(&self, token: TokenId, resume: Option<[u8; 16]>) -> bool {
        self.placed(token).is_none_or(|worker| worker.session.is_none() || worker.session == resume)
    }

    /// Records the session of an admitted peer. Returns true if it is the first of its token.
    pub fn handle_joined(&mut self, token: TokenId, session: [u8; 16]) -> bool {
        let worker = self.workers.values_mut().find(|worker| worker.token == token);
        worker.is_some_and(|worker| worker.session.replace(session).is_none())
    }

    /// Commands the worker's launcher to end it; one that is absent gets the command when it returns.
    pub fn kill(&self, worker: u64) {
        if let Some(launcher) = self.workers.get(&worker).and_then(|placed| self.launchers.get(&placed.by)) {
            // It is small.
            let _ = launcher.link.send(&Message::EndWorker(EndWorker { worker }));
        }
    }

    /// Kills a worker, and does not count it as running any more. It takes its place until its launcher has ended it.
    pub fn give_up(&mut self, worker: u64) {
        self.kill(worker);
        let placed = self.workers.remove(&worker);
        if let Some(launcher) = placed.and_then(|placed| self.launchers.get_mut(&placed.by)) {
            launcher.ending.insert(worker);
        }
    }

    /// Returns the connected launcher with the most free places.
    fn roomiest(&self) -> Result<(LauncherKey, &RemoteLauncher<C>), NoLaunch> {
        let free = |(key, launcher): &(&LauncherKey, &RemoteLauncher<C>)| {
            launcher.capacity.saturating_sub(self.running(key) + launcher.ending.len())
        };
        let (present, absent): (Vec<_>, Vec<_>) =
            self.launchers.iter().partition(|(_, launcher)| launcher.absent_since.is_none());
        match present.iter().max_by_key(|launcher| free(launcher)) {
            Some(best) if free(best) > 0 => Ok((best.0.clone(), best.1)),
            _ if present.is_empty() || absent.iter().any(|launcher| free(launcher) > 0) => {
                Err(NoLaunch::NotYet("launchers with free places have lost their connections"))
            }
            _ if present.iter().any(|(_, launcher)| !launcher.ending.is_empty()) => {
                Err(NoLaunch::NotYet("the launchers' places are free once they have ended other workers"))
            }
            _ => Err(NoLaunch::NoPlace { workers: present.iter().map(|(key, _)| self.running(key) as u64).sum() }),
        }
    }

    fn running(&self, key: &LauncherKey) -> usize {
        self.workers.values().filter(|worker| worker.by == *key).count()
    }

    fn placed(&self, token: TokenId) -> Option<&PlacedWorker> {
        self.workers.values().find(|worker| worker.token == token)
    }

    fn end_where(&mut self, is_over: impl Fn(u64, &PlacedWorker) -> bool, status: &str) {
        let over = self.workers.extract_if(.., |id, worker| is_over(*id, worker));
        let end = |(worker, _)| WorkerEnded { worker, status: status.into(), is_crash: false };
        self.ended.extend(over.map(end));
    }
}

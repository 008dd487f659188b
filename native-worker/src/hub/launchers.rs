//! The hub's launchers: this machine's, and programs that have connected to start workers elsewhere.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rollmesh_core::hub::{NoLaunch, RemoteLaunchers};
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
    elsewhere: Arc<Mutex<Elsewhere>>,
}

/// The connected launchers, and the channels that wait for the ends of their workers.
#[derive(Debug)]
struct Elsewhere {
    launchers: RemoteLaunchers<PeerLink>,
    ends: BTreeMap<u64, oneshot::Sender<LaunchedEnd>>,
}

impl Launchers {
    pub(super) fn new(here: Arc<dyn Launcher>, life: u32) -> Self {
        let launchers = RemoteLaunchers::new(life, LAUNCHER_ABSENCE.into());
        Self { here, elsewhere: Arc::new(Mutex::new(Elsewhere { launchers, ends: BTreeMap::new() })) }
    }

    /// Looks at, or changes, the connected launchers, and reports the ends of workers that follow.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut RemoteLaunchers<PeerLink>) -> T) -> T {
        let Elsewhere { launchers, ends } = &mut *lock(&self.elsewhere);
        let changed = change(launchers);
        while let Some(ended) = launchers.poll_ended() {
            if let Some(end) = ends.remove(&ended.worker) {
                // The hub may no longer wait for it.
                let _ = end.send(LaunchedEnd { status: ended.status, is_crash: ended.is_crash });
            }
        }
        changed
    }
}

impl Launcher for Launchers {
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        if self.with(|launchers| launchers.is_empty()) {
            return self.here.launch(order);
        }
        // The memory of environments is limited by the other machine's own setting.
        if order.environs.keys().any(|name| name != ENV_MEMORY_VARIABLE) {
            let (what, needs) = ("environment variables of a run", "workers of the hub's own machine");
            return Err(LaunchError::Unsupported { what, needs });
        }
        let spec = serde_json::to_string(order.spec).map_err(|error| LaunchError::Failed(error.to_string()))?;
        let mut elsewhere = lock(&self.elsewhere);
        let placed = elsewhere.launchers.launch(order.number, order.token, spec)?;
        let (end, ended) = oneshot::channel();
        elsewhere.ends.insert(placed.worker, end);
        let joins_within = Duration::from_secs(placed.token_seconds.into());
        let elsewhere = self.elsewhere.clone();
        Ok(Box::new(WorkerElsewhere { worker: placed.worker, elsewhere, ended, joins_within, is_killed: false }))
    }
}

impl From<NoLaunch> for LaunchError {
    fn from(none: NoLaunch) -> Self {
        match none {
            NoLaunch::NotYet(reason) => Self::NotYet(reason),
            NoLaunch::NoPlace { workers } => Self::NoPlace { workers },
            NoLaunch::TooLarge(error) => Self::Failed(error.to_string()),
        }
    }
}

fn lock(elsewhere: &Mutex<Elsewhere>) -> MutexGuard<'_, Elsewhere> {
    // No code panics while holding the lock.
    elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hub's handle of a worker that a connected launcher has started.
struct WorkerElsewhere {
    worker: u64,
    elsewhere: Arc<Mutex<Elsewhere>>,
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
        lock(&self.elsewhere).launchers.kill(self.worker);
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
        elsewhere.launchers.give_up(self.worker);
        elsewhere.ends.remove(&self.worker);
    }
}

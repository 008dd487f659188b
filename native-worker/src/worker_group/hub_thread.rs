//! The hub that workers of other processes connect to, and its event loop.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use rollmesh_core::{hub::Replacement, protocol::Token};
use tokio::runtime::Runtime;

use super::{GroupError, GroupNotification, builder::Plan};
use crate::{
    Registry,
    child::HUB_GRACE,
    hub::{CalledWorkers, Hub, HubConfig, NotificationSink, Workers},
    launch::Launcher,
};

/// The time to wait for workers to exit.
const FAREWELL: Duration = HUB_GRACE.saturating_add(Duration::from_secs(2));

pub(super) struct HubThread {
    runtime: Option<Runtime>,
    hub: Option<Hub>,
    pub(super) workers: Workers,
    pub(super) url: String,
    pub(super) token: Token,
    pub(super) fingerprint: Option<String>,
    /// The URL of the dashboard with an operator's token, and the rows that it is shown, if there is one.
    pub(super) dashboard: Option<(String, CalledWorkers)>,
}

impl HubThread {
    /// Starts a hub whose workers belong to the group.
    pub(super) fn start(
        plan: &Plan,
        launcher: Arc<dyn Launcher>,
        registry: &Registry,
        notifications: mpsc::Sender<GroupNotification>,
    ) -> Result<Self, GroupError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("worker-group").enable_all().build();
        let runtime = runtime.map_err(GroupError::Thread)?;
        let config = HubConfig {
            listen: plan.listen,
            dashboard: plan.dashboard,
            assets: plan.page.clone(),
            worker_program: plan.program.clone(),
            security: plan.security.clone(),
            ..HubConfig::local().map_err(GroupError::Thread)?
        };
        let failures = &plan.failures;
        let replacement = Replacement {
            delay: failures.restart_delay.into(),
            max: if failures.recreate_failed_workers { failures.max_worker_restarts } else { 0 },
        };
        // The group may have been dropped.
        let group = notifications.clone();
        let sink: NotificationSink = Box::new(move |notification| _ = group.send(GroupNotification::Hub(notification)));
        let (spec, registry) = (plan.worker_spec.clone(), registry.clone());
        let started = wait_for(&runtime, async move {
            let mut hub = Hub::start_with(config, &registry, launcher, spec).await?;
            let mut notices = hub.take_notices();
            let workers = hub.workers();
            tokio::spawn(async move {
                while let Some(notice) = notices.recv().await {
                    // The group reports joining and leaving workers itself.
                    if notice.level > 0 && notifications.send(GroupNotification::Notice(notice.text)).is_err() {
                        break;
                    }
                }
            });
            Ok::<_, GroupError>((hub, workers))
        });
        let (hub, workers) = started.unwrap_or(Err(GroupError::HubExited))?;
        let called = CalledWorkers::default();
        workers.listen(sink, replacement, called.clone());
        let dashboard = plan.dashboard.then(|| (hub.dashboard_url(), called));
        let (url, token, fingerprint) = (hub.worker_url(), hub.worker_token(), hub.fingerprint());
        Ok(Self { runtime: Some(runtime), hub: Some(hub), workers, url, token, fingerprint, dashboard })
    }

    /// Ends local processes, and waits until they have exited and their resources are released.
    pub(super) fn end_workers(&self, children: impl IntoIterator<Item = u32>) {
        let (exited, is_closed) = mpsc::channel();
        let mut ending = 0;
        for child in children {
            let exited = exited.clone();
            self.workers.end(child, move || _ = exited.send(()));
            ending += 1;
        }
        // If the hub has stopped, so have its workers.
        drop(exited);
        let deadline = Instant::now() + FAREWELL;
        // Processes that do not exit are killed meanwhile.
        let wait = |_: &u32| is_closed.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok();
        (0..ending).take_while(wait).for_each(drop);
    }
}

impl Drop for HubThread {
    fn drop(&mut self) {
        let (Some(runtime), Some(hub)) = (self.runtime.take(), self.hub.take()) else { return };
        let (done, is_done) = mpsc::channel();
        runtime.spawn(async move {
            hub.shutdown().await;
            let _ = done.send(());
        });
        let _ = is_done.recv_timeout(FAREWELL);
        // A blocking shutdown panics inside another runtime; this one works in any thread.
        runtime.shutdown_background();
    }
}

/// Runs a future in the event loop, and blocks for its result; works in any kind of thread.
fn wait_for<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::channel();
    runtime.spawn(async move { _ = done.send(work.await) });
    result.recv().ok()
}

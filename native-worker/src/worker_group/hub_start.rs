//! Starting a hub. The hub's own module cannot: its runs from files have the workers of a group, which has a hub of its own.

use std::sync::Arc;

use super::row_source::start_readers;
use crate::{
    Registry,
    hub::{Hub, HubConfig, HubError},
    launch::{Launcher, LocalLauncher, WorkerSpec},
};

impl Hub {
    /// Starts a hub: listens and serves workers and dashboards.
    ///
    /// # Errors
    /// [`HubError`], which says what to change.
    pub async fn start(config: HubConfig, registry: &Registry) -> Result<Self, HubError> {
        let launcher = Arc::new(LocalLauncher::new(&config.worker_program));
        Self::start_with(config, registry, launcher, WorkerSpec::default()).await
    }

    /// Works like [`start`](Self::start), with a custom launcher for local workers instead of processes of the
    /// configured program, and with the resources that each worker needs unless a run says otherwise.
    ///
    /// # Errors
    /// [`HubError`], which says what to change.
    pub async fn start_with(
        config: HubConfig,
        registry: &Registry,
        launcher: Arc<dyn Launcher>,
        worker_spec: WorkerSpec,
    ) -> Result<Self, HubError> {
        Self::start_over(config, registry, launcher, worker_spec, start_readers).await
    }
}

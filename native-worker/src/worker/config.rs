//! The configuration of a worker.

use std::{fmt, path::PathBuf, sync::Arc};

use rollmesh_core::{evaluation::Evaluates, kernels::Kernels, protocol::Token, worker::HostSettings};
use tokio::sync::watch;

use crate::net::{RelayAddress, Trust};

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerConfig {
    /// `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub(crate) hub: String,
    /// The verification of the hub.
    pub(crate) trust: Trust,
    /// A relay that has weights.
    pub(crate) relay: Option<RelayAddress>,
    pub(crate) token: Token,
    /// The file of the token, which may get another one.
    pub(crate) token_file: Option<PathBuf>,
    /// The kind that the hub shows.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) kernels: Kernels,
    /// The treatment of the hub's settings that name files and environment variables of this machine.
    pub(crate) host_settings: HostSettings,
    /// Maximum memory of each environment process in MiB; `None` for the default.
    pub(crate) env_memory_mb: Option<u32>,
    pub(crate) duty: Duty,
}

/// The task of a worker at its hub.
#[derive(Clone, Debug, Default)]
pub(crate) enum Duty {
    /// It samples for runs and answers calls.
    #[default]
    Runs,
    /// It acts for the other workers of runs.
    ActsForOthers,
    /// It evaluates under its name.
    Evaluates(Evaluating),
}

/// Makes a worker evaluate. It stays at the hub until it is stopped, and reconnects after the hub was lost.
#[derive(Clone)]
pub(crate) struct Evaluating {
    pub(crate) evaluator: Arc<dyn Fn() -> Box<dyn Evaluates> + Send + Sync>,
    /// Notified when there may be outcomes.
    pub(crate) changes: watch::Receiver<()>,
    /// Called whenever the hub has admitted the worker.
    pub(crate) joined: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Evaluating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluating").finish_non_exhaustive()
    }
}

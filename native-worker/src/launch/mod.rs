//! Starting and ending workers: what one needs, what there is, and who grants it.
//!
//! A [`Launcher`] starts a worker that joins a hub, from a [`WorkerSpec`] that says what it needs. [`LocalLauncher`]
//! starts processes of this machine and keeps an [`Inventory`]: what it cannot grant is a typed error, before anything is
//! started. A hub starts, replaces and dismisses all its local workers through one launcher. Not here: when a worker is
//! to be started or replaced.
//!
//! ```
//! use rollmesh::launch::{Inventory, LaunchError, WorkerSpec};
//!
//! let inventory = Inventory::new([0, 1]).with_gpus(["0"]).with_resource("simulator", 1);
//! let spec = WorkerSpec { cpus: 1, memory: Some(2 << 30), ..WorkerSpec::default() }.with_resource("simulator", 1);
//! let first = inventory.grant(&spec)?;
//! assert_eq!(first.cpus(), [0]);
//! // The only licence of the simulator is taken, until the first worker is gone.
//! let refused = inventory.grant(&spec).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "a worker needs 1 of the resource 'simulator', of which 0 of 1 are free; start fewer workers or declare more"
//! );
//! drop(first);
//! inventory.grant(&spec)?;
//! # Ok::<(), LaunchError>(())
//! ```

mod confine;
mod inventory;
mod local;
#[cfg(unix)]
mod stdio;

#[cfg(unix)]
use std::os::unix::process::ExitStatusExt as _;
use std::{collections::BTreeMap, fmt, io, path::PathBuf, pin::Pin, process::ExitStatus};

use rollmesh_core::protocol::Token;
#[cfg(unix)]
use rustix::process::Signal;

#[cfg(unix)]
pub(crate) use confine::limit_memory;
pub(crate) use confine::{ConfineFlags, Confinement};
pub use inventory::{Grant, Inventory};
pub use local::LocalLauncher;
pub use rollmesh_core::worker::{BadAmount, WorkerSpec};
#[cfg(unix)]
pub(crate) use stdio::take_stdio;

/// Starts workers, wherever it likes.
///
/// Another one than [`LocalLauncher`] asks a cluster's scheduler, and starts there what [`LocalLauncher`] starts here:
/// `rollmesh worker` with the [way](LaunchOrder::way) and `--name NAME`, with the token in the environment variable `ROLLMESH_TOKEN`.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Starts a worker. It is called from within a tokio runtime and does not wait for the worker to join.
    ///
    /// # Errors
    /// [`LaunchError`]; nothing has been started then.
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError>;
}

/// A worker to be started.
#[derive(Clone, Copy, Debug)]
pub struct LaunchOrder<'a> {
    /// Its number, counted up by who orders.
    pub number: u32,
    /// How it reaches the hub that it joins: arguments of `worker`, `--hub` and its address among them.
    pub way: &'a [String],
    /// What lets it in. A secret: no place for it on a command line.
    pub token: &'a Token,
    /// What it needs.
    pub spec: &'a WorkerSpec,
    /// Environment variables besides those that every worker has.
    pub environs: &'a BTreeMap<String, String>,
}

/// A worker that was started. What it was granted is free again when this is dropped, which ends it if it has not ended.
pub trait LaunchedWorker: Send {
    /// Its process, if it is one of this machine.
    fn pid(&self) -> Option<u32>;

    /// Ends it at once, without its help.
    fn kill(&mut self);

    /// Waits for its end, and says how it ended. May be dropped and called again.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>>;
}

/// How a worker has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedEnd {
    /// In a few words.
    pub status: String,
    /// By a fault of what ran in it, such as an abort: neither as it was told, nor killed from outside.
    pub is_crash: bool,
}

impl LaunchedEnd {
    /// As it was told, or killed from outside.
    #[must_use]
    pub fn plain(status: impl Into<String>) -> Self {
        Self { status: status.into(), is_crash: false }
    }
}

impl From<ExitStatus> for LaunchedEnd {
    fn from(status: ExitStatus) -> Self {
        #[cfg(unix)]
        let is_from_outside = {
            let sent = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::KILL, Signal::TERM];
            status.signal().is_some_and(|signal| sent.map(Signal::as_raw).contains(&signal))
        };
        #[cfg(not(unix))]
        let is_from_outside = false;
        Self { status: status.to_string(), is_crash: !status.success() && !is_from_outside }
    }
}

/// Why a worker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// More of something than is free.
    #[error("a worker needs {wanted} {what}, of which {free} of {all} are free; start fewer workers or ask for less")]
    Short {
        /// What there is too little of: `CPUs`, `GPUs` or `bytes of memory`.
        what: &'static str,
        /// How much the worker needs.
        wanted: u64,
        /// How much nobody has been granted.
        free: u64,
        /// How much there is.
        all: u64,
    },
    /// More of a declared resource than is free.
    #[error(
        "a worker needs {wanted} of the resource '{name}', of which {free} of {all} are free; start fewer workers or \
         declare more"
    )]
    ShortResource {
        /// Its name.
        name: String,
        /// How much the worker needs.
        wanted: u32,
        /// How much nobody has been granted.
        free: u32,
        /// How much was declared.
        all: u32,
    },
    /// A resource that nobody has declared.
    #[error("a worker needs the resource '{name}', and there is none of that name; declared are: {known}")]
    UnknownResource {
        /// Its name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// This system has no such thing.
    #[error("{what} need {needs}; leave them out of the worker's specification")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// The program does not start.
    #[error("{} cannot be started as a worker: {source}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else, in the launcher's words.
    #[error("{0}")]
    Failed(String),
}

impl LaunchError {
    /// True if the worker asked for what cannot be granted; another specification would help.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Program { .. } | Self::Failed(_))
    }
}

//! Starting and ending workers: their resource needs, the machine's resources, and grants.
//!
//! A [`Launcher`] starts a worker that joins a hub, from a [`WorkerSpec`] with its needs. [`LocalLauncher`] starts
//! processes on this machine and keeps an [`Inventory`]: a request that it cannot grant is a typed error before
//! anything is started. A hub starts, replaces and dismisses all its local workers through one launcher. A launcher may
//! also be a program, `rollmesh launch` or one of the user's, that connects to the hub: `PROTOCOL.md` describes its
//! messages. The hub decides when a worker is started or replaced.
//!
//! ```
//! use rollmesh::launch::{Inventory, LaunchError, WorkerSpec};
//!
//! let inventory = Inventory::new([0, 1]).with_gpus(["0"]).with_resource("simulator", 1);
//! let spec = WorkerSpec { cpus: 1, memory: Some(2 << 30), ..WorkerSpec::default() }.with_resource("simulator", 1);
//! let first = inventory.grant(&spec)?;
//! assert_eq!(first.cpus(), [0]);
//! // The only licence of the simulator is taken, until the first worker has exited.
//! let refused = inventory.grant(&spec).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "a worker needs 1 of the resource 'simulator', of which 0 of 1 are free; start fewer workers or declare more"
//! );
//! drop(first);
//! inventory.grant(&spec)?;
//! # Ok::<(), LaunchError>(())
//! ```

mod engine;
mod inventory;
mod local;
mod service;
mod supervised;

#[cfg(unix)]
use std::os::unix::process::ExitStatusExt as _;
use std::{collections::BTreeMap, fmt, io, path::PathBuf, pin::Pin, process::ExitStatus, time::Duration};

use rollmesh_core::protocol::Token;
#[cfg(unix)]
use rustix::process::Signal;

pub(crate) use engine::{LaunchEngine, Template};
pub use inventory::{Grant, Inventory};
pub use local::LocalLauncher;
pub use rollmesh_core::worker::{BadAmount, WorkerSpec};
pub(crate) use service::{LauncherConfig, LauncherEnd, serve};
pub(crate) use supervised::SupervisedChild;

/// Starts workers in a place of its choice.
///
/// A launcher inside a program with a hub of its own. It runs the same command as [`LocalLauncher`]: `rollmesh worker`
/// with the [way](LaunchOrder::way) and `--name NAME`, with the token in the environment variable `ROLLMESH_TOKEN`.
/// Such a worker refuses settings that name files of one machine, such as `output` and `log_dir`: give these to workers
/// that [`LocalLauncher`] starts.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Starts a worker. It is called from within a tokio runtime and does not wait for the worker to join.
    ///
    /// # Errors
    /// [`LaunchError`]; then nothing was started.
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError>;
}

/// Describes a worker to start.
#[derive(Clone, Copy, Debug)]
pub struct LaunchOrder<'a> {
    /// Its number, assigned by the caller.
    pub number: u32,
    /// The way to its hub: arguments of `worker`, including `--hub` and the address.
    pub way: &'a [String],
    /// Its token. A secret, which must not be put on a command line.
    pub token: &'a Token,
    /// The resources that it needs.
    pub spec: &'a WorkerSpec,
    /// Environment variables in addition to those of every worker.
    pub environs: &'a BTreeMap<String, String>,
}

/// A callback for the bytes that a worker writes to its standard error.
pub type LogReceiver = Box<dyn FnMut(&[u8]) + Send>;

/// A started worker. Dropping it ends the worker, if it has not ended, and releases its grant.
pub trait LaunchedWorker: Send {
    /// Returns its process id, if it runs on this machine.
    fn pid(&self) -> Option<u32>;

    /// Sets the callback for the worker's standard error, in pieces of any length. The callback returns immediately,
    /// and is dropped when there is no more. A launcher without that output ignores it.
    fn forward_log(&mut self, receive: LogReceiver) {
        drop(receive);
    }

    /// Returns the time within which it has to join its hub before the hub ends it; `None` is without limit.
    fn joins_within(&self) -> Option<Duration> {
        None
    }

    /// Ends it immediately, without its cooperation.
    fn kill(&mut self);

    /// Waits for its end, and returns it. The future may be dropped and requested again.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>>;
}

/// The end of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedEnd {
    /// A short description.
    pub status: String,
    /// True after a fault inside the worker, such as an abort: neither on request, nor killed from outside.
    pub is_crash: bool,
}

impl LaunchedEnd {
    /// Returns the end of a worker that exited on request, or was killed from outside.
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

/// An error of starting a worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// More than is free was requested.
    #[error("a worker needs {wanted} {what}, of which {free} of {all} are free; start fewer workers or ask for less")]
    Short {
        /// The resource that is short: `CPUs`, `GPUs` or `bytes of memory`.
        what: &'static str,
        /// The amount that the worker needs.
        wanted: u64,
        /// The amount that is free.
        free: u64,
        /// The amount in total.
        all: u64,
    },
    /// More of a declared resource than is free was requested.
    #[error(
        "a worker needs {wanted} of the resource '{name}', of which {free} of {all} are free; start fewer workers or \
         declare more"
    )]
    ShortResource {
        /// Its name.
        name: String,
        /// The amount that the worker needs.
        wanted: u32,
        /// The amount that is free.
        free: u32,
        /// The amount that was declared.
        all: u32,
    },
    /// The resource was not declared.
    #[error("a worker needs the resource '{name}', and there is none of that name; declared are: {known}")]
    UnknownResource {
        /// Its name.
        name: String,
        /// The declared resources.
        known: String,
    },
    /// No connected launcher has a free place.
    #[error(
        "all {workers} places of the connected launchers are taken; start fewer workers, or raise --capacity of \
         `rollmesh launch`"
    )]
    NoPlace {
        /// Number of workers that they run.
        workers: u64,
    },
    /// No connected launcher has a free place now, but soon one may: a launcher is expected back, or still ends workers.
    #[error("{0}; try again in a few seconds")]
    NotYet(&'static str),
    /// The operating system does not support this.
    #[error("{what} need {needs}; leave them out of the worker's specification")]
    Unsupported {
        /// The requested feature.
        what: &'static str,
        /// The operating system that it needs.
        needs: &'static str,
    },
    /// The program cannot be started.
    #[error("{} cannot be started as a worker: {source}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another error, with the launcher's message.
    #[error("{0}")]
    Failed(String),
}

impl LaunchError {
    /// Returns whether the request cannot be granted; another specification would help.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::NotYet(_) | Self::Program { .. } | Self::Failed(_))
    }
}

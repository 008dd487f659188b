//! Environments isolated from the worker, since they may panic, hang or crash; Python environments among them.

mod guard;
pub(crate) mod python;
#[cfg(unix)]
pub(crate) mod remote;

pub(crate) use guard::{catch_panics, words};
pub use guard::{guard, guard_multi_agent, guarded};
pub(crate) use python::{
    ALLOW_VARIABLE, INTERPRETER_VARIABLE, PROCESSES_VARIABLE, is_deterministic, with_fingerprint, with_pictures,
    without_fingerprint,
};
pub use python::{PythonFingerprintError, PythonPermission, PythonSettings};
#[cfg(unix)]
pub use python::{Starts, starts};
#[cfg(unix)]
pub use remote::RemoteBaseEnv;

/// The environment variable of workers that limits the memory of each environment process, in MiB; a run sets it for its
/// local workers.
pub(crate) const ENV_MEMORY_VARIABLE: &str = "ROLLMESH_ENV_MEMORY_MB";

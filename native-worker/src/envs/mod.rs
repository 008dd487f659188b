//! Environments that may panic, hang or crash, and must not take the worker along.

mod guard;
#[cfg(unix)]
pub(crate) mod remote;

pub(crate) use guard::words;
pub use guard::{guard, guard_multi_agent, guarded};
#[cfg(unix)]
pub(crate) use remote::process::last_lines;
#[cfg(unix)]
pub use remote::{RemoteBaseEnv, remote_env};

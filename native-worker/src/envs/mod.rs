//! Environments that may panic, in a process that must not end with them.

mod guard;

pub(crate) use guard::words;
pub use guard::{guard, guard_multi_agent, guarded};

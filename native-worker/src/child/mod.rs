//! Child processes: starting them, limiting their memory, and ending them.
//!
//! Every process that this program starts for itself is started here: workers, sub-environments, evaluations, readers of
//! files, and the interpreters of Python environments.
//!
//! - **No child outlives its parent**, however the parent ends. A child watches the pipe at its standard input
//!   ([`end_with_parent`]): when that closes, it kills its process group, so that the child processes of an environment that
//!   hangs end, too. Before it watches, Linux kills it when its parent ends ([`bind_to_parent`]).
//! - **A limit of memory is applied by the child** ([`limit_memory`]), after it has begun to watch: a child without memory
//!   can no longer start a thread.
//! - **A child's end is explained** by its exit status and the [last lines](LastWords) of its standard error.
//!
//! The deadlines for a child's start and its answers are decided by its user: the hub for workers, each request for
//! sub-environments, the supervisor for evaluations. The deadline for its exit is decided [here](ENV_GRACE), since a
//! child waits for children of its own.

mod confine;
#[cfg(unix)]
mod frames;
mod lifeline;
mod spawn;
mod words;

pub(crate) use confine::{ConfineFlags, Confinement, LIMITED, VISIBLE_DEVICES};
#[cfg(unix)]
pub(crate) use {
    confine::limit_memory,
    frames::{is_readable_within, read_json, read_message, write_json, write_message},
    lifeline::{end_with_pipe, take_stdio},
    spawn::{Child, ChildStreams, spawn, spawn_detached},
};
pub(crate) use {
    lifeline::{bind_to_parent, end_with_parent},
    spawn::{check_is_not_one, is_child, kill_group, spawn_in_runtime},
    words::LastWords,
};

use std::time::Duration;

/// Time for the processes of environments to exit when they are asked to: one may have pictures to write.
pub(crate) const ENV_GRACE: Duration = Duration::from_secs(3);
/// Time for a worker's rollout thread to end: it waits for the processes of its environments.
pub(crate) const ROLLOUT_GRACE: Duration = ENV_GRACE.saturating_add(STEP);
/// Time for a worker to exit when it is asked to, before the process that started it kills it.
pub(crate) const WORKER_GRACE: Duration = ROLLOUT_GRACE.saturating_add(STEP);
/// Time for a hub to stop: it waits for its workers, or kills them.
pub(crate) const HUB_GRACE: Duration = WORKER_GRACE.saturating_add(STEP);

/// The time that each of them takes besides its own children.
const STEP: Duration = Duration::from_millis(500);

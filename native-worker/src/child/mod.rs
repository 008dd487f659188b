//! Child processes: starting them, limiting their memory, and ending them.
//!
//! Every process that this program starts for itself is started here: workers, sub-environments, evaluations, readers of
//! files, and the interpreters of Python environments.
//!
//! - **No child outlives its parent**, however the parent ends. A child watches the pipe at its standard input
//!   ([`end_with_parent`]): when that closes, it kills its process group, so that the child processes of an environment that
//!   hangs end, too. Before it watches, Linux kills it when its parent ends ([`bind_to_parent`]).
//! - **A limit of memory is applied by the child** ([`limit_memory`]), after it has begun to watch: a child without memory
//!   cannot start a thread any more.
//! - **A child's end is explained** by its exit status and the [last lines](LastWords) of its standard error.
//!
//! How long a child may take to start and to answer is decided by its user: the hub for workers, each request for
//! sub-environments, the supervisor for evaluations.

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
    spawn::{Child, Pipes, spawn, spawn_detached},
};
pub(crate) use {
    lifeline::{bind_to_parent, end_with_parent},
    spawn::{check_is_not_one, is_child, kill_group, spawn_in_runtime},
    words::LastWords,
};

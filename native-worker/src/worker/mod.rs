//! A native worker: a socket, and the core's session on a rollout thread.

mod client;

pub(crate) use client::{EndKind, Evaluating, WorkerConfig, WorkerEnd, run};

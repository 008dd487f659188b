//! A native worker: a socket, and the core's session on a rollout thread.

mod asks;
mod client;

pub(crate) use client::{Duty, EndKind, Evaluating, WorkerConfig, WorkerEnd, run};

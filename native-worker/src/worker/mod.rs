//! A native worker: core's session on a thread of its own, between the frames of a socket.

mod client;

pub(crate) use client::{Evaluating, WorkerConfig, WorkerEnd, run};

//! A native worker: a socket, and the core's session on a rollout thread.

mod asks;
mod client;
mod config;
mod end;

pub(crate) use self::{
    client::run,
    config::{Duty, Evaluating, WorkerConfig},
    end::{EndKind, WorkerEnd},
};

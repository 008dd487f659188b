//! Bodies of the messages between a hub and a launcher, a program that starts workers elsewhere on the hub's behalf, and of
//! where workers run, as they are on the wire.

use serde::{Deserialize, Serialize};

use super::Token;
use crate::prelude::*;

/// A launcher's state: its first message after `Welcome`, and sent again whenever its capacity has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherReady {
    /// Number of workers that it can run at the same time, those in `running` included.
    pub capacity: u32,
    /// Seconds for which the token of a worker is valid until its worker has joined, at most
    /// [`MAX_TOKEN_SECONDS`](Self::MAX_TOKEN_SECONDS).
    pub token_seconds: u32,
    /// Ids of the workers that it is starting or running.
    #[serde(with = "crate::lists::AtMost::<{ LauncherReady::MAX_WORKERS }>")]
    pub running: Vec<u64>,
}

impl LauncherReady {
    /// Maximum number of workers of a launcher.
    pub const MAX_WORKERS: usize = 1024;
    /// A day: jobs may wait in a queue.
    pub const MAX_TOKEN_SECONDS: u32 = 24 * 60 * 60;
}

/// Commands a launcher to start a worker from its own template. Answered with [`WorkerEnded`] once that worker has ended, or could
/// not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchWorker {
    /// Id of the worker, unique over all hubs.
    pub worker: u64,
    /// Number of the worker on this hub, for its name.
    pub number: u32,
    /// The worker's token. It admits one worker, which may reconnect.
    pub token: Token,
    /// The machine resources that it needs: a [`WorkerSpec`](crate::run::WorkerSpec) as a JSON object.
    pub spec: String,
}

/// Commands a launcher to end a worker immediately, without its cooperation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndWorker {
    /// Id of the worker.
    pub worker: u64,
}

/// A launcher's worker has ended, or could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEnded {
    /// Id of the worker.
    pub worker: u64,
    /// A short description.
    pub status: String,
    /// True after a fault inside the worker, such as an abort: neither on request, nor killed from outside.
    pub is_crash: bool,
}

/// The hub's launchers, for dashboards: those that are connected, and those that are expected back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherList {
    /// At most [`MAX`](Self::MAX) of them.
    #[serde(with = "crate::lists::AtMost::<{ LauncherList::MAX }>")]
    pub launchers: Vec<LauncherRow>,
}

impl LauncherList {
    /// Maximum number of launchers in a message.
    pub const MAX: usize = 64;
}

/// A launcher of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherRow {
    /// Its name.
    pub name: String,
    /// Number of workers that it can run at the same time.
    pub capacity: u32,
    /// Number of workers that it is starting or running for the hub.
    pub running: u32,
    /// True if its connection is lost; the hub waits for it.
    pub absent: bool,
}

/// The place of a worker, for dashboards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLocation {
    /// The worker's id.
    pub worker: u32,
    /// The name of its machine, as its [`HostReport`](super::message::HostReport) has it; empty if it has not sent one.
    pub host: String,
    /// The name of the launcher that started it; empty for workers that the hub started itself or not at all.
    pub launcher: String,
}

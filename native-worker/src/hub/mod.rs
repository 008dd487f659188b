//! The hub: the process that workers, dashboards and clients connect to.
//!
//! One task, the actor, owns all state: peers, children, the run. Every socket has a task of its own that checks and decodes
//! frames and forwards messages; the learner has a thread. Unauthenticated peers and dashboards share a thread with low
//! priority. The actor waits for none of them.

mod access;
mod actor;
mod admit;
mod assets;
mod audit;
mod auditor;
mod calls;
mod checkpoints;
mod children;
mod client;
mod commands;
mod compressed;
mod config;
mod departure;
mod effects;
mod elsewhere;
mod handles;
mod handshake_limiter;
mod in_process;
mod iterations;
mod launchers;
mod ledger;
mod limits;
mod link;
mod listener_thread;
mod local;
mod memory_budget;
mod movable;
mod peer;
mod prometheus;
mod queue;
mod rate_limiter;
mod read_allowance;
mod recompute;
mod requests;
mod run_tokens;
mod runs;
mod saved_runs;
mod server;
mod socket;
mod start;
mod tls;
mod token_file;
mod tokens;

use std::net::SocketAddr;

use rollmesh_core::protocol::{Token, message::RunStatus};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use self::actor::Event;
use crate::{net::Fingerprint, runs::RunMaker};

pub use self::{
    auditor::{Distrust, OnDivergence},
    checkpoints::{CheckpointNowError, SavedCheckpoint},
    config::{HubConfig, HubError, HubNotice, SecurityConfig},
    handles::{HubStopped, PendingSummary, RunStopper, Sampling, StatusWatch},
    limits::{Limit, limits},
    requests::{StartRunError, Traffic},
    tls::{TlsConfig, TlsError},
    token_file::TokenFileError,
};
pub(crate) use access::random_token;
pub(crate) use calls::{CalledWorkers, NotificationSink, WorkerNotification, Workers};
pub use rollmesh_core::hub::SyncError;
pub(crate) use tls::{Tls, is_of_one_machine};
pub(crate) use token_file::{TokenFile as Tokens, now as seconds_now, role_of};

/// The kind of the worker in the hub's own process.
pub(crate) const LOCAL_KIND: &str = "local";

/// The beginning of the notice that the hub leaves the places of local workers empty.
pub(crate) const NO_MORE_ATTEMPTS: &str = "no more attempts to start local workers";

/// The flag with which hubs and peers forgo encryption beyond the loopback interface.
pub(crate) const UNENCRYPTED_FLAG: &str = "--i-know-this-is-not-encrypted";

/// A running hub. It stops when it is [shut down](Self::shutdown) or dropped.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    /// Host and port for users on this or other machines.
    reached_at: String,
    fingerprint: Option<Fingerprint>,
    operator: Token,
    viewer: Token,
    worker: Token,
    client: Token,
    maker: RunMaker,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<RunStatus>,
    notices: mpsc::Receiver<HubNotice>,
    actor: JoinHandle<()>,
    /// Closes with the hub.
    _listener: listener_thread::ListenerThread,
}

impl Hub {
    /// Returns the address on which the hub listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the page with an operator token in the fragment, which browsers do not send to servers.
    #[must_use]
    pub fn dashboard_url(&self) -> String {
        format!("{}/#token={}", self.page_url(), self.operator.to_hex())
    }

    /// Returns a token for viewers, who see everything and change nothing.
    #[must_use]
    pub fn viewer_token(&self) -> Token {
        self.viewer
    }

    /// Returns the URL of the page, without a token.
    pub(crate) fn page_url(&self) -> String {
        format!("{}://{}", if self.fingerprint.is_some() { "https" } else { "http" }, self.reached_at)
    }

    /// Returns the fingerprint of the certificate, by which peers verify the hub; `None` without encryption.
    #[must_use]
    pub fn fingerprint(&self) -> Option<String> {
        self.fingerprint.map(|fingerprint| fingerprint.to_string())
    }

    /// Returns a token for operators, if there is a dashboard.
    #[must_use]
    pub fn operator_token(&self) -> Token {
        self.operator
    }

    /// Returns the URL that workers connect to.
    #[must_use]
    pub fn worker_url(&self) -> String {
        format!("{}://{}", if self.fingerprint.is_some() { "wss" } else { "ws" }, self.reached_at)
    }

    /// Returns a token for workers, including evaluators and their handles: see [`EvalHub`](crate::eval::EvalHub).
    #[must_use]
    pub fn worker_token(&self) -> Token {
        self.worker
    }

    /// Returns a token for clients, if there is an environment for them.
    #[must_use]
    pub fn client_token(&self) -> Token {
        self.client
    }

    /// Returns a watch of the run's state, updated on every change.
    #[must_use]
    pub fn status(&self) -> StatusWatch {
        StatusWatch(self.status.clone())
    }

    /// Waits for the next notice to the user. Reading them is optional: above a thousand unread ones, new notices are
    /// dropped.
    pub async fn next_notice(&mut self) -> Option<HubNotice> {
        self.notices.recv().await
    }

    /// Takes over the receiver of all further notices.
    pub(crate) fn take_notices(&mut self) -> mpsc::Receiver<HubNotice> {
        std::mem::replace(&mut self.notices, mpsc::channel(1).1)
    }

    /// Returns the next notice if there is one already.
    pub(crate) fn take_notice(&mut self) -> Option<HubNotice> {
        self.notices.try_recv().ok()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.actor.abort();
    }
}

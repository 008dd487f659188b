//! The hub: the process that workers, dashboards and clients connect to.
//!
//! One task, the actor, owns all state: peers, children, the run. Every socket has a task of its own that checks
//! and decodes frames and passes messages on; the learner has a thread, and so have strangers and dashboards, with the
//! lowest claim to processor time. The actor never blocks on any of them.

mod access;
mod actor;
mod admit;
mod asks;
mod assets;
mod audit;
mod auditor;
mod books;
mod calls;
mod checkpoints;
mod children;
mod client;
mod commands;
mod config;
mod dashboard;
mod departure;
mod door;
mod gate;
mod in_process;
mod iterations;
mod limits;
mod link;
mod local;
mod meter;
mod movable;
mod notices;
mod pace;
mod peer;
mod private_file;
mod queue;
mod requests;
mod room;
mod run_tokens;
mod runs;
mod server;
mod socket;
mod start;
mod tls;
mod token_file;
mod tokens;
mod turns;

use std::net::SocketAddr;

use rollmesh_core::protocol::{Token, message::RunStatus};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use self::actor::Event;
use crate::net::Fingerprint;

pub use self::{
    auditor::{Distrust, OnLiar},
    checkpoints::{CheckpointNowError, SavedCheckpoint},
    config::{HubConfig, HubError, HubNotice, SecurityConfig},
    limits::{Limit, limits},
    requests::{Sampling, StartRunError, Traffic},
    tls::{TlsConfig, TlsError},
    token_file::TokenFileError,
};
pub use crate::train::SyncError;
pub(crate) use access::random_token;
pub(crate) use calls::{NewsSink, Replacement, WorkerNews, WorkerOrder};
pub(crate) use token_file::{TokenFile as Tokens, now as seconds_now, role_name, role_of};

/// The environment variable through which a worker gets its token.
pub(crate) const TOKEN_VARIABLE: &str = "ROLLMESH_TOKEN";

/// The kind of the worker in the hub's own process.
pub(crate) const LOCAL_KIND: &str = "local";

/// The flag with which hubs and peers go without encryption beyond the loopback device.
pub(crate) const UNENCRYPTED_FLAG: &str = "--i-know-this-is-not-encrypted";

/// A running hub. It stops when it is [shut down](Self::shutdown) or dropped.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    /// Host and port for people on other machines, or on this one.
    reached_at: String,
    fingerprint: Option<Fingerprint>,
    operator: Token,
    viewer: Token,
    worker: Token,
    client: Token,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<RunStatus>,
    notices: mpsc::Receiver<HubNotice>,
    actor: JoinHandle<()>,
    /// Closes with the hub.
    _door: door::Door,
}

impl Hub {
    /// Where the hub listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The page, with an operator's token in the fragment, which browsers do not send anywhere.
    #[must_use]
    pub fn dashboard_url(&self) -> String {
        format!("{}/#token={}", self.page_url(), self.operator.to_hex())
    }

    /// A token that lets viewers in, who see everything and change nothing.
    #[must_use]
    pub fn viewer_token(&self) -> Token {
        self.viewer
    }

    /// Where pages are, without a token.
    pub(crate) fn page_url(&self) -> String {
        format!("{}://{}", if self.fingerprint.is_some() { "https" } else { "http" }, self.reached_at)
    }

    /// The certificate's fingerprint, by which peers know the hub; none without encryption.
    #[must_use]
    pub fn fingerprint(&self) -> Option<String> {
        self.fingerprint.map(|fingerprint| fingerprint.to_string())
    }

    /// A token that lets operators in, if there is a dashboard.
    #[must_use]
    pub fn operator_token(&self) -> Token {
        self.operator
    }

    /// What workers connect to.
    #[must_use]
    pub fn worker_url(&self) -> String {
        format!("{}://{}", if self.fingerprint.is_some() { "wss" } else { "ws" }, self.reached_at)
    }

    /// A token that lets workers in, also those that evaluate, and handles of these: see
    /// [`EvalHub`](crate::eval::EvalHub).
    #[must_use]
    pub fn worker_token(&self) -> Token {
        self.worker
    }

    /// A token that lets clients in, where there is an environment for them.
    #[must_use]
    pub fn client_token(&self) -> Token {
        self.client
    }

    /// The state of the run, whenever it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<RunStatus> {
        self.status.clone()
    }

    /// The next thing that a person should know. Nobody has to listen; of more than a thousand that nobody took, the
    /// latest are lost.
    pub async fn next_notice(&mut self) -> Option<HubNotice> {
        self.notices.recv().await
    }

    /// All notices from now on.
    pub(crate) fn take_notices(&mut self) -> mpsc::Receiver<HubNotice> {
        std::mem::replace(&mut self.notices, mpsc::channel(1).1)
    }

    /// The next notice that is there already.
    pub(crate) fn take_notice(&mut self) -> Option<HubNotice> {
        self.notices.try_recv().ok()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.actor.abort();
    }
}

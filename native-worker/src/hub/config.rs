//! The hub's configuration, and the errors of starting one.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use rollmesh_core::{group::BadShare, kernels::Kernels, protocol::convert::AgentTableError};

use super::{Distrust, TlsConfig, TlsError, TokenFileError};
use crate::{external::ExternalMultiAgentEnv, kernels::AUTO};

/// Configuration of a hub.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Address to listen on. Beyond the loopback interface a hub needs encryption.
    pub listen: SocketAddr,
    /// True if there is a page, and tokens for dashboards.
    pub dashboard: bool,
    /// Directory of the page's files, `None` for the default; without a dashboard, a directory of any files to serve.
    pub assets: Option<PathBuf>,
    /// Parent of the directories for runs started from the page; if `None`, such runs have no files and no checkpoints.
    pub runs_dir: Option<PathBuf>,
    /// The program of local workers, with its first arguments.
    pub worker_program: PathBuf,
    /// Kernels for the hub's fingerprint.
    pub kernels: Kernels,
    /// The environment whose episodes clients may drive, if there is one.
    pub external: Option<ExternalMultiAgentEnv>,
    /// Further origins of pages that may connect, as browsers write them (`https://game.example`).
    pub allow_origins: Vec<String>,
    /// Encryption, persistent tokens, the audit log.
    pub security: SecurityConfig,
}

impl HubConfig {
    /// Returns a configuration for this machine only, at any free port, without a page. Local workers run the current
    /// executable.
    ///
    /// # Errors
    /// The operating system does not report the current executable.
    pub fn local() -> io::Result<Self> {
        Ok(Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            dashboard: false,
            assets: None,
            runs_dir: None,
            worker_program: crate::program()?,
            kernels: AUTO,
            external: None,
            allow_origins: Vec::new(),
            security: SecurityConfig::default(),
        })
    }
}

/// A hub's security settings. The default suits a hub of one machine.
#[derive(Clone, Debug, Default)]
pub struct SecurityConfig {
    /// TLS settings; without them a hub listens on the loopback interface only.
    pub tls: Option<TlsConfig>,
    /// Authorities of clients, a PEM file: a peer on another machine then needs a certificate of one of them (mutual TLS).
    pub client_ca: Option<PathBuf>,
    /// Listen beyond the loopback interface without encryption: tokens and everything else can be read in transit.
    pub allow_unencrypted: bool,
    /// Names by which others reach this hub, `HOST` or `HOST:PORT`, in addition to its addresses.
    pub hosts: Vec<String>,
    /// Origins of pages that may show the hub's page in a frame, as browsers write them (`http://localhost:8888`).
    pub frame_origins: Vec<String>,
    /// A file of token hashes, in addition to the tokens that are created for this hub.
    pub token_file: Option<PathBuf>,
    /// File for the hub's own tokens, readable by its owner only, so that a later hub has the same; `None` creates new ones.
    pub run_tokens: Option<PathBuf>,
    /// Path of the audit log.
    pub audit_log: Option<PathBuf>,
    /// The workers that are not trusted, and the settings of their audits.
    pub distrust: Distrust,
}

/// An error of starting a hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The hub would listen unencrypted beyond the loopback interface.
    #[error(
        "{0} can be reached from other machines, and the hub has no certificate: --tls-cert and --tls-key name one, \
         --tls-self-signed makes one; or listen on 127.0.0.1 and use an SSH tunnel"
    )]
    NotEncrypted(SocketAddr),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tokens cannot be read.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The audit share is not a valid fraction.
    #[error(transparent)]
    AuditShare(#[from] BadShare),
    /// The audit log cannot be opened.
    #[error("cannot write the audit log {0}: {1}; choose another place with --audit-log")]
    Audit(PathBuf, std::io::Error),
    /// The text is not a host.
    #[error("'{0}' is no host: write HOST or HOST:PORT")]
    Host(String),
    /// The address cannot be bound, for example because it is in use.
    #[error("cannot listen on {address}: {source}; choose another address with --listen, port 0 takes any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The directory of the page does not exist.
    #[error("there is no page in {0}: index.html is missing")]
    NoAssets(PathBuf),
    /// The directory to serve does not exist.
    #[error("{0} is no directory whose files could be served")]
    NoDirectory(PathBuf),
    /// The text is not an origin.
    #[error("'{0}' is no origin: write it as browsers do, like https://game.example or http://localhost:8000")]
    Origin(String),
    /// The environment's agents cannot be described to clients.
    #[error("clients cannot drive this environment: {0}")]
    Agents(#[from] AgentTableError),
}

/// A message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubNotice {
    /// 0 information, 1 warning, 2 error.
    pub level: u8,
    /// The text, one line.
    pub text: String,
}

//! How a hub is set up, and why it cannot be.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use rollmesh_core::{group::BadShare, kernels::Kernels, protocol::convert::AgentTableError};

use super::{Distrust, TlsConfig, TlsError, TokenFileError};
use crate::{external::ExternalMultiAgentEnv, kernels::AUTO};

/// How a hub is set up.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Where to listen. Beyond the loopback device a hub encrypts.
    pub listen: SocketAddr,
    /// Whether there is a page, and tokens for dashboards.
    pub dashboard: bool,
    /// Directory of the page's files, if not the usual ones; without a dashboard of any files to be served.
    pub assets: Option<PathBuf>,
    /// Where runs that pages start keep their files, each in a new directory; nowhere if absent, and then they cannot be
    /// saved.
    pub runs_dir: Option<PathBuf>,
    /// The program that local workers run, with its first arguments.
    pub worker_program: PathBuf,
    /// Kernels with which the hub proves itself.
    pub kernels: Kernels,
    /// The environment whose episodes clients may drive, if there is one.
    pub external: Option<ExternalMultiAgentEnv>,
    /// Origins of pages, as browsers write them (`https://game.example`), that may connect besides the hub's own.
    pub allow_origins: Vec<String>,
    /// Encryption, tokens that outlive the hub, the audit log.
    pub security: SecurityConfig,
}

impl HubConfig {
    /// A hub for this machine alone, at any free port, without a page. Its local workers are this program again.
    ///
    /// # Errors
    /// The system does not say which program this is.
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

/// How a hub protects itself. The default is right for a hub of one machine.
#[derive(Clone, Debug, Default)]
pub struct SecurityConfig {
    /// How to encrypt; without it a hub listens on the loopback device alone.
    pub tls: Option<TlsConfig>,
    /// Listen beyond the loopback device without encryption: tokens and all else can be read on the way.
    pub allow_unencrypted: bool,
    /// Names by which others reach this hub, `HOST` or `HOST:PORT`, besides its addresses.
    pub hosts: Vec<String>,
    /// A file of tokens, as hashes, besides those that are made for this hub alone.
    pub token_file: Option<PathBuf>,
    /// Where the hub keeps its own tokens, for its owner alone, so that a later hub has the same; `None` makes new ones.
    pub run_tokens: Option<PathBuf>,
    /// Where to keep the audit log.
    pub audit_log: Option<PathBuf>,
    /// Which workers are not trusted, and how they are watched.
    pub distrust: Distrust,
}

/// Why a hub could not start.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Others could read everything.
    #[error(
        "{0} can be reached from other machines, and the hub has no certificate: --tls-cert and --tls-key name one, \
         --tls-self-signed makes one; or listen on 127.0.0.1 and use an SSH tunnel"
    )]
    NotEncrypted(SocketAddr),
    /// There is no certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are no tokens to read.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// No share of fragments can be audited.
    #[error(transparent)]
    AuditShare(#[from] BadShare),
    /// There is no audit log.
    #[error("cannot write the audit log {0}: {1}; choose another place with --audit-log")]
    Audit(PathBuf, std::io::Error),
    /// The text is no host.
    #[error("'{0}' is no host: write HOST or HOST:PORT")]
    Host(String),
    /// Somebody else listens there.
    #[error("cannot listen on {address}: {source}; choose another address with --listen, port 0 takes any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The directory of the page does not exist.
    #[error("there is no page in {0}: index.html is missing")]
    NoAssets(PathBuf),
    /// The directory to be served does not exist.
    #[error("{0} is no directory whose files could be served")]
    NoDirectory(PathBuf),
    /// The text is no origin.
    #[error("'{0}' is no origin: write it as browsers do, like https://game.example or http://localhost:8000")]
    Origin(String),
    /// Clients could not speak of the environment's agents.
    #[error("clients cannot drive this environment: {0}")]
    Agents(#[from] AgentTableError),
}

/// Something that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubNotice {
    /// 0 information, 1 warning, 2 error.
    pub level: u8,
    /// The text, one line.
    pub text: String,
}

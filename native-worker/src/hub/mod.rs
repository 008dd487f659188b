//! The hub: the process that workers, dashboards and clients connect to.
//!
//! One task, the actor, owns all state: peers, children, the run. Every socket has a task of its own that checks
//! and decodes frames and passes messages on; the learner has a thread, and so have strangers and dashboards, with the
//! lowest claim to processor time. The actor never blocks on any of them.

mod access;
mod actor;
mod admit;
mod assets;
mod audit;
mod auditor;
mod books;
mod calls;
mod checkpoints;
mod children;
mod client;
mod commands;
mod dashboard;
mod door;
mod evaluators;
mod gate;
mod limits;
mod local;
mod meter;
mod movable;
mod notices;
mod pace;
mod peer;
mod private_file;
mod runs;
mod server;
mod tls;
mod token_file;
mod tokens;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rollmesh_core::{
    batch::SlotFragment,
    group::BadShare,
    ids::WeightsVersion,
    kernels::Kernels,
    protocol::{Role, Token, TokenGrant, convert::AgentTableError, message::RunStatus},
    weights::Weights,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use self::{
    actor::{Actor, Event},
    audit::{Audit, Record},
    token_file::TokenFile,
};
use crate::{
    Registry,
    external::ExternalMultiAgentEnv,
    launch::{Launcher, LocalLauncher, WorkerSpec},
    lines::LineNews,
    net::Fingerprint,
    train::{SampleConfig, SavedRun, StartError, Summary, Task, TrainConfig},
};

pub use self::{
    auditor::{Distrust, OnLiar},
    checkpoints::{CheckpointNowError, SavedCheckpoint},
    limits::{Limit, limits},
    tls::{TlsConfig, TlsError},
    token_file::TokenFileError,
};
pub use crate::train::SyncError;
pub(crate) use access::random_token;
pub(crate) use calls::{NewsSink, Replacement, WorkerNews, WorkerOrder};
pub(crate) use token_file::{TokenFile as Tokens, now as seconds_now, role_name, role_of};

/// The environment variable through which a worker gets its token.
pub(crate) const TOKEN_VARIABLE: &str = "ROLLMESH_TOKEN";

/// The flag with which hubs and peers go without encryption beyond the loopback device.
pub(crate) const UNENCRYPTED_FLAG: &str = "--i-know-this-is-not-encrypted";

/// How a hub is set up.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Where to listen. Beyond the loopback device a hub encrypts.
    pub listen: SocketAddr,
    /// Whether there is a page, and tokens for dashboards.
    pub dashboard: bool,
    /// Directory of the page's files, if not the usual ones; without a dashboard of any files to be served.
    pub assets: Option<PathBuf>,
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
    /// There is no randomness for tokens.
    #[error("the system has no randomness for tokens: {0}")]
    Randomness(getrandom::Error),
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
    evaluator: Token,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<RunStatus>,
    notices: mpsc::Receiver<HubNotice>,
    actor: JoinHandle<()>,
    /// Closes with the hub.
    _door: door::Door,
}

impl Hub {
    /// Listens, and serves workers and dashboards from now on.
    ///
    /// # Errors
    /// [`HubError`], which says what to change.
    pub async fn start(config: HubConfig, registry: &Registry) -> Result<Self, HubError> {
        let launcher = Arc::new(LocalLauncher::new(&config.worker_program));
        Self::start_with(config, registry, launcher, WorkerSpec::default()).await
    }

    /// [`start`](Self::start) with a launcher of one's own for local workers, instead of processes of the configured
    /// program; and with what each of them needs, unless a run says otherwise.
    ///
    /// # Errors
    /// [`HubError`], which says what to change.
    pub async fn start_with(
        config: HubConfig,
        registry: &Registry,
        launcher: Arc<dyn Launcher>,
        worker_spec: WorkerSpec,
    ) -> Result<Self, HubError> {
        let SecurityConfig { tls, allow_unencrypted, hosts, token_file, audit_log, distrust } = config.security.clone();
        let audits = distrust.audits.check()?;
        let distrust = Distrust { audits, ..distrust };
        let is_local = config.listen.ip().is_loopback();
        if !is_local && tls.is_none() && !allow_unencrypted {
            return Err(HubError::NotEncrypted(config.listen));
        }
        if let Some(text) = config.allow_origins.iter().find(|text| !access::is_origin(text)) {
            return Err(HubError::Origin(text.clone()));
        }
        if let Some(text) = hosts.iter().find(|text| !access::is_host(text)) {
            return Err(HubError::Host(text.clone()));
        }
        let hosts = names(config.listen, hosts);
        let tls = tls.map(|tls| tls::Tls::open(&tls, config.listen, &hosts)).transpose()?;
        let fingerprint = tls.as_ref().map(|tls| tls.fingerprint);
        let mut audit = match &audit_log {
            Some(path) => Audit::open(path).map_err(|error| HubError::Audit(path.clone(), error))?,
            None => Audit::default(),
        };
        let mut tokens = access::Tokens::new(token_file.as_deref().map(TokenFile::open).transpose()?);
        let clients = config.external.clone().map(client::Clients::new).transpose()?.map(Arc::new);
        let assets = assets::Assets::find(config.dashboard, config.assets.as_deref())?;
        let failed = |source| HubError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let [operator, viewer, worker, client, evaluator] =
            [(); 5].map(|()| random_token().map_err(HubError::Randomness));
        let (operator, viewer, worker, client, evaluator) = (operator?, viewer?, worker?, client?, evaluator?);
        let mut let_in = |token, role| tokens.add(token, TokenGrant { role, child: None, expires: None });
        let_in(&worker, Role::Worker);
        let_in(&evaluator, Role::Evaluator);
        if clients.is_some() {
            let_in(&client, Role::Client);
        }
        if config.dashboard {
            let_in(&operator, Role::Operator);
            let_in(&viewer, Role::Viewer);
        }
        tokens.share(&worker);
        let started = Record::Started { address, encrypted: tls.is_some() };
        if let Some(LineNews::Waiting { error, .. }) = audit.add(&started) {
            return Err(HubError::Audit(audit_log.unwrap_or_default(), error));
        }
        let (events, inbox) = mpsc::channel(1024);
        let (status_sender, status) = watch::channel(RunStatus::default());
        let (notice_sender, notices) = mpsc::channel(1024);
        if !is_local && tls.is_none() {
            tokio::spawn(warn_each_minute(address, notice_sender.clone()));
        }
        let way = way_here(address, fingerprint);
        let children = children::Children::new(launcher, way, events.clone());
        let local = (children, worker_spec, config.worker_program.clone());
        let own = (config.kernels, distrust);
        let actor = Actor::new(registry.envs.clone(), own, tokens, local, status_sender, notice_sender, audit);
        let reached_at = match hosts.first() {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{}", address.port()),
            None => address.to_string(),
        };
        let server = server::Shared {
            tls: tls.map(|tls| tls.acceptor),
            hosts,
            allow_origins: config.allow_origins,
            assets,
            events: events.clone(),
            clients,
            gate: Arc::default(),
            inside: tokio::runtime::Handle::current(),
        };
        let door = door::Door::open(listener, server).map_err(failed)?;
        Ok(Self {
            address,
            reached_at,
            fingerprint,
            operator,
            viewer,
            worker,
            client,
            evaluator,
            status,
            notices,
            actor: tokio::spawn(actor.run(inbox)),
            _door: door,
            events,
        })
    }

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

    /// A token that lets workers in.
    #[must_use]
    pub fn worker_token(&self) -> Token {
        self.worker
    }

    /// A token that lets clients in, where there is an environment for them.
    #[must_use]
    pub fn client_token(&self) -> Token {
        self.client
    }

    /// A token that lets evaluation workers in, and those who look for them: see [`EvalHub`](crate::eval::EvalHub).
    #[must_use]
    pub fn evaluator_token(&self) -> Token {
        self.evaluator
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

    /// The next notice that is there already.
    pub(crate) fn take_notice(&mut self) -> Option<HubNotice> {
        self.notices.try_recv().ok()
    }

    /// Begins a run and starts its local workers. The receiver gets the summary when the run is over.
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is going on.
    pub async fn train(&self, config: TrainConfig) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Train(Box::new(config))).await
    }

    /// Goes on with a run that was begun before, with the same bits as if it had never ended; otherwise as
    /// [`train`](Self::train).
    ///
    /// # Errors
    /// [`StartRunError`] when the run cannot go on or another run is going on.
    #[doc(alias = "restore")]
    pub async fn resume(&self, saved: SavedRun) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Resume(Box::new(saved))).await
    }

    /// Saves the run in its directory, as it is after its latest update, and waits until that is on the disk. It is saved
    /// now and then in any case.
    ///
    /// # Errors
    /// [`CheckpointNowError`]. What was saved before is still there.
    #[doc(alias = "save_checkpoint")]
    pub async fn checkpoint(&self) -> Result<SavedCheckpoint, CheckpointNowError> {
        let (asker, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::Checkpoint { asker: checkpoints::Asker::Program(asker) }).await;
        answer.await.unwrap_or(Err(CheckpointNowError::NoRun))
    }

    /// Begins a run without a learner and starts its local workers: rows under fixed weights, handed over batch by batch.
    ///
    /// ```no_run
    /// # async fn example(hub: &rollmesh::hub::Hub) -> Result<(), rollmesh::hub::StartRunError> {
    /// let mut sampling = hub.sample(rollmesh::train::SampleConfig::new("CartPole-v1")).await?;
    /// while let Some(fragments) = sampling.batches.recv().await {
    ///     // One fragment per slot, in slot order.
    ///     assert_eq!(fragments.len(), 64);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is going on.
    #[doc(alias = "synchronous_parallel_sample")]
    pub async fn sample(&self, config: SampleConfig) -> Result<Sampling, StartRunError> {
        let (sender, batches) = mpsc::channel(1);
        let summary = self.start_run(Task::Sample(config, sender)).await?;
        Ok(Sampling { batches, summary })
    }

    /// Sets weights in a run that [`sample`](Self::sample) began, and waits until all its workers act with them, for one
    /// that is slow to say so until it leaves or is quarantined. An iteration that is going on ends with the weights that
    /// it began with. The version is one above the latest.
    ///
    /// # Errors
    /// [`SyncError`] when there is no such run, or its policy has other tensors.
    #[doc(alias = "set_weights")]
    pub async fn sync_weights(&self, weights: Weights) -> Result<WeightsVersion, SyncError> {
        let (applied, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::SyncWeights { weights, applied }).await;
        answer.await.unwrap_or(Err(SyncError::Ended))
    }

    /// What workers have sent so far, and which processes the local ones are.
    pub async fn traffic(&self) -> Traffic {
        let (reply, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::CountTraffic { reply }).await;
        answer.await.unwrap_or_default()
    }

    async fn start_run(&self, task: Task) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        let (started, answer) = oneshot::channel();
        let (done, summary) = oneshot::channel();
        let request = Event::Start { task, started, done };
        let sent = self.events.send(request).await.is_ok();
        let answer = if sent { answer.await.unwrap_or(Err(StartError::HubGone)) } else { Err(StartError::HubGone) };
        answer.map(|()| summary).map_err(StartRunError)
    }

    /// Prepares the end of the program: takes no more workers and begins no more runs, and drains the run that goes on. Its
    /// leases have ten seconds to end; what they bring is committed, and learned from if the iteration becomes complete
    /// by it. Returns when the run is over; its summary comes as always.
    pub async fn drain(&self) {
        // Without a hub there is no run.
        let _ = self.begin_drain().await.await;
    }

    /// As [`drain`](Self::drain); the receiver tells when the run is over.
    pub(crate) async fn begin_drain(&self) -> oneshot::Receiver<()> {
        let (drained, over) = oneshot::channel();
        let _ = self.events.send(Event::Drain { drained }).await;
        over
    }

    /// Ends the run, if one is going on, after the update that is being computed if the run has a directory to go on from;
    /// its summary comes as always.
    pub async fn stop_run(&self) {
        // A hub that is gone has no run.
        let _ = self.events.send(Event::StopRun).await;
    }

    /// Says goodbye to everybody, ends the local workers and stops.
    pub async fn shutdown(mut self) {
        let _ = self.events.send(Event::Shutdown).await;
        // The actor ends its children first; whatever hangs is killed when it is dropped.
        let _ = tokio::time::timeout(Duration::from_secs(5), &mut self.actor).await;
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.actor.abort();
    }
}

/// The names of a hub: those that were given; where it listens on all addresses, the machine's if none was.
fn names(listen: SocketAddr, given: Vec<String>) -> Vec<String> {
    if !given.is_empty() || !listen.ip().is_unspecified() {
        return given;
    }
    let machine = gethostname::gethostname().into_string().ok();
    machine.filter(|name| access::is_host(name)).into_iter().collect()
}

/// How the hub's own workers reach it: arguments of `worker`.
fn way_here(address: SocketAddr, fingerprint: Option<Fingerprint>) -> Vec<String> {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(host, address.port());
    match fingerprint {
        Some(fingerprint) => {
            vec!["--hub".into(), format!("wss://{address}"), "--tls-fingerprint".into(), fingerprint.to_string()]
        }
        None => vec!["--hub".into(), format!("ws://{address}"), UNENCRYPTED_FLAG.into()],
    }
}

/// Says again and again what nobody should forget.
async fn warn_each_minute(address: SocketAddr, notices: mpsc::Sender<HubNotice>) {
    let mut minutes = tokio::time::interval(Duration::from_secs(60));
    let text = format!("{address} is not encrypted: whoever is on the way reads tokens and everything else");
    // Until the hub is gone, and its notices with it.
    while !notices.is_closed() {
        minutes.tick().await;
        let _ = notices.try_send(HubNotice { level: 1, text: text.clone() });
    }
}

/// A run without a learner.
#[derive(Debug)]
pub struct Sampling {
    /// The fragments of all slots, in slot order, iteration after iteration. The run waits for whoever takes them, and
    /// ends when nobody does.
    pub batches: mpsc::Receiver<Vec<SlotFragment>>,
    /// What the run has come to, when it is over.
    pub summary: oneshot::Receiver<Summary>,
}

/// What workers cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the hub got from workers: whole frames on the socket, whatever they say.
    pub received_bytes: u64,
    /// The system's numbers of the local workers' processes.
    pub worker_pids: Vec<u32>,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartRunError(StartError);

impl StartRunError {
    /// True if another configuration would help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        let Self(error) = self;
        matches!(
            error,
            StartError::Config(_)
                | StartError::Device(_)
                | StartError::RunDir(_)
                | StartError::Output(_)
                | StartError::Launch(_)
                | StartError::Restore(_)
        )
    }
}

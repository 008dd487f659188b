//! Starting a hub.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hub::{HubSetup, HubTokens, Record},
    ids::LeaseId,
    protocol::{
        Role, TokenGrant,
        message::{HubCertificate, RunStatus},
    },
    run::schema::accept_env_names,
    worker::{HostFacts as _, core_fingerprint},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};

use super::{
    Hub, HubConfig, HubError, HubNotice, OnDivergence, SecurityConfig, access,
    actor::{Actor, Event, life},
    assets,
    audit::Audit,
    calls::CalledWorkers,
    checkpoints::Askers,
    children::{Children, Way},
    client,
    launchers::Launchers,
    listener_thread, memory_budget,
    recompute::Recomputer,
    run_tokens::RunTokens,
    seconds_now, server, tls,
    token_file::TokenFile,
};
use crate::{
    NativeHost, Registry,
    envs::PythonSettings,
    kernels::AUTO,
    launch::{Launcher, WorkerSpec},
    learner::run_schema,
    lines::LineNotice,
    machine::{Machine, REPORT_INTERVAL},
    net::{ExpiryWarning, Fingerprint, Trust, expiry_warning},
    runs::{RunMaker, StartReaders},
};

/// Interval of warnings about a certificate.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Hub {
    /// Starts a hub, see [`start_with`](Self::start_with): its runs from files have the readers that `start_readers` starts.
    pub(crate) async fn start_over(
        config: HubConfig,
        registry: &Registry,
        launcher: Arc<dyn Launcher>,
        worker_spec: WorkerSpec,
        start_readers: StartReaders,
    ) -> Result<Self, HubError> {
        let SecurityConfig {
            tls,
            client_ca,
            allow_unencrypted,
            hosts,
            frame_origins,
            token_file,
            run_tokens,
            audit_log,
            distrust,
        } = config.security.clone();
        let audits = distrust.audits.check()?;
        let is_local = config.listen.ip().is_loopback();
        if !is_local && tls.is_none() && !allow_unencrypted {
            return Err(HubError::NotEncrypted(config.listen));
        }
        if let Some(text) = config.allow_origins.iter().chain(&frame_origins).find(|text| !access::is_origin(text)) {
            return Err(HubError::Origin(text.clone()));
        }
        if let Some(text) = hosts.iter().find(|text| !access::is_host(text)) {
            return Err(HubError::Host(text.clone()));
        }
        let hosts = names(config.listen, hosts);
        let tls = tls.map(|tls| tls::Tls::open(&tls, config.listen, &hosts, client_ca.as_deref())).transpose()?;
        let fingerprint = tls.as_ref().map(|tls| tls.fingerprint);
        let expires = tls.as_ref().and_then(|tls| tls.expires);
        // Bind before anything is written: another hub may be running with the same files.
        let failed = |source| HubError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut audit = match &audit_log {
            Some(path) => Audit::open(path).map_err(|error| HubError::Audit(path.clone(), error))?,
            None => Audit::default(),
        };
        let mut kept = RunTokens::open(run_tokens.as_deref())?;
        let roles = [Role::Operator, Role::Viewer, Role::Worker, Role::Client];
        let [operator, viewer, worker, client] = kept.of_roles(roles)?;
        let mut tokens = HubTokens::default();
        let token_file = token_file.as_deref().map(TokenFile::open).transpose()?;
        let token_files = access::TokenFiles::new(token_file, kept, &mut tokens);
        let clients = config.external.clone().map(client::ClientsState::new).transpose()?.map(Arc::new);
        let assets = assets::Assets::find(config.dashboard, config.assets.as_deref())?;
        let mut let_in = |token, role| tokens.add(token, TokenGrant { role, child: None, expires: None });
        let_in(&worker, Role::Worker);
        if clients.is_some() {
            let_in(&client, Role::Client);
        }
        if config.dashboard {
            let_in(&operator, Role::Operator);
            let_in(&viewer, Role::Viewer);
        }
        tokens.share(&worker);
        let started = Record::Started { address, encrypted: tls.is_some() };
        if let Some(LineNotice::Waiting { error, .. }) = audit.add(&started) {
            return Err(HubError::Audit(audit_log.unwrap_or_default(), error));
        }
        let (events, inbox) = mpsc::channel(1024);
        let (status_sender, status) = watch::channel(RunStatus::default());
        let (notice_sender, notices) = mpsc::channel(1024);
        if !is_local && tls.is_none() {
            tokio::spawn(warn_each_minute(address, notice_sender.clone()));
        }
        let kernels = Some(config.kernels.name).filter(|name| *name != AUTO.name);
        let way = Way { kernels, ..way_here(address, fingerprint) };
        let life = life();
        let launchers = Launchers::new(launcher, life);
        let children = Children::new(Arc::new(launchers.clone()), way, events.clone());
        let setup = HubSetup {
            life,
            fingerprint: core_fingerprint(config.kernels),
            server: concat!("rollmesh ", env!("CARGO_PKG_VERSION")).into(),
            schema: schema(registry, &PythonSettings::of_process()).to_string(),
            certificate: fingerprint.map(HubCertificate::from),
            distrusts_remote: distrust.distrust_remote,
            rolls_back: distrust.on_divergence == OnDivergence::RollBack,
        };
        let mut core = rollmesh_core::hub::Hub::new(setup, tokens);
        core.keeps_queue = config.runs_dir.is_some();
        let (registry, kernels, program) = (registry.clone(), config.kernels, config.worker_program.clone());
        let maker = RunMaker { registry, kernels, program, start_readers };
        let actor = Actor {
            hub: core,
            maker: maker.clone(),
            auditor: Recomputer::new("audits", maker.registry.clone(), kernels),
            painter: Recomputer::new("pictures", maker.registry.clone(), kernels),
            drawing: None,
            audits,
            tokens: token_files,
            children,
            launchers,
            in_process: BTreeMap::new(),
            runs_dir: config.runs_dir.clone(),
            worker: worker_spec,
            next_lease: LeaseId(1),
            num_reading: 0,
            drained: Vec::new(),
            update: None,
            turn: None,
            askers: Askers::default(),
            syncing: Vec::new(),
            left_bytes: 0,
            done: None,
            ended: None,
            finishing: None,
            starting: None,
            deferred: VecDeque::new(),
            waiting_since: None,
            listener: None,
            called: CalledWorkers::default(),
            status: status_sender,
            notices: notice_sender,
            audit,
            epoch: Instant::now(),
        };
        let reached_at = match hosts.first() {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{}", address.port()),
            None => address.to_string(),
        };
        let server = server::ServerState {
            tls,
            hosts,
            allow_origins: config.allow_origins,
            frame_origins,
            assets,
            events: events.clone(),
            clients,
            limiter: Arc::default(),
            budget: memory_budget::MemoryBudget::default(),
            inside: tokio::runtime::Handle::current(),
        };
        if config.dashboard {
            tokio::spawn(measure(events.clone()));
        }
        if let Some(expires) = expires {
            tokio::spawn(warn_of_expiry(expires, events.downgrade()));
        }
        let listener_thread = listener_thread::ListenerThread::open(listener, server).map_err(failed)?;
        Ok(Self {
            address,
            reached_at,
            fingerprint,
            operator,
            viewer,
            worker,
            client,
            maker,
            status,
            notices,
            actor: tokio::spawn(actor.run(inbox)),
            _listener: listener_thread,
            events,
        })
    }
}

/// Returns the schema of the hub's runs, which may be of the Python environments that this machine allows.
fn schema(registry: &Registry, python: &PythonSettings) -> serde_json::Value {
    let mut schema = run_schema(registry);
    if registry.envs.resolver.is_some() {
        accept_env_names(&mut schema, python.allowed.beginnings());
    }
    schema
}

/// Returns the hub's names: the configured ones, or the machine's name if there are none and the hub listens on all
/// addresses.
fn names(listen: SocketAddr, given: Vec<String>) -> Vec<String> {
    if !given.is_empty() || !listen.ip().is_unspecified() {
        return given;
    }
    NativeHost.hostname().filter(|name| access::is_host(name)).into_iter().collect()
}

/// Returns the way to the hub for workers on this machine.
fn way_here(address: SocketAddr, fingerprint: Option<Fingerprint>) -> Way {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if fingerprint.is_some() { "wss" } else { "ws" };
    Way {
        url: format!("{scheme}://{}", SocketAddr::new(host, address.port())),
        trust: Trust { fingerprint, allow_unencrypted: fingerprint.is_none(), ..Trust::default() },
        kernels: None,
    }
}

/// Measures this machine for dashboards until the hub stops.
async fn measure(events: mpsc::Sender<Event>) {
    let mut machine = Machine::default();
    let mut ticks = tokio::time::interval(REPORT_INTERVAL);
    loop {
        ticks.tick().await;
        if events.send(Event::Measured(machine.report().await)).await.is_err() {
            return;
        }
    }
}

/// Repeats a warning every minute while the hub is not encrypted.
async fn warn_each_minute(address: SocketAddr, notices: mpsc::Sender<HubNotice>) {
    let mut minutes = tokio::time::interval(Duration::from_secs(60));
    let text = format!("{address} is not encrypted: anyone on the network path can read tokens and data");
    // Ends with the hub, which drops the receiver.
    while !notices.is_closed() {
        minutes.tick().await;
        let _ = notices.try_send(HubNotice { level: 1, text: text.clone() });
    }
}

/// Warns once a day while the certificate is about to expire or has expired.
async fn warn_of_expiry(expires: u64, events: mpsc::WeakSender<Event>) {
    let mut days = tokio::time::interval(DAY);
    loop {
        days.tick().await;
        // The hub has ended.
        let Some(events) = events.upgrade() else { return };
        if let Some(ExpiryWarning { has_expired, text }) = expiry_warning(expires, seconds_now()) {
            let warn = Event::ask(move |actor| actor.hub.notice(if has_expired { 2 } else { 1 }, text));
            let _ = events.send(warn).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_accepts_the_python_environments_that_the_machine_allows() {
        let kinds = |registry: &Registry, allowed: &str| {
            let python = PythonSettings { allowed: allowed.parse().unwrap(), ..PythonSettings::default() };
            let kinds = schema(registry, &python)["properties"]["env"]["anyOf"].as_array().unwrap().clone();
            kinds[2..].iter().map(|kind| kind["pattern"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let native = crate::native(Registry::builtin());
        assert_eq!(kinds(&native, ""), [""; 0]);
        let allowed = "gym:*,gym:*:*,py:my_package.*,pettingzoo:pistonball_v6";
        let wanted: &[&str] = match cfg!(unix) {
            true => &["^gym:", "^pettingzoo:pistonball_v6", r"^py:my_package\."],
            false => &[],
        };
        assert_eq!(kinds(&native, allowed), wanted);
        assert_eq!(kinds(&Registry::builtin(), allowed), [""; 0], "it makes none");
    }
}

//! Clients that drive the episodes of a worker in this process: a hub for them, alongside the worker.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use clap::Args;
use rollmesh_core::worker::RolloutConfig;
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

use super::{exit::Failure, host, runtime, security::SecurityFlags};
use crate::{
    Registry,
    cli::progress::{Printer, Progress},
    external::{ExternalMultiAgentEnv, agents_of, episode_timeout},
    hub::{Hub, HubConfig},
    net::TOKEN_VARIABLE,
};

/// The environment whose episodes clients drive.
pub(super) const ENV: &str = "External-v0";
/// Maximum number of pages that are listed.
const MAX_PAGES: usize = 8;

/// The flags that every command has whose episodes may be driven by clients.
#[derive(Args, Clone, Debug)]
pub(super) struct ListenFlags {
    /// Address for workers, or for clients of External-v0
    ///
    /// Games and simulators drive the episodes of External-v0. Beyond this machine with --tls-cert or --tls-self-signed
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<SocketAddr>,
    /// Let pages of this origin connect, too
    ///
    /// For example `https://game.example`; may be given several times
    #[arg(long, hide_short_help = true, value_name = "ORIGIN", requires = "listen")]
    allow_origin: Vec<String>,
    /// Serve the files of this directory at the address
    ///
    /// For example a page with a game
    #[arg(long, hide_short_help = true, value_name = "DIR", requires = "listen")]
    pub(super) assets: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Security")]
    pub(super) security: SecurityFlags,
}

/// The hub for clients, for the duration of the command.
pub(super) struct ClientHub {
    env: ExternalMultiAgentEnv,
    hub: JoinHandle<()>,
    shut_down: oneshot::Sender<()>,
    runtime: Runtime,
    notices: Notices,
}

/// Prints notices: above the progress bar while there is one.
#[derive(Clone, Default)]
struct Notices(Arc<Mutex<Option<Printer>>>);

impl Notices {
    fn printer(&self) -> MutexGuard<'_, Option<Printer>> {
        // The lock is held only while printing, so its state is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print(&self, line: &str) {
        match &*self.printer() {
            Some(printer) => printer.println(line),
            None => eprintln!("{line}"),
        }
    }
}

impl ListenFlags {
    /// Starts the hub, if `--listen` is set, and adds its environment to the registry.
    pub(super) fn open(
        &self,
        config: &RolloutConfig,
        registry: &Registry,
    ) -> Result<(Registry, Option<ClientHub>), Failure> {
        let Some(listen) = self.listen else {
            // A program may have registered its own environment under this name.
            return if is_external(config, registry) {
                let message = format!("clients drive {ENV}: say where they connect, --listen {}", host::USUAL_ADDRESS);
                Err(Failure::usage(message))
            } else {
                Ok((registry.clone(), None))
            };
        };
        let Some(env) = env_of(config, registry)? else {
            let message =
                format!("--listen is for clients, and they drive {ENV}: set it as env, and whose spaces it has");
            return Err(Failure::usage(message));
        };
        let hub = HubConfig {
            assets: self.assets.clone(),
            external: Some(env.clone()),
            allow_origins: self.allow_origin.clone(),
            ..host::config(listen, false, self.security.config(None)?)?
        };
        let runtime = runtime(2)?;
        let hub = runtime.block_on(Hub::start(hub, registry)).map_err(Failure::usage)?;
        print_invitations(&hub, &self.security, config, self.assets.as_deref());
        let (shut_down, wish) = oneshot::channel();
        let notices = Notices::default();
        let hub = runtime.spawn(serve(hub, wish, notices.clone()));
        let clients = ClientHub { env, hub, shut_down, runtime, notices };
        Ok((registry.clone().with_base_env(ENV, clients.env.creator()), Some(clients)))
    }
}

pub(super) fn is_external(config: &RolloutConfig, registry: &Registry) -> bool {
    config.env.as_deref() == Some(ENV) && registry.env(ENV).is_err()
}

/// Returns the external environment, if the settings name it.
pub(super) fn env_of(config: &RolloutConfig, registry: &Registry) -> Result<Option<ExternalMultiAgentEnv>, Failure> {
    if !is_external(config, registry) {
        return Ok(None);
    }
    let agents = agents_of(&config.env_config, registry).map_err(Failure::usage)?;
    let timeout = episode_timeout(&config.env_config).map_err(Failure::usage)?;
    let env = ExternalMultiAgentEnv::new(config.num_envs as usize, agents).map_err(Failure::usage)?;
    Ok(Some(env.with_episode_timeout(timeout)))
}

/// Prints the addresses and the token with which clients join a hub that serves these files.
pub(super) fn print_invitations(hub: &Hub, security: &SecurityFlags, config: &RolloutConfig, assets: Option<&Path>) {
    let (url, token) = (hub.worker_url(), hub.client_token().to_hex());
    eprintln!("clients  {url}");
    if security.hides_tokens() {
        return;
    }
    eprintln!("token    {token}");
    // The examples in the repository play this environment.
    let is_example = config.env_config.get("spaces_of") == Ok(Some("CartPole-v1".to_owned()));
    let fingerprint = hub.fingerprint();
    if let Some(sha256) = &fingerprint {
        eprintln!("sha256   {sha256}");
    }
    if is_example {
        let trust = fingerprint.map_or_else(String::new, |sha256| format!(" --fingerprint {sha256}"));
        eprintln!("python   {TOKEN_VARIABLE}={token} python3 examples/external/cart_pole.py --hub {url}{trust}");
    }
    for page in assets.map(pages).unwrap_or_default() {
        eprintln!("page     {}/{page}#token={token}", hub.page_url());
    }
    if assets.is_none() && is_example {
        eprintln!("page     none is served: --assets examples/external has one");
    }
}

/// Returns the pages in a served directory.
fn pages(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut pages: Vec<String> = names.filter(|name| name.ends_with(".html")).collect();
    pages.sort();
    pages.truncate(MAX_PAGES);
    pages
}

impl ClientHub {
    /// Returns a function that ends all episodes immediately, after which sampling returns an error.
    pub(super) fn stopper(&self) -> impl Fn() + Send + use<> {
        let env = self.env.clone();
        move || env.stop()
    }

    /// Prints notices above this progress bar from now on.
    pub(super) fn print_above(&self, progress: &Progress) {
        *self.notices.printer() = Some(progress.printer());
    }

    /// Shuts the hub down.
    pub(super) fn close(self) {
        // It may have ended by itself.
        let _ = self.shut_down.send(());
        let _ = self.runtime.block_on(self.hub);
    }
}

/// Prints notices until the command ends.
async fn serve(mut hub: Hub, mut wish: oneshot::Receiver<()>, notices: Notices) {
    loop {
        tokio::select! {
            _ = &mut wish => break,
            Some(notice) = hub.next_notice() => notices.print(&notice.text),
        }
    }
    hub.shutdown().await;
}

//! `rollmesh relay`: passes a hub's weights on to many workers.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use rollmesh_core::{protocol::handshake::shortened, worker::HostFacts as _};
use tokio::sync::watch;

use super::{
    exit::Failure,
    runtime,
    security::{RelayFlags, TlsFlags, TrustFlags},
    signals,
};
use crate::{
    NativeHost,
    control::{token_from_env, token_from_file},
    net::is_hub_url,
    relay::{RelayConfig, RelayError, serve},
};

#[derive(Args)]
#[command(after_help = "`rollmesh tokens create --role relay` makes a relay's token.\n\n\
                  Examples:\n  rollmesh relay --hub wss://hub.example:7878 --listen 0.0.0.0:7879 --tls-self-signed --token-file relay.token\n  \
                  rollmesh worker --hub wss://hub.example:7878 --relay wss://relay.example:7879 --relay-fingerprint …")]
pub(super) struct RelayArgs {
    /// Address of the hub, ws://HOST:PORT or wss://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = is_hub_url)]
    hub: String,
    /// Address to listen at; port 0 for any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7879")]
    listen: SocketAddr,
    /// Name in the hub's notices [default: this machine's]
    #[arg(long)]
    name: Option<String>,
    /// File with the token [default: in ROLLMESH_TOKEN]
    ///
    /// Without it the token is that of the environment variable ROLLMESH_TOKEN. - is the first line of standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Let peers on other machines in with a certificate of these authorities only, a PEM file (mutual TLS)
    ///
    /// Needed for a hub on this machine. Peers name theirs with --tls-client-cert, as for the hub
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    upstream: RelayFlags,
    #[command(flatten)]
    trust: TrustFlags,
}

pub(super) fn run(args: &RelayArgs) -> Result<ExitCode, Failure> {
    let token = args.token_file.as_deref().map_or_else(token_from_env, token_from_file).map_err(Failure::usage)?;
    let trust = args.trust.trust();
    trust.check(&args.hub).map_err(Failure::usage)?;
    let tls = args.tls.config()?;
    if args.tls_client_ca.is_some() && tls.is_none() {
        return Err(Failure::usage(
            "--tls-client-ca is for a relay with a certificate: --tls-cert or --tls-self-signed",
        ));
    }
    let config = RelayConfig {
        hub: args.hub.clone(),
        token,
        token_file: args.token_file.clone().filter(|path| path != Path::new("-")),
        name: shortened(&args.name.clone().or_else(|| NativeHost.hostname()).unwrap_or_default()),
        listen: args.listen,
        tls,
        client_ca: args.tls_client_ca.clone(),
        upstream: args.upstream.address(&args.hub, &trust).map_err(Failure::usage)?,
        trust,
    };
    runtime(1)?.block_on(async {
        let mut endings = signals::Endings::listen();
        let (leave, wish) = watch::channel(false);
        let notice = async {
            endings.first().await;
            leave.send_replace(true);
            std::future::pending().await
        };
        let end = tokio::select! {
            end = serve(config, wish, |line| eprintln!("{line}")) => end,
            end = notice => end,
        };
        match end {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error @ RelayError::Listen(..)) => Err(Failure::other(error)),
            Err(error) => Err(Failure::usage(error)),
        }
    })
}

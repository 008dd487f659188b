//! `rollmesh hub`: a hub that waits for runs from its page.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;

use super::{exit::Failure, host, runtime, signals, worker_spec::SpecFlags};
use crate::Registry;

#[derive(Args)]
#[command(after_help = "Example:\n  rollmesh hub --listen 127.0.0.1:7878")]
pub(super) struct HubArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = host::USUAL_ADDRESS)]
    listen: SocketAddr,
    /// Directory of the dashboard's files
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
    #[command(flatten)]
    workers: SpecFlags,
}

pub(super) fn run(args: &HubArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    runtime(2)?.block_on(async {
        let mut endings = signals::Endings::listen();
        let mut hub = host::start_with(args.listen, true, args.assets.clone(), &args.workers, registry).await?;
        host::print_invitations(&hub);
        host::serve(&mut hub, &mut endings).await;
        hub.shutdown().await;
        Ok(ExitCode::SUCCESS)
    })
}

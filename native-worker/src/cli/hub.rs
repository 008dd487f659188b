//! `rollmesh hub`: a hub that waits for runs from its page.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    exit::Failure, host, python::PythonFlags, runtime, security::SecurityFlags, signals, worker_spec::SpecFlags,
};
use crate::{
    Registry,
    hub::{HubConfig, Limit, limits},
};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  rollmesh hub\n  rollmesh hub --listen 0.0.0.0:7878 --tls-self-signed --public-host hub.example"
)]
pub(super) struct HubArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = host::USUAL_ADDRESS)]
    listen: SocketAddr,
    /// Directory of the dashboard's files
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
    /// Directory of the runs, each in a new one
    ///
    /// `rollmesh train --resume` continues them [default: runs in the state directory]
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
    /// Print all limits of a hub, and end
    #[arg(long)]
    print_limits: bool,
    /// Print them as JSON
    #[arg(long, requires = "print_limits")]
    json: bool,
    #[command(flatten, next_help_heading = "Resources of local workers")]
    workers: SpecFlags,
    #[command(flatten, next_help_heading = "Python environments")]
    python: PythonFlags,
    #[command(flatten, next_help_heading = "Security")]
    security: SecurityFlags,
}

pub(super) fn run(args: &HubArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if args.print_limits {
        return print_limits(args.json);
    }
    args.python.install(None);
    let security = args.security.config(None)?;
    let runs_dir = args.runs_dir.clone().map_or_else(|| args.security.runs_dir(), Ok)?;
    let (assets, runs_dir) = (args.assets.clone(), Some(runs_dir));
    let config = HubConfig { assets, runs_dir, ..host::config(args.listen, true, security)? };
    runtime(2)?.block_on(async {
        let mut endings = signals::Endings::listen();
        let mut hub = host::start(config, &args.workers, registry).await?;
        host::print_invitations(&hub, &args.security, true);
        host::serve(&mut hub, &mut endings).await;
        hub.shutdown().await.iter().for_each(|notice| eprintln!("{}", notice.text));
        Ok(ExitCode::SUCCESS)
    })
}

fn print_limits(json: bool) -> Result<ExitCode, Failure> {
    let limits = limits();
    if json {
        println!("{}", serde_json::to_string_pretty(&limits).map_err(Failure::other)?);
        return Ok(ExitCode::SUCCESS);
    }
    let width = limits.iter().map(|limit| limit.name.len()).max().unwrap_or_default();
    for Limit { name, value, unit, beyond } in limits {
        println!("{name:width$}  {value:>9} {unit}: {beyond}");
    }
    Ok(ExitCode::SUCCESS)
}

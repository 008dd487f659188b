//! `rollmesh worker`: a worker for a hub.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use rollmesh_core::{protocol::Token, worker::HostSettings};
use tokio::sync::watch;

use super::{exit::Failure, python::PythonFlags, runtime, security::TrustFlags, signals, spare_memory};
use crate::{
    Registry,
    child::{ConfineFlags, end_with_parent},
    kernels::KernelChoice,
    learner::DeviceSpec,
    net::{TOKEN_VARIABLE, is_hub_url},
    registry::acting_on,
    worker::{self, WorkerConfig, WorkerEnd},
};

#[derive(Args)]
#[command(after_help = "The token comes from the environment variable ROLLMESH_TOKEN; the hub prints the command.\n\n\
                        Example:\n  ROLLMESH_TOKEN=… rollmesh worker --hub ws://127.0.0.1:7878")]
pub(super) struct WorkerArgs {
    /// Address of the hub, ws://HOST:PORT or wss://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = is_hub_url)]
    hub: String,
    /// Name in the hub's table
    ///
    /// Printable ASCII, at most 64 characters
    #[arg(long, default_value = "worker")]
    name: String,
    /// Where policies act
    ///
    /// cpu, cuda:N or metal. A GPU's rows have other bits than a CPU's: only runs with device_rows = true take such a
    /// worker
    #[arg(long, default_value = "cpu")]
    device: DeviceSpec,
    /// Instantiation of the hot loops
    ///
    /// Has no influence on the rows
    #[arg(long, value_enum, default_value_t)]
    kernels: KernelChoice,
    /// Directory below which a hub may name outputs
    ///
    /// Outputs of a worker group's workers (output, monitor_path); without it they may write nothing
    #[arg(long, value_name = "DIR")]
    data_root: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustFlags,
    #[command(flatten, next_help_heading = "Python environments")]
    python: PythonFlags,
    /// End when standard input does, as the hub's own workers do
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    #[command(flatten)]
    confine: ConfineFlags,
}

pub(super) fn run(args: &WorkerArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    spare_memory();
    args.python.install(None);
    if args.until_stdin_closes {
        end_with_parent().map_err(|error| {
            Failure::other(format!("this worker could not end with its hub, so it does not start: {error}"))
        })?;
    }
    // Before any thread that works is started.
    args.confine.apply().map_err(Failure::other)?;
    let text = std::env::var(TOKEN_VARIABLE).map_err(|_| {
        Failure::usage(format!("{TOKEN_VARIABLE} is not set; the hub prints the command with its token"))
    })?;
    let token = Token::from_hex(text.trim()).map_err(|error| Failure::usage(format!("{TOKEN_VARIABLE}: {error}")))?;
    let registry = acting_on(registry, args.device).map_err(Failure::usage)?;
    let trust = args.trust.trust();
    trust.check(&args.hub).map_err(Failure::usage)?;
    let config = WorkerConfig {
        hub: args.hub.clone(),
        trust,
        token,
        kind: "native",
        name: args.name.clone(),
        device: args.device.to_string(),
        kernels: args.kernels.table().map_err(Failure::usage)?,
        host_settings: host_settings(args)?,
        evaluating: None,
    };
    let runtime = runtime(1)?;
    let end = runtime.block_on(async {
        let mut endings = signals::Endings::listen();
        let (leave, wish) = watch::channel(false);
        let run = worker::run(config, registry, wish, |line| eprintln!("{line}"));
        let notice = async {
            endings.first().await;
            eprintln!("leaving as soon as the lease is done; a second signal ends at once");
            leave.send_replace(true);
            std::future::pending::<WorkerEnd>().await
        };
        tokio::select! {
            end = run => end,
            end = notice => end,
        }
    });
    // Hung threads end with the process.
    runtime.shutdown_background();
    match end {
        WorkerEnd::Refused(reason) | WorkerEnd::NameTaken(reason) => {
            Err(Failure::usage(format!("the hub refused this worker: {reason}")))
        }
        WorkerEnd::Untrusted(reason) => Err(Failure::usage(reason)),
        WorkerEnd::Failed(reason) => Err(Failure::other(reason)),
        WorkerEnd::Closed(reason) => {
            eprintln!("{reason}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A hub that started this process decides for its machine; any other only names outputs.
fn host_settings(args: &WorkerArgs) -> Result<HostSettings, Failure> {
    if args.until_stdin_closes {
        return Ok(HostSettings::Taken);
    }
    let Some(root) = &args.data_root else { return Ok(HostSettings::Refused) };
    let root = root.to_str().ok_or_else(|| Failure::usage("--data-root: the path is no UTF-8"))?;
    Ok(HostSettings::Below(root.into()))
}

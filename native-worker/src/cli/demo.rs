//! `rollmesh demo`: shows a policy while it learns.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

use super::{
    exit::Failure,
    host, runtime,
    security::SecurityFlags,
    signals,
    train::{exit_code, print_summary},
    worker_spec::SpecFlags,
};
use crate::{
    Registry,
    hub::HubConfig,
    runs::{RunConfig, RunEnd, RunRequest, RunTask},
};

#[derive(Args)]
pub(super) struct DemoArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = host::USUAL_ADDRESS)]
    listen: SocketAddr,
    /// Directory of the dashboard's files
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
    #[command(flatten)]
    security: SecurityFlags,
    /// End when the environment is solved, instead of serving the dashboard until Ctrl-C
    #[arg(long)]
    exit_when_solved: bool,
    /// Learn as fast as the machine can, which is too fast to watch
    #[arg(long)]
    full_speed: bool,
}

/// Minimum time between two updates: it takes about 60 of them until the pole stays up.
const THROTTLE: Duration = Duration::from_millis(400);

/// Mean return at which CartPole-v1 counts as solved.
const STOP_RETURN: f64 = 475.0;

pub(super) fn run(args: &DemoArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let throttle = if args.full_speed { Duration::ZERO } else { THROTTLE };
    let run = RunConfig::new("CartPole-v1").seed(1).stop_at_return(STOP_RETURN);
    let request = RunRequest { throttle, ..run.into() };
    let security = args.security.config(None)?;
    let (assets, runs_dir) = (args.assets.clone(), Some(args.security.runs_dir()?));
    let config = HubConfig { assets, runs_dir, ..host::config(args.listen, true, security)? };
    runtime(2)?.block_on(async {
        let mut endings = signals::Endings::listen();
        let mut hub = host::start(config, &SpecFlags::default(), registry).await?;
        eprintln!("Two workers learn to balance a pole (CartPole-v1, PPO). Watch them, and join as a worker:\n");
        if !args.full_speed {
            eprintln!("Slowed down to about half a minute, for you to watch; --full-speed takes a second or two.\n");
        }
        host::print_invitations(&hub, &args.security, true);
        eprintln!();
        let stop_return = Some(STOP_RETURN);
        let summary = host::train(&mut hub, RunTask::Begin(Box::new(request)), false, &mut endings).await?;
        print_summary(&summary, stop_return);
        let goes_on = matches!(summary.end, RunEnd::Solved | RunEnd::Finished);
        if goes_on && !args.exit_when_solved {
            eprintln!("\nThe dashboard stays at {} until Ctrl-C.", host::dashboard(&hub, &args.security));
            host::serve(&mut hub, &mut endings).await;
        }
        hub.shutdown().await;
        exit_code(&summary, stop_return)
    })
}

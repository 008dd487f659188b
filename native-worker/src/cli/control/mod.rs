//! `rollmesh status`, `workers`, `scale`, `pause`, `resume`, `drain`, `checkpoint` and `stop`: controlling a hub from the
//! shell.

mod run;
mod runs;
mod status;
mod tokens;
mod workers;

use std::{future::Future, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use rollmesh_core::protocol::{Role, WorkerState};

use super::{exit::Failure, runtime, security::TrustFlags};
use crate::control::{Control, ControlConfig, ControlError, token_from_env, token_from_file};

pub(super) use run::{
    CHECKPOINT_HELP, DrainArgs, PAUSE_HELP, RESUME_HELP, ScaleArgs, StopArgs, checkpoint, pause, resume,
};
pub(super) use runs::{RunsArgs, StartArgs};
pub(super) use status::StatusArgs;
pub(super) use tokens::{TokensArgs, tokens};
pub(super) use workers::WorkersArgs;

/// A hub and the token for it.
#[derive(Args)]
pub(super) struct HubTarget {
    /// Address of the hub, as it prints it
    ///
    /// ws://HOST:PORT or wss://HOST:PORT; http and https are the same
    #[arg(long, global = true, value_name = "URL", default_value = "ws://127.0.0.1:7878")]
    hub: String,
    /// File with the token [default: in ROLLMESH_TOKEN]
    ///
    /// Without it the token is that of the environment variable ROLLMESH_TOKEN
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustFlags,
    /// Seconds to wait for the hub's answer and for the command's effect
    #[arg(long, global = true, hide_short_help = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl HubTarget {
    fn config(&self, role: Role) -> Result<ControlConfig, ControlError> {
        // Parsed here and not by clap, whose error message would print a token in the text.
        let hub = self.hub.parse()?;
        let token = self.token_file.as_deref().map_or_else(token_from_env, token_from_file)?;
        let (trust, patience) = (self.trust.trust(), Duration::from_secs(self.timeout));
        Ok(ControlConfig { hub, token, role, trust, patience })
    }

    /// Connects as an operator, to send commands.
    async fn operator(&self) -> Result<Control, ControlError> {
        Control::connect(&self.config(Role::Operator)?).await
    }

    /// Connects as a viewer, to watch; an operator's token is accepted as well.
    async fn viewer(&self) -> Result<Control, ControlError> {
        Control::connect(&self.config(Role::Viewer)?).await
    }
}

/// Runs a command at the hub, on an event loop of its own.
fn run_command(
    connect: impl Future<Output = Result<Control, ControlError>>,
    work: impl AsyncFnOnce(&mut Control) -> Result<(), ControlError>,
) -> Result<ExitCode, Failure> {
    let all = async {
        let mut hub = connect.await?;
        let done = work(&mut hub).await;
        hub.leave().await;
        done
    };
    match runtime(1)?.block_on(all) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is_usage() => Err(Failure::usage(error)),
        Err(error) => Err(Failure::other(error)),
    }
}

fn state_name(state: u8) -> &'static str {
    WorkerState::try_from(state).map_or("unknown", WorkerState::name)
}

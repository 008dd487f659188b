//! Commands to a hub that wait for their effect.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::protocol::Message;

use super::{HubTarget, run_command};
use crate::{
    cli::exit::Failure,
    control::{Control, ControlError},
    hub::NO_MORE_ATTEMPTS,
    runs::MAX_LOCAL_WORKERS,
    terminal::printable,
};

#[derive(Args)]
#[command(after_help = "Returns when the workers are there, or have finished their leases and exited.\n\n\
                        Example:\n  ROLLMESH_TOKEN=… rollmesh scale 4 --hub ws://127.0.0.1:7878")]
pub(in crate::cli) struct ScaleArgs {
    /// Local workers that the hub should have; those that joined from elsewhere do not count
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_LOCAL_WORKERS)))]
    num_workers: u32,
    /// Return as soon as the hub has accepted the number
    ///
    /// A launcher's workers may wait in a queue
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    target: HubTarget,
}

pub(in crate::cli) const PAUSE_HELP: &str = "Leases that are out continue; no more are granted.\n\n\
                                             Example:\n  ROLLMESH_TOKEN=… rollmesh pause --hub ws://127.0.0.1:7878";
pub(in crate::cli) const RESUME_HELP: &str = "Example:\n  ROLLMESH_TOKEN=… rollmesh resume --hub ws://127.0.0.1:7878";
pub(in crate::cli) const CHECKPOINT_HELP: &str = "Returns when the checkpoint is on the disk.\n\n\
     Example:\n  ROLLMESH_TOKEN=… rollmesh checkpoint --hub ws://127.0.0.1:7878";

#[derive(Args)]
#[command(after_help = "No more leases are granted; those that are out have ten seconds to end, and their rows \
                        are kept. Returns when the run is over, or the worker has exited.\n\n\
                        Examples:\n  ROLLMESH_TOKEN=… rollmesh drain --hub ws://127.0.0.1:7878\n  \
                        ROLLMESH_TOKEN=… rollmesh drain --worker 3 --hub ws://127.0.0.1:7878")]
pub(in crate::cli) struct DrainArgs {
    /// Let this worker finish its lease and exit, instead of the run; a local one is not replaced
    #[arg(long, value_name = "ID")]
    worker: Option<u32>,
    #[command(flatten)]
    target: HubTarget,
}

#[derive(Args)]
#[command(after_help = "Ends the run immediately: the rows of its leases are discarded. `rollmesh drain` waits \
                        for them.\n\n\
                        Example:\n  ROLLMESH_TOKEN=… rollmesh stop --hub ws://127.0.0.1:7878")]
pub(in crate::cli) struct StopArgs {
    /// Remove this run, which waits, instead of ending the one in progress
    #[arg(long, value_name = "NUMBER")]
    queued: Option<u32>,
    #[command(flatten)]
    target: HubTarget,
}

impl ScaleArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let wanted = self.num_workers as usize;
        run_command(self.target.operator(), async |hub| {
            hub.scale(self.num_workers).await?;
            if self.no_wait {
                return Ok(());
            }
            // Workers that are about to leave are still listed.
            let are_there = |hub: &Control| hub.workers().values().filter(|row| row.local).count() == wanted;
            let gave_up = |message: &Message| match message {
                Message::Notice(notice) if notice.text.starts_with(NO_MORE_ATTEMPTS) => {
                    Some(ControlError::Declined(printable(&notice.text)))
                }
                _ => None,
            };
            hub.until_or(&format!("{wanted} local workers"), are_there, gave_up).await?;
            println!("local workers: {wanted}");
            Ok(())
        })
    }
}

pub(in crate::cli) fn pause(target: &HubTarget) -> Result<ExitCode, Failure> {
    run_command(target.operator(), async |hub| {
        hub.pause().await?;
        say_phase(hub, "paused").await
    })
}

pub(in crate::cli) fn resume(target: &HubTarget) -> Result<ExitCode, Failure> {
    run_command(target.operator(), async |hub| {
        hub.resume().await?;
        say_phase(hub, "running").await
    })
}

pub(in crate::cli) fn checkpoint(target: &HubTarget) -> Result<ExitCode, Failure> {
    run_command(target.operator(), async |hub| {
        hub.checkpoint().await?;
        let status = hub.status();
        println!("run {}: checkpoint written in iteration {}", status.run, status.iteration);
        Ok(())
    })
}

impl StopArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        run_command(self.target.operator(), async |hub| {
            if let Some(run) = self.queued {
                hub.remove_run(run).await?;
                println!("run {run}: removed");
                return Ok(());
            }
            match hub.stop().await? {
                0 => say_end(hub).await,
                run => {
                    println!("run {run}: removed before it began");
                    Ok(())
                }
            }
        })
    }
}

impl DrainArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        run_command(self.target.operator(), async |hub| {
            let Some(worker) = self.worker else {
                hub.drain().await?;
                return say_end(hub).await;
            };
            hub.remove_worker(worker).await?;
            hub.until("the worker's end", |hub| !hub.workers().contains_key(&worker)).await?;
            println!("worker {worker}: removed");
            Ok(())
        })
    }
}

async fn say_phase(hub: &mut Control, wanted: &str) -> Result<(), ControlError> {
    hub.until(&format!("a run that is {wanted}"), |hub| hub.phase().name() == wanted || !hub.phase().is_active())
        .await?;
    println!("run {}: {}", hub.status().run, hub.phase().name());
    Ok(())
}

async fn say_end(hub: &mut Control) -> Result<(), ControlError> {
    hub.until("the end of the run", |hub| !hub.phase().is_active()).await?;
    let (status, phase) = (hub.status(), hub.phase().name());
    println!("run {}: {phase} after {} env steps in {} iterations", status.run, status.env_steps, status.iteration);
    Ok(())
}

//! Common parts of the commands that run a hub.

use std::net::SocketAddr;

use rollmesh_core::protocol::message::RunStatus;
use tokio::sync::oneshot;

use super::{
    exit::Failure,
    meter::{Measured, RunMeter},
    security::SecurityFlags,
    signals::{EndRequest, Endings, FINISHING},
    train::made,
    worker_spec::SpecFlags,
};
use crate::{
    Registry,
    cli::progress::Progress,
    hub::{Hub, HubConfig, HubNotice, SecurityConfig, StartRunError},
    net::TOKEN_VARIABLE,
    runs::{RunTask, RunWork, Summary},
};

/// The default address of hubs.
pub(super) const USUAL_ADDRESS: &str = "127.0.0.1:7878";

/// Returns the configuration of a hub, with a page or without, whose local workers run this program.
pub(super) fn config(listen: SocketAddr, dashboard: bool, security: SecurityConfig) -> Result<HubConfig, Failure> {
    Ok(HubConfig { listen, dashboard, security, ..HubConfig::local().map_err(Failure::other)? })
}

/// Starts a hub, with local workers according to the flags.
pub(super) async fn start(config: HubConfig, workers: &SpecFlags, registry: &Registry) -> Result<Hub, Failure> {
    raise_file_limit();
    let launcher = workers.launcher(&config.worker_program);
    Hub::start_with(config, registry, launcher, workers.spec()).await.map_err(Failure::usage)
}

/// Prints the page's address, and the command with which workers join, if the run accepts workers.
pub(super) fn print_invitations(hub: &Hub, security: &SecurityFlags, may_join: bool) {
    eprintln!("dashboard  {}", dashboard(hub, security));
    if security.hides_tokens() {
        eprintln!("           no tokens are printed, since this output may be kept in a log: use those of --tokens");
    } else {
        let (token, way) = (hub.operator_token().to_hex(), way(hub));
        eprintln!("control    {TOKEN_VARIABLE}={token} rollmesh status {way}");
    }
    if may_join {
        print_worker_command(hub, security);
    }
}

/// Returns the page's address, with an operator's token unless that is hidden.
pub(super) fn dashboard(hub: &Hub, security: &SecurityFlags) -> String {
    if security.hides_tokens() { format!("{}/", hub.page_url()) } else { hub.dashboard_url() }
}

/// Prints the command with which workers join.
pub(super) fn print_worker_command(hub: &Hub, security: &SecurityFlags) {
    let token = match security.hides_tokens() {
        true => String::new(),
        false => format!("{TOKEN_VARIABLE}={} ", hub.worker_token().to_hex()),
    };
    eprintln!("worker     {token}rollmesh worker {}", way(hub));
    if hub.fingerprint().is_some() {
        eprintln!(
            "           without --tls-fingerprint, if an authority that the worker knows has signed the certificate"
        );
    }
}

/// Returns the arguments with which commands reach the hub.
fn way(hub: &Hub) -> String {
    let fingerprint = hub.fingerprint().map_or_else(String::new, |sha256| format!(" --tls-fingerprint {sha256}"));
    format!("--hub {}{fingerprint}", hub.worker_url())
}

/// Raises the limit of open files to the system's maximum: every peer needs one.
fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If that is refused, the limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Prints notices until a signal ends the hub; SIGTERM drains the run first.
pub(super) async fn serve(hub: &mut Hub, endings: &mut Endings) {
    let mut drained = None;
    loop {
        tokio::select! {
            ending = endings.first(), if drained.is_none() => match ending {
                EndRequest::Terminate => drained = Some(hub.begin_drain().await),
                EndRequest::Interrupt => return,
            },
            () = over(&mut drained) => return,
            Some(notice) = hub.next_notice() => eprintln!("{}", notice.text),
        }
    }
}

/// Returns when the run has drained; never if no drain was requested.
async fn over(drained: &mut Option<oneshot::Receiver<()>>) {
    match drained {
        // A hub that has stopped has no run.
        Some(drained) => _ = drained.await,
        None => std::future::pending().await,
    }
}

/// Executes a run to its end, and shows its progress. Ctrl-C ends it early; SIGTERM drains it if a learner needs the
/// fragments in progress.
pub(super) async fn run(
    hub: &mut Hub,
    task: RunTask,
    work: RunWork,
    progress: &Progress,
    quiet: bool,
    endings: &mut Endings,
) -> Result<(Summary, Measured), Failure> {
    let (target, is_sampling) = (task.request().config.stop.episode_return_mean, matches!(work, RunWork::Take(_)));
    let mut meter = RunMeter::new(task.env_steps());
    let env = task.request().config.env().to_owned();
    let mut summary = made(&env, hub.start_run(task, work, false), endings).await?.map_err(not_begun)?;
    let mut status = hub.status();
    let mut is_ending = false;
    let show = |notice: HubNotice| match quiet {
        false => progress.println(&notice.text),
        true if notice.level > 0 => eprintln!("{}", notice.text),
        true => {}
    };
    let summary = loop {
        tokio::select! {
            summary = &mut summary => break summary.map_err(|_| Failure::other("the hub stopped in the middle of the run"))?,
            Ok(now) = status.changed() => {
                progress.say(now.env_steps, &describe(&now, target));
                meter.at(now.env_steps, hub).await;
            }
            Some(notice) = hub.next_notice() => show(notice),
            ending = endings.first(), if !is_ending => {
                is_ending = true;
                match ending {
                    // The summary shows when it is over.
                    EndRequest::Terminate if !is_sampling => drop(hub.begin_drain().await),
                    EndRequest::Terminate => hub.stop_run().await,
                    EndRequest::Interrupt => {
                        // An update may take minutes.
                        progress.println(FINISHING);
                        hub.stop_run().await;
                    }
                }
            }
        }
    };
    // Errors at the end were sent before the summary.
    std::iter::from_fn(|| hub.take_notice()).for_each(show);
    // The status after the last iterations may have been published together with the summary.
    meter.at(summary.env_steps, hub).await;
    progress.at(summary.env_steps);
    progress.finish();
    let measured = meter.finish(hub).await;
    Ok((summary, measured))
}

/// Works like [`run`], with a learner.
pub(super) async fn train(
    hub: &mut Hub,
    task: RunTask,
    quiet: bool,
    endings: &mut Endings,
) -> Result<Summary, Failure> {
    let progress = Progress::new(task.request().config.stop.env_steps, "env steps", !quiet);
    run(hub, task, RunWork::Learn, &progress, quiet, endings).await.map(|(summary, _)| summary)
}

/// Converts the error of a run that could not start.
fn not_begun(error: StartRunError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::other(error) }
}

fn describe(status: &RunStatus, target: Option<f64>) -> String {
    let target = target.map_or_else(String::new, |target| format!(" of {target}"));
    let mean = status.episode_return_mean;
    let mean = if mean.is_nan() { "-".to_owned() } else { format!("{mean:.1}") };
    format!("· return {mean}{target} · {:.0} steps/s · iteration {}", status.steps_per_s, status.iteration)
}

//! The command line. Each command has a module; this one dispatches to it and converts its result to an exit code.

mod choices;
mod control;
mod cpu_time;
mod data;
mod demo;
#[cfg(test)]
mod documented;
mod envs;
mod evaluate;
mod evaluation;
#[cfg(unix)]
mod evaluator;
mod exit;
mod external;
mod host;
mod hub;
mod input;
mod launch;
mod log;
mod meter;
mod mode;
mod ope;
mod pipe;
mod policies;
mod processes;
mod progress;
mod python;
mod ranks;
#[cfg(test)]
mod reference;
mod relay;
mod report;
mod rllink;
mod sample;
mod schema;
mod security;
mod settings;
mod signals;
mod table;
mod train;
mod usage;
mod weights;
mod worker;
mod worker_spec;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{Registry, children, native};
use exit::Failure;

#[derive(Parser)]
#[command(
    name = "rollmesh",
    version,
    about = "Collects reinforcement-learning experience on machines and browser tabs",
    long_about = None,
    propagate_version = true,
    after_help = "Begin with `rollmesh demo`.\n`rollmesh COMMAND --help` has the usual options, `--help-all` all."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Watch two workers learn, and join them from a browser tab
    Demo(demo::DemoArgs),
    /// Train a policy with local workers; others may join
    Train(Box<train::TrainArgs>),
    /// Wait for runs, started by `rollmesh start` or on the dashboard
    Hub(hub::HubArgs),
    /// Work for a hub
    Worker(worker::WorkerArgs),
    /// Start and end workers for a hub on other machines or in a cluster
    Launch(launch::LaunchArgs),
    /// Pass a hub's weights on to many workers
    Relay(relay::RelayArgs),
    /// Start a run on a hub; it waits while another one is in progress
    Start(control::StartArgs),
    /// List the runs of a hub, or those in a directory
    Runs(control::RunsArgs),
    /// Write an HTML file about runs: curves, settings, seeds
    Report(report::ReportArgs),
    /// Show a hub's run, how fast it is, and its ledger
    Status(control::StatusArgs),
    /// List the workers of a hub
    Workers(control::WorkersArgs),
    /// Set the number of local workers
    Scale(control::ScaleArgs),
    /// Pause a hub's run
    #[command(after_help = control::PAUSE_HELP)]
    Pause(control::HubTarget),
    /// Resume a hub's run
    #[command(after_help = control::RESUME_HELP)]
    Resume(control::HubTarget),
    /// End a run, or remove a worker, once its leases are finished
    Drain(control::DrainArgs),
    /// Write a checkpoint of a hub's run now
    #[command(after_help = control::CHECKPOINT_HELP)]
    Checkpoint(control::HubTarget),
    /// End a hub's run immediately
    Stop(control::StopArgs),
    /// Manage a hub's tokens: list, create, revoke and rotate
    Tokens(control::TokensArgs),
    /// Sample rollouts, and report their throughput and hash
    Sample(Box<sample::SampleArgs>),
    /// Play episodes with the policy of a checkpoint
    Evaluate(evaluate::EvaluateArgs),
    /// Host, ask and list evaluation workers with names
    #[cfg(unix)]
    Evaluator(evaluator::EvaluatorArgs),
    /// Set a run's weights from a file, or export them
    Weights(weights::WeightsArgs),
    /// Inspect, validate and convert logged experience
    Data(data::DataArgs),
    /// Estimate a policy's value from logged episodes
    Ope(ope::OpeArgs),
    /// List the environments that this program knows
    Envs(envs::EnvsArgs),
    /// List the kinds of policies that this program knows
    Policies(policies::PoliciesArgs),
    /// Print the JSON Schema of a run's settings
    Schema,
}

/// Runs the command line of a program with this registry.
///
/// Exit codes: 0 the command reached its goal, 2 wrong usage or configuration, 3 a run ended without reaching its stop
/// return, 1 anything else. A program whose output is read no longer (`rollmesh schema | head`) ends silently with 141.
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    main_with_args(registry, std::env::args_os())
}

/// Works like [`main_with`], with these arguments, of which the first one is the program's name.
#[must_use]
pub fn main_with_args<T: Into<OsString> + Clone>(registry: Registry, args: impl IntoIterator<Item = T>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let registry = match children::serve(args.get(1), registry) {
        Ok(code) => return code,
        Err(registry) => native(registry),
    };
    pipe::end_when_closed();
    let cli = match usage::parse(args) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let result = match cli.command {
        CliCommand::Demo(args) => demo::run(&args, &registry),
        CliCommand::Train(args) => train::run(&args, &registry),
        CliCommand::Hub(args) => hub::run(&args, &registry),
        CliCommand::Worker(args) => worker::run(&args, &registry),
        CliCommand::Launch(args) => launch::run(&args),
        CliCommand::Relay(args) => relay::run(&args),
        CliCommand::Start(args) => args.run(),
        CliCommand::Runs(args) => args.run(),
        CliCommand::Report(args) => args.run(),
        CliCommand::Status(args) => args.run(),
        CliCommand::Workers(args) => args.run(),
        CliCommand::Scale(args) => args.run(),
        CliCommand::Pause(target) => control::pause(&target),
        CliCommand::Resume(target) => control::resume(&target),
        CliCommand::Drain(args) => args.run(),
        CliCommand::Checkpoint(target) => control::checkpoint(&target),
        CliCommand::Stop(args) => args.run(),
        CliCommand::Tokens(args) => control::tokens(&args),
        CliCommand::Sample(args) => sample::run(&args, &registry),
        CliCommand::Evaluate(args) => evaluate::run(&args, &registry),
        #[cfg(unix)]
        CliCommand::Evaluator(args) => evaluator::run(&args, &registry),
        CliCommand::Weights(args) => weights::run(&args, &registry),
        CliCommand::Data(args) => data::run(&args, &registry),
        CliCommand::Ope(args) => ope::run(&args, &registry),
        CliCommand::Envs(args) => envs::run(&args, &registry),
        CliCommand::Policies(args) => policies::run(&args, &registry),
        CliCommand::Schema => schema::run(&registry),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Builds the event loop of a command, with this number of threads including the calling one: with a single thread, data
/// from a socket need not be passed between threads.
fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match threads {
        ..2 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().map_err(|error| Failure::other(format!("the event loop cannot start: {error}")))
}

/// Disables huge pages, for processes that use little memory but fresh memory again and again: huge pages would occupy twice
/// as much, and clear far more than is used. Errors are ignored.
fn spare_memory() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

//! The command line. Each command is a file; this one finds it and turns its result into an exit code.

mod envs;
mod exit;
mod sample;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::Registry;

#[derive(Parser)]
#[command(name = "rollmesh", version, about, long_about = None, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Step environments with a policy in this process, and say how fast and with which hash
    Sample(sample::SampleArgs),
    /// List the environments that this program knows
    Envs(envs::EnvsArgs),
}

/// Runs the command line of a program that knows `registry`.
///
/// Exit codes: 0 the command reached its goal, 2 wrong usage or configuration, 3 a run ended without reaching its
/// stop return, 1 anything else.
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    let result = match Cli::parse().command {
        Command::Sample(args) => sample::run(&args, &registry),
        Command::Envs(args) => envs::run(&args, &registry),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

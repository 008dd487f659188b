//! `rollmesh data`: inspects, validates and converts logged experience.

#[cfg(feature = "offline-parquet")]
mod actions;
#[cfg(feature = "offline-parquet")]
mod convert;
mod env_spaces;
mod head;
mod inspect;
#[cfg(feature = "offline-parquet")]
mod losses;
pub(in crate::cli) mod numbers;
#[cfg(feature = "offline-parquet")]
mod renumber;
#[cfg(feature = "offline-parquet")]
mod sink;
#[cfg(feature = "offline-parquet")]
mod spaces;
mod validate;

use std::{cell::Cell, process::ExitCode};

use clap::{Args, Subcommand};
use rollmesh_core::batch::AnyBatch;
use rollmesh_data::dataset::BatchStream as _;

use super::{exit::Failure, worker_spec::memory};
use crate::{
    Registry,
    cli::progress::Progress,
    offline::{
        self,
        logged::{Logged, LoggedPlace},
    },
};

#[derive(Args)]
pub(super) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Show columns, episodes and a histogram of their returns
    Inspect(inspect::InspectArgs),
    /// Show the first rows
    Head(head::HeadArgs),
    #[cfg(feature = "offline-parquet")]
    /// Write files in another format, and say what that loses
    #[command(
        after_help = "Memory is bounded by --buffer-size; in addition, json gathers some MiB of rows, and minari takes an episode as a \
                        whole, so that those that have not ended yet are held.\n\n\
                        Examples:\n  rollmesh data convert samples --to parquet --output tables\n  \
                        rollmesh data convert hopper-medium.hdf5 --to json --output samples\n  \
                        rollmesh data convert samples --to minari --env CartPole-v1 --output ~/.minari/datasets/cartpole/mine-v0"
    )]
    Convert(convert::ConvertArgs),
    #[cfg(feature = "offline-parquet")]
    /// Divide episodes among several data sets
    #[command(
        after_help = "Episodes are dealt out in turn, so that every part has its share of the early and of the late ones; those \
                        of several agents stay whole batches. The parts are the folders part-0, part-1, … of the output.\n\n\
                        Example:\n  rollmesh data split samples --fractions 0.9,0.1 --output parts"
    )]
    Split(convert::SplitArgs),
    #[cfg(feature = "offline-parquet")]
    /// Join files of any formats, and number their episodes anew
    #[command(after_help = "Examples:\n  rollmesh data merge monday tuesday --output both\n  \
                        rollmesh data merge samples tables/*.parquet --to parquet --output all")]
    Merge(convert::ConvertArgs),
    /// Find rows that are unfit for learning; exit code 1 if there are any
    Validate(validate::ValidateArgs),
}

pub(super) fn run(args: &DataArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    match &args.command {
        DataCommand::Inspect(args) => inspect::run(args),
        DataCommand::Head(args) => head::run(args),
        #[cfg(feature = "offline-parquet")]
        DataCommand::Convert(args) => convert::convert(args, registry),
        #[cfg(feature = "offline-parquet")]
        DataCommand::Split(args) => convert::split(args, registry),
        #[cfg(feature = "offline-parquet")]
        DataCommand::Merge(args) => convert::merge(args, registry),
        DataCommand::Validate(args) => validate::run(args, registry),
    }
}

/// The input of a command.
#[derive(Args, Clone, Debug)]
struct InputArgs {
    /// Files, folders, patterns, or ids of data sets
    ///
    /// RLlib's JSON (also zipped), D4RL's HDF5, Minari's data sets, Parquet
    #[arg(value_name = "FILE", required = true)]
    inputs: Vec<String>,
    /// Bytes that reading holds at most
    ///
    /// [default: 1 GiB for JSON, of which a sixteenth may be one line; else 64 MiB]
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    buffer_size: Option<usize>,
    /// Memory limit of the process that reads HDF5 or Parquet, like 8GiB
    ///
    /// [default: 4GiB, or four times the buffer]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = memory)]
    memory_limit: Option<u64>,
    /// Print JSON, and no progress: one object; of `head` one per row
    #[arg(long)]
    json: bool,
}

impl InputArgs {
    fn open(&self) -> Result<Logged, Failure> {
        let logged = offline::open_logged(&self.inputs, self.buffer_size).map_err(Failure::usage)?;
        Ok(logged.with_memory_limit(self.memory_limit))
    }

    fn progress(&self, logged: &Logged) -> Reading {
        let (_, total) = logged.progress();
        Reading { progress: Progress::new(total >> 10, "KiB", !self.json), env_steps: Cell::new(0) }
    }
}

/// A progress bar for the bytes read.
struct Reading {
    progress: Progress,
    env_steps: Cell<u64>,
}

impl Reading {
    fn count(&self, logged: &Logged, batch: &AnyBatch) {
        self.env_steps.set(self.env_steps.get() + batch.env_steps() as u64);
        self.progress.say(logged.progress().0 >> 10, &format!("· {} env steps", self.env_steps.get()));
    }

    /// Calls `take` with every batch. An error in a file ends it.
    fn each(
        &self,
        logged: &mut Logged,
        mut take: impl FnMut(AnyBatch, LoggedPlace) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
            self.count(logged, &batch);
            let Some(place) = logged.place() else { continue };
            take(batch, place)?;
        }
        Ok(())
    }
}

/// Formats bytes like `1.5 MiB`.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

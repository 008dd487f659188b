//! The flags for the sampling mode, which determines the fragments of a batch.

use clap::Args;
use rollmesh_core::{group::SamplingMode, time::Micros};

use super::exit::Failure;

#[derive(Args, Clone, Debug)]
pub(super) struct ModeFlags {
    /// Which fragments make a batch [default: sync]
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<Mode>,
    /// Versions by which weights may be behind the newest
    ///
    /// Of the rows of a batch; always 0 with --mode sync
    #[arg(long, hide_short_help = true, value_name = "VERSIONS", default_value_t = 1)]
    max_staleness: u64,
    /// Env steps of a batch with --mode async
    ///
    /// Rounded up to whole fragments [default: a fragment of every environment]
    #[arg(long, hide_short_help = true, value_name = "N")]
    batch_env_steps: Option<u64>,
    /// Milliseconds of an iteration with --mode deadline
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = 1_000)]
    deadline_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// One of every environment, with the newest weights: the same rows for any workers
    Sync,
    /// Those that come first; no batch waits for the slowest
    Async,
    /// Those that are there when time is up; the others come later
    Deadline,
}

impl ModeFlags {
    /// Returns the mode; `None` if no flag names it.
    pub(super) fn mode(&self) -> Result<Option<SamplingMode>, Failure> {
        let max_staleness = self.max_staleness;
        if self.batch_env_steps.is_some() && self.mode != Some(Mode::Async) {
            return Err(Failure::usage(
                "--batch-env-steps is for --mode async: other modes have batches as large as they get",
            ));
        }
        Ok(self.mode.map(|mode| match mode {
            Mode::Sync => SamplingMode::Synchronous,
            Mode::Async => {
                SamplingMode::Asynchronous { batch_env_steps: self.batch_env_steps.unwrap_or(0), max_staleness }
            }
            Mode::Deadline => SamplingMode::Deadline { after: Micros::from_millis(self.deadline_ms), max_staleness },
        }))
    }
}

//! Logging a worker's samples: on standard error, and in a file if there is a directory for logs.

use std::{
    fmt,
    fs::{self, File},
    io::Write as _,
    path::Path,
};

use rollmesh_core::{
    batch::{AnyBatch, SlotFragment},
    episode::RolloutMetrics,
    worker::{RolloutConfig, WorkerWarning, config::LogLevel},
};

use super::progress::{Printer, Progress};

/// A log's targets and level.
pub(super) struct LogTargets {
    level: LogLevel,
    file: Option<File>,
    printer: Option<Printer>,
}

impl LogTargets {
    /// Opens the log of these settings. The file `worker-0.log` is appended to.
    pub(super) fn new(config: &RolloutConfig) -> Result<Self, String> {
        let open = |directory: &String| {
            let path = Path::new(directory).join("worker-0.log");
            let opened =
                fs::create_dir_all(directory).and_then(|()| File::options().create(true).append(true).open(&path));
            opened.map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        Ok(Self { level: config.log_level, file: config.log_dir.as_ref().map(open).transpose()?, printer: None })
    }

    /// Prints its lines above this progress bar.
    pub(super) fn above(mut self, progress: &Progress) -> Self {
        self.printer = Some(progress.printer());
        self
    }

    /// Logs episodes: lost ones from `WARN` on, finished ones from `INFO` on.
    pub(super) fn episodes(&mut self, episodes: &[RolloutMetrics]) {
        for episode in episodes {
            let (id, env) = (episode.episode_id, episode.env);
            match &episode.faulty {
                Some(fault) => {
                    self.line(LogLevel::Warn, format_args!("episode {id} of environment {env} was lost: {fault}"))
                }
                None => self.episode(id, env, episode.length, episode.episode_return),
            }
        }
    }

    /// Logs a sample at `DEBUG`.
    pub(super) fn batch(&mut self, batch: &AnyBatch) {
        let (env_steps, agent_steps) = (batch.env_steps(), batch.agent_steps());
        self.line(LogLevel::Debug, format_args!("a sample of {env_steps} env steps and {agent_steps} agent steps"));
    }

    /// Logs a failure that is retried, from `WARN` on.
    pub(super) fn failure(&mut self, failure: &impl fmt::Display) {
        self.line(LogLevel::Warn, format_args!("a fragment failed: {failure}"));
    }

    /// Logs possible mistakes from `WARN` on.
    pub(super) fn warnings(&mut self, warnings: &[WorkerWarning]) {
        warnings.iter().for_each(|warning| self.line(LogLevel::Warn, format_args!("{warning}")));
    }

    /// Logs a fragment: finished episodes from `INFO` on, its rows at `DEBUG`.
    pub(super) fn fragment(&mut self, fragment: &SlotFragment) {
        if self.level < LogLevel::Info {
            return;
        }
        let (slot, steps) = (fragment.slot, fragment.env_steps());
        for episode in &fragment.episodes {
            let id = i64::from(slot.0) << 32 | i64::from(episode.episode);
            self.episode(id, slot.0 as usize, episode.len, episode.episode_return);
        }
        self.line(LogLevel::Debug, format_args!("a fragment of {steps} env steps of environment {}", slot.0));
    }

    fn episode(&mut self, id: i64, env: usize, length: u32, episode_return: f64) {
        self.line(
            LogLevel::Info,
            format_args!("episode {id} of environment {env}: {length} steps, return {episode_return}"),
        );
    }

    /// Writes a line if the level is logged. Only then is it formatted: there may be an episode every 20 env steps.
    fn line(&mut self, level: LogLevel, line: fmt::Arguments<'_>) {
        if level > self.level {
            return;
        }
        let level = match level {
            LogLevel::Error => "ERROR",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
        };
        match &self.printer {
            Some(printer) => printer.println(&format!("{level} {line}")),
            None => eprintln!("{level} {line}"),
        }
        // A full disk must not end a run; after the first failure the file is closed.
        if let Some(file) = &mut self.file
            && writeln!(file, "{level} {line}").is_err()
        {
            self.file = None;
        }
    }
}

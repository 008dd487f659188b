//! The files of a run.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::checkpoint::{PolicyCheckpoint, replace};

/// The directory of one run: `config.toml` at its start, a line of `metrics.jsonl` per iteration, and at its end
/// `summary.json` and the policy, `policy.json` with `weights.safetensors`. Where batches depend on who is how fast, also
/// `journal.jsonl`, from which they follow.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// None after a write failed: a gap in the lines would be worse than their end.
    metrics: Option<File>,
    /// None also if the run needs no journal.
    journal: Option<File>,
}

/// Why a run's files cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunDirError {
    /// Another run's files would be overwritten.
    #[error("{0} already holds a run; choose another directory with --run-dir")]
    Taken(PathBuf),
    /// The system says no.
    #[error("cannot write {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The configuration cannot be written as TOML.
    #[error("cannot write the configuration: {0}")]
    Config(#[from] toml::ser::Error),
}

impl RunDir {
    pub(crate) fn create(path: &Path, config: &impl Serialize, has_journal: bool) -> Result<Self, RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        fs::create_dir_all(path).map_err(failed(path.to_owned()))?;
        if at("config.toml").exists() {
            return Err(RunDirError::Taken(path.to_owned()));
        }
        fs::write(at("config.toml"), toml::to_string(config)?).map_err(failed(at("config.toml")))?;
        let lines = |name: &str| File::create_new(at(name)).map_err(failed(at(name)));
        let metrics = Some(lines("metrics.jsonl")?);
        let journal = has_journal.then(|| lines("journal.jsonl")).transpose()?;
        Ok(Self { path: path.to_owned(), metrics, journal })
    }

    pub(crate) fn add_metrics(&mut self, line: &impl Serialize) -> io::Result<()> {
        add_line(&mut self.metrics, line)
    }

    pub(crate) fn add_to_journal(&mut self, line: &impl Serialize) -> io::Result<()> {
        add_line(&mut self.journal, line)
    }

    /// What the run has come to; each file appears whole or not at all.
    pub(crate) fn write_end(&self, policy: &PolicyCheckpoint, summary: &impl Serialize) -> io::Result<()> {
        policy.save(&self.path).map_err(io::Error::other)?;
        replace(&self.path.join("summary.json"), &serde_json::to_vec_pretty(summary)?)
    }
}

/// One write per line, so that a reader never sees half of one.
fn add_line(lines: &mut Option<File>, line: &impl Serialize) -> io::Result<()> {
    let Some(file) = lines else { return Ok(()) };
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    let written = file.write_all(&bytes);
    if written.is_err() {
        *lines = None;
    }
    written
}

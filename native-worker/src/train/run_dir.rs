//! The files of a run.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use rollmesh_core::worker::RolloutConfig;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    TrainConfig,
    saving::{ResumeError, lock},
};
use crate::checkpoint::{PolicyCheckpoint, replace};

const METRICS: &str = "metrics.jsonl";
const JOURNAL: &str = "journal.jsonl";
/// What the configuration of a run from files does not say.
pub(crate) const PLAN: &str = "plan.toml";

/// The directory of one run: `config.toml` at its start, a line of `metrics.jsonl` per iteration, and at its end
/// `summary.json` and the policy, `policy.json` with `weights.safetensors`. Where batches depend on who is how fast, also
/// `journal.jsonl`, from which they follow.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    metrics: Lines,
    /// None if the run needs no journal.
    journal: Option<Lines>,
    /// The configuration, as it is in the directory.
    config: String,
    /// Keeps other processes out.
    _lock: File,
}

/// What the directory of a run says of it.
pub(crate) struct RunSettings {
    config: String,
    plan: Option<String>,
    has_journal: bool,
}

impl RunSettings {
    pub(crate) fn of_hub(config: &TrainConfig) -> Result<Self, RunDirError> {
        let has_journal = !config.mode.is_synchronous();
        Ok(Self { config: toml::to_string(config)?, plan: None, has_journal })
    }

    pub(crate) fn of_files(config: &RolloutConfig, plan: &impl Serialize) -> Result<Self, RunDirError> {
        Ok(Self { config: toml::to_string(config)?, plan: Some(toml::to_string(plan)?), has_journal: false })
    }

    /// The plan first: whoever finds a configuration finds all that belongs to it.
    fn write(&self, dir: &Path) -> Result<(), RunDirError> {
        let texts = [self.plan.as_deref().map(|plan| (PLAN, plan)), Some(("config.toml", &*self.config))];
        texts.into_iter().flatten().try_for_each(|(name, text)| {
            let path = dir.join(name);
            replace(&path, text.as_bytes()).map_err(|source| RunDirError::Io { path, source })
        })
    }
}

/// Why a run's files cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunDirError {
    /// Another run's files would be overwritten.
    #[error("{0} already holds a run; choose another directory with --run-dir, or go on with that run: --resume {0}")]
    Taken(PathBuf),
    /// Another run's files would be overwritten, with which no run goes on.
    #[error("{0} already holds a run, which cannot be gone on with; choose another directory with --run-dir")]
    TakenForGood(PathBuf),
    /// The system says no.
    #[error("cannot write {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The configuration cannot be written as TOML.
    #[error("cannot write the configuration: {0}")]
    Config(#[from] toml::ser::Error),
    /// Another process has the directory.
    #[error(transparent)]
    Lock(#[from] ResumeError),
}

/// What was in `metrics.jsonl` behind the checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Env steps up to its last line; none without a whole one.
    pub(super) env_steps: Option<u64>,
    /// True if lines before the checkpoint are missing.
    pub(super) is_short: bool,
}

#[derive(Deserialize)]
struct Line {
    env_steps: u64,
}

impl RunDir {
    /// An error if there is a run already.
    pub(super) fn check_free(path: &Path) -> Result<(), RunDirError> {
        let Ok(config) = fs::read_to_string(path.join("config.toml")) else { return Ok(()) };
        let goes_on = toml::from_str::<TrainConfig>(&config).is_ok() || path.join(PLAN).is_file();
        Err(if goes_on { RunDirError::Taken } else { RunDirError::TakenForGood }(path.to_owned()))
    }

    pub(crate) fn create(path: &Path, settings: RunSettings) -> Result<Self, RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        fs::create_dir_all(path).map_err(failed(path.to_owned()))?;
        Self::check_free(path)?;
        let lock = lock(path)?;
        // First, so that whoever finds a configuration finds all that belongs to it.
        let new = |name: &str| {
            if fs::metadata(at(name)).is_ok_and(|file| file.len() > 0) {
                return Err(RunDirError::Taken(path.to_owned()));
            }
            Lines::open(&at(name), 0).map(|(lines, _)| lines).map_err(failed(at(name)))
        };
        let metrics = new(METRICS)?;
        let journal = settings.has_journal.then(|| new(JOURNAL)).transpose()?;
        settings.write(path)?;
        Ok(Self { path: path.into(), metrics, journal, config: settings.config, _lock: lock })
    }

    /// Goes on with so many bytes of `metrics.jsonl` and of the journal; what is behind them is cut off, and made again.
    pub(crate) fn reopen(
        path: &Path,
        settings: RunSettings,
        (metrics_bytes, journal_bytes): (u64, u64),
        lock: File,
    ) -> Result<(Self, Cut), RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        settings.write(path)?;
        // It was written at an end that is none any more.
        let _ = fs::remove_file(at("summary.json"));
        let reopen = |name: &str, bytes: u64| Lines::open(&at(name), bytes).map_err(failed(at(name)));
        let (metrics, cut) = reopen(METRICS, metrics_bytes)?;
        let journal = settings.has_journal.then(|| reopen(JOURNAL, journal_bytes)).transpose()?;
        let journal = journal.map(|(lines, _)| lines);
        Ok((Self { path: path.into(), metrics, journal, config: settings.config, _lock: lock }, cut))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration, as it is in the directory.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }

    /// A handle of `metrics.jsonl`, for whoever makes sure that it is on the disk.
    pub(crate) fn share_metrics(&self) -> io::Result<Option<File>> {
        self.metrics.file.as_ref().map(File::try_clone).transpose()
    }

    pub(crate) fn add_metrics(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.metrics.add(line)
    }

    pub(crate) fn add_to_journal(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.add(line))
    }

    /// The lines of `metrics.jsonl` that can be read.
    pub(super) fn metrics<T: DeserializeOwned>(&self) -> impl Iterator<Item = T> + use<T> {
        let file = File::open(self.path.join(METRICS)).ok();
        let lines = file.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
        lines.filter_map(|line| serde_json::from_str(&line).ok())
    }

    /// Of `metrics.jsonl` and of the journal.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.metrics.bytes, self.journal.as_ref().map_or(0, |journal| journal.bytes))
    }

    /// The policy so far; each file appears whole or not at all.
    pub(crate) fn write_policy(&self, policy: &PolicyCheckpoint) -> io::Result<()> {
        policy.save(&self.path).map_err(io::Error::other)
    }

    /// What the run has come to; each file appears whole or not at all.
    pub(crate) fn write_end(&self, policy: &PolicyCheckpoint, summary: &impl Serialize) -> io::Result<()> {
        self.write_policy(policy)?;
        replace(&self.path.join("summary.json"), &serde_json::to_vec_pretty(summary)?)
    }
}

/// A file of JSON lines.
#[derive(Debug)]
struct Lines {
    /// None after a write failed: a gap in the lines would be worse than their end.
    file: Option<File>,
    /// Of the lines that are whole.
    bytes: u64,
}

impl Lines {
    /// Opens the file, which need not exist, and leaves so many bytes of it.
    fn open(path: &Path, bytes: u64) -> io::Result<(Self, Cut)> {
        let mut file = File::options().create(true).read(true).append(true).open(path)?;
        let (cut, bytes) = cut_back(&mut file, bytes)?;
        Ok((Self { file: Some(file), bytes }, cut))
    }

    /// One write per line, so that a reader never sees half of one.
    fn add(&mut self, line: &impl Serialize) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let written = file.write_all(&bytes);
        match written {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(_) => self.file = None,
        }
        written
    }
}

/// Leaves whole lines, of so many bytes if there are as many. Returns what was behind them and how many are left.
fn cut_back(metrics: &mut File, wanted: u64) -> io::Result<(Cut, u64)> {
    let is_short = metrics.metadata()?.len() < wanted;
    let begin = if is_short { 0 } else { wanted };
    metrics.seek(SeekFrom::Start(begin))?;
    let mut behind = Vec::new();
    metrics.read_to_end(&mut behind)?;
    let whole = behind.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let left = if is_short { whole as u64 } else { wanted };
    metrics.set_len(left)?;
    let mut lines = behind[..whole].split(|&byte| byte == b'\n').rev();
    let env_steps = lines.find_map(|line| serde_json::from_slice::<Line>(line).ok()).map(|line| line.env_steps);
    Ok((Cut { env_steps: env_steps.filter(|_| !is_short), is_short }, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_cut_back_to_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let line = |env_steps: u64| format!("{{\"iteration\":1,\"env_steps\":{env_steps}}}\n");
        let kept = line(10).len() as u64;
        let all = [line(10), line(20), line(30), "{\"iter".into()].concat();
        let cut = |wanted: u64| {
            fs::write(&path, &all).unwrap();
            let mut file = File::options().read(true).append(true).open(&path).unwrap();
            let (cut, left) = cut_back(&mut file, wanted).unwrap();
            file.write_all(b"next").unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.len() as u64, left + 4);
            (cut, text)
        };
        let env_steps = Some(30);
        assert_eq!(cut(kept), (Cut { env_steps, is_short: false }, format!("{}next", line(10))));
        assert_eq!(cut(0), (Cut { env_steps, is_short: false }, "next".into()));
        let short = [line(10), line(20), line(30), "next".into()].concat();
        assert_eq!(cut(1_000), (Cut { env_steps: None, is_short: true }, short.clone()));
        assert_eq!(cut(3 * kept), (Cut { env_steps: None, is_short: false }, short));
    }
}

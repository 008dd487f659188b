//! The files of a run.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    TrainConfig,
    saving::{ResumeError, lock},
};
use crate::checkpoint::{PolicyCheckpoint, replace};

/// The directory of one run: `config.toml` at its start, a line of `metrics.jsonl` per iteration, and at its end `summary.json` and the policy, `policy.json` with `weights.safetensors`.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// None after a write failed: a gap in the lines would be worse than their end.
    metrics: Option<File>,
    /// Of the lines that are whole.
    metrics_bytes: u64,
    /// The configuration, as it is in the directory.
    config: String,
    /// Keeps other processes out.
    _lock: File,
}

/// Why a run's files cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunDirError {
    /// Another run's files would be overwritten.
    #[error("{0} already holds a run; choose another directory with --run-dir, or go on with that run: --resume {0}")]
    Taken(PathBuf),
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
pub(super) struct Cut {
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
    pub(crate) fn create(path: &Path, config: &impl Serialize) -> Result<Self, RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        fs::create_dir_all(path).map_err(failed(path.to_owned()))?;
        if at("config.toml").exists() {
            return Err(RunDirError::Taken(path.to_owned()));
        }
        let lock = lock(path)?;
        let text = toml::to_string(config)?;
        // First, so that whoever finds a configuration finds all that belongs to it.
        let options = File::options().create(true).append(true).clone();
        let metrics = options.open(at("metrics.jsonl")).map_err(failed(at("metrics.jsonl")))?;
        if metrics.metadata().map_err(failed(at("metrics.jsonl")))?.len() > 0 {
            return Err(RunDirError::Taken(path.to_owned()));
        }
        replace(&at("config.toml"), text.as_bytes()).map_err(failed(at("config.toml")))?;
        Ok(Self { path: path.into(), metrics: Some(metrics), metrics_bytes: 0, config: text, _lock: lock })
    }

    /// Goes on with so many bytes of `metrics.jsonl`; what is behind them is cut off, and made again.
    pub(super) fn reopen(
        path: &Path,
        config: &TrainConfig,
        metrics_bytes: u64,
        lock: File,
    ) -> Result<(Self, Cut), RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        let text = toml::to_string(config)?;
        replace(&at("config.toml"), text.as_bytes()).map_err(failed(at("config.toml")))?;
        // It was written at an end that is none any more.
        let _ = fs::remove_file(at("summary.json"));
        let options = File::options().create(true).read(true).append(true).clone();
        let mut metrics = options.open(at("metrics.jsonl")).map_err(failed(at("metrics.jsonl")))?;
        let (cut, metrics_bytes) = cut_back(&mut metrics, metrics_bytes).map_err(failed(at("metrics.jsonl")))?;
        let dir = Self { path: path.into(), metrics: Some(metrics), metrics_bytes, config: text, _lock: lock };
        Ok((dir, cut))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration, as it is in the directory.
    pub(super) fn config(&self) -> &str {
        &self.config
    }

    /// A handle of `metrics.jsonl`, for whoever makes sure that it is on the disk.
    pub(super) fn share_metrics(&self) -> io::Result<Option<File>> {
        self.metrics.as_ref().map(File::try_clone).transpose()
    }

    /// One write per line, so that a reader never sees half of one.
    pub(crate) fn add_metrics(&mut self, line: &impl Serialize) -> io::Result<()> {
        let Some(file) = &mut self.metrics else { return Ok(()) };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let written = file.write_all(&bytes);
        match written {
            Ok(()) => self.metrics_bytes += bytes.len() as u64,
            Err(_) => self.metrics = None,
        }
        written
    }

    /// The lines of `metrics.jsonl` that can be read.
    pub(super) fn metrics<T: DeserializeOwned>(&self) -> impl Iterator<Item = T> + use<T> {
        let file = File::open(self.path.join("metrics.jsonl")).ok();
        let lines = file.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
        lines.filter_map(|line| serde_json::from_str(&line).ok())
    }

    /// Of `metrics.jsonl`.
    pub(super) fn metrics_bytes(&self) -> u64 {
        self.metrics_bytes
    }

    /// What the run has come to; each file appears whole or not at all.
    pub(crate) fn write_end(&self, policy: &PolicyCheckpoint, summary: &impl Serialize) -> io::Result<()> {
        policy.save(&self.path).map_err(io::Error::other)?;
        replace(&self.path.join("summary.json"), &serde_json::to_vec_pretty(summary)?)
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

//! The files of a run.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Component, Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use rollmesh_core::{
    run::{RunConfig, RunConfigError},
    weights::Weights,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    EvaluationMetrics, IterationMetrics,
    evaluation::EvaluationLine,
    output::RunOutput,
    saving::{ResumeError, lock},
    trackers::Trackers,
};
use crate::{
    checkpoint::replace,
    files::if_exists,
    lines::{Backlog, LineFile, LineNotice, parsed},
    offline::json::is_series,
};

const METRICS: &str = "metrics.jsonl";
/// The initial weights, if they were given.
pub(super) const INIT_WEIGHTS: &str = "init_weights.safetensors";
/// The algorithm in the settings of a run without a learner, since an absent one is the default.
pub(super) const NO_ALGORITHM: &str = "none";
const JOURNAL: &str = "journal.jsonl";
/// Describes the files of the run's output.
const OUTPUT: &str = "output.json";

/// The directory of a run: `config.toml` at its start, a line of `metrics.jsonl` per iteration, and at its end
/// `summary.json` and the policy, `policy.json` with `weights.safetensors`. In asynchronous modes, where batches depend on
/// timing, also `journal.jsonl`, from which they can be replayed. Lines that do not fit on the disk are retried later.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    metrics: LinesFile,
    /// `None` if the run needs no journal.
    journal: Option<LinesFile>,
    /// The outputs of the metrics for other programs.
    trackers: Trackers,
    /// The configuration's text in the directory.
    config: String,
    /// Keeps other processes out.
    _lock: File,
}

/// Returns a name for a new run's directory, unique even if two hubs start the same run in the same millisecond.
pub(crate) fn new_run_dir(runs: &Path, env: &str, seed: u64) -> PathBuf {
    // The name of an environment need not be a valid file name.
    let env: String = env.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    runs.join(format!("{env}-seed{seed}-{}-{}", now.as_millis(), process::id()))
}

/// Serialises a configuration as TOML, which has no null: in a list, for example as an infinite bound, null is written as
/// `nan`, which is read as null again; elsewhere it is left out.
fn to_toml(config: &RunConfig) -> Result<String, RunDirError> {
    toml::to_string(config).or_else(|_| Ok(toml::to_string(&without_null(json!(config.settings()?))?)?))
}

fn without_null(value: Value) -> Result<toml::Value, toml::ser::Error> {
    Ok(match value {
        Value::Null => f64::NAN.into(),
        Value::Array(items) => toml::Value::Array(items.into_iter().map(without_null).collect::<Result<_, _>>()?),
        Value::Object(entries) => {
            let there = entries.into_iter().filter(|(_, entry)| !entry.is_null());
            let entries = there.map(|(name, entry)| Ok((name, without_null(entry)?)));
            toml::Value::Table(entries.collect::<Result<_, toml::ser::Error>>()?)
        }
        scalar => toml::Value::try_from(scalar)?,
    })
}

/// Writes the configuration of a run into its directory, and returns its text.
fn write_config(dir: &Path, config: &RunConfig) -> Result<String, RunDirError> {
    let (path, text) = (dir.join("config.toml"), to_toml(config)?);
    replace(&path, text.as_bytes()).map_err(|source| RunDirError::Io { path, source })?;
    Ok(text)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputFiles {
    /// The prefix of their names.
    series: String,
    /// Their directory if it is within the run's: the path from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<PathBuf>,
}

/// Returns the prefix of a run's output files; `None` if it has none yet.
pub(super) fn output_series(dir: &Path) -> Result<Option<String>, RunDirError> {
    let read = read_output(dir).map_err(|source| RunDirError::Read { path: dir.join(OUTPUT), source })?;
    Ok(read.map(|OutputFiles { series, .. }| series))
}

/// Returns the directory of a run's output if it is within the run's. If `output.json` is not readable,
/// [`output_series`] returns that error.
pub(super) fn own_output(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(read_output(dir).ok()??.directory?))
}

fn read_output(dir: &Path) -> io::Result<Option<OutputFiles>> {
    let Some(bytes) = if_exists(fs::read(dir.join(OUTPUT)))? else { return Ok(None) };
    let files: OutputFiles = serde_json::from_slice(&bytes)?;
    let invalid = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    let is_within = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    match &files {
        OutputFiles { series, .. } if !is_series(series) => invalid(format!("{series:?} is no name of files")),
        OutputFiles { directory: Some(path), .. } if !is_within(path) => {
            invalid(format!("{} is not within the run's directory", path.display()))
        }
        _ => Ok(Some(files)),
    }
}

/// Writes a run's summary into its directory, atomically.
pub(crate) fn write_summary(dir: &Path, summary: &impl Serialize) -> io::Result<()> {
    let path = dir.join("summary.json");
    let written = serde_json::to_vec_pretty(summary).map_err(io::Error::from).and_then(|text| replace(&path, &text));
    written.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// An error of writing a run's files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunDirError {
    /// The directory holds another run.
    #[error("{0} already holds a run; choose another directory with --run-dir, or resume that run: --resume {0}")]
    Taken(PathBuf),
    /// The operating system reported an error.
    #[error("cannot write {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// A file has invalid contents.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// The configuration has a number that cannot be written.
    #[error(transparent)]
    Settings(#[from] RunConfigError),
    /// The configuration cannot be written as TOML.
    #[error("cannot write the configuration: {0}")]
    Config(#[from] toml::ser::Error),
    /// Another process holds the directory.
    #[error(transparent)]
    Lock(#[from] ResumeError),
}

/// The lines that were cut off the files behind the checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LineCut {
    /// Env steps up to the last line of metrics; `None` without a complete one.
    pub(super) env_steps: Option<u64>,
    /// The files that lack lines from before the checkpoint.
    pub(super) short: Vec<&'static str>,
}

#[derive(Deserialize)]
struct MetricsLine {
    env_steps: u64,
}

impl RunDir {
    /// Returns an error if the directory holds a run already.
    pub(super) fn check_free(path: &Path) -> Result<(), RunDirError> {
        if path.join("config.toml").is_file() { Err(RunDirError::Taken(path.to_owned())) } else { Ok(()) }
    }

    /// Checks that a run can write into the directory, without changing it.
    ///
    /// # Errors
    /// [`RunDirError::Io`] names the path, [`RunDirError::Lock`] says that another process holds it.
    pub(crate) fn check_writable(path: &Path) -> Result<(), RunDirError> {
        Self::check_free(path)?;
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(|source| RunDirError::Io { path: path.into(), source })?;
        let locked = lock(path);
        if is_new {
            // Best effort: the run creates both again.
            let _ = fs::remove_file(path.join("lock")).and_then(|()| fs::remove_dir(path));
        }
        match locked {
            Ok(_) => Ok(()),
            Err(ResumeError::Io { path, source }) => Err(RunDirError::Io { path, source }),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a new run's directory. `init_weights` are written before the configuration: a run that is restarted without a
    /// checkpoint starts from them.
    pub(crate) fn create(path: &Path, config: &RunConfig, init_weights: Option<&Weights>) -> Result<Self, RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        fs::create_dir_all(path).map_err(failed(path.to_owned()))?;
        Self::check_free(path)?;
        let lock = lock(path)?;
        // Written before the configuration, so that a directory with a configuration is complete.
        let new = |name: &'static str| {
            if fs::metadata(at(name)).is_ok_and(|file| file.len() > 0) {
                return Err(RunDirError::Taken(path.to_owned()));
            }
            LinesFile::open(path, name, 0).map(|(lines, _)| lines).map_err(failed(at(name)))
        };
        let metrics = new(METRICS)?;
        let journal = (!config.mode.is_synchronous()).then(|| new(JOURNAL)).transpose()?;
        if let Some(weights) = init_weights {
            let bytes = weights.to_safetensors().map_err(io::Error::other);
            bytes.and_then(|bytes| replace(&at(INIT_WEIGHTS), &bytes)).map_err(failed(at(INIT_WEIGHTS)))?;
        }
        let trackers = Trackers::open(path, config, None).map_err(failed(path.to_owned()))?;
        let text = write_config(path, config)?;
        Ok(Self { path: path.into(), metrics, journal, trackers, config: text, _lock: lock })
    }

    /// Continues after these env steps, with this many bytes of `metrics.jsonl` and of the journal; lines behind them are cut
    /// off, and will be written again.
    pub(crate) fn reopen(
        path: &Path,
        config: &RunConfig,
        (metrics_bytes, journal_bytes): (u64, u64),
        env_steps: u64,
        lock: File,
    ) -> Result<(Self, LineCut), RunDirError> {
        let at = |name: &str| path.join(name);
        let failed = |path: PathBuf| move |source| RunDirError::Io { path, source };
        let text = write_config(path, config)?;
        // It belongs to an earlier end of the run.
        let _ = fs::remove_file(at("summary.json"));
        let reopen = |name: &'static str, bytes: u64| LinesFile::open(path, name, bytes).map_err(failed(at(name)));
        let (metrics, mut cut) = reopen(METRICS, metrics_bytes)?;
        let mut journal = None;
        if !config.mode.is_synchronous() {
            let (lines, behind) = reopen(JOURNAL, journal_bytes)?;
            journal = Some(lines);
            cut.short.extend(behind.short);
        }
        let trackers = Trackers::open(path, config, Some(env_steps)).map_err(failed(path.to_owned()))?;
        Ok((Self { path: path.into(), metrics, journal, trackers, config: text, _lock: lock }, cut))
    }

    /// Records the names of the run's output files, before there are any.
    pub(super) fn record_output(&self, output: &RunOutput) -> Result<(), RunDirError> {
        let path = self.path.join(OUTPUT);
        let directory = output.directory().strip_prefix(&self.path).ok().map(Path::to_owned);
        let text = serde_json::to_vec(&OutputFiles { series: output.series().into(), directory });
        text.map_err(io::Error::from)
            .and_then(|text| replace(&path, &text))
            .map_err(|source| RunDirError::Io { path, source })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the configuration's text in the directory.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }

    /// Returns handles of `metrics.jsonl` and the journal, for syncing them to disk.
    pub(crate) fn share_lines(&self) -> io::Result<Vec<File>> {
        self.lines().map(|lines| lines.file.file().try_clone()).collect()
    }

    /// Adds a line to `metrics.jsonl`. If it cannot be written now, it is queued.
    pub(crate) fn add_metrics(&mut self, metrics: &IterationMetrics) -> Vec<LineNotice> {
        self.metrics.add(metrics).into_iter().chain(self.trackers.add(metrics)).collect()
    }

    /// Adds a line about an evaluation, in the same way.
    pub(crate) fn add_evaluation(&mut self, evaluation: &EvaluationMetrics) -> Vec<LineNotice> {
        let line = self.metrics.add(&EvaluationLine { evaluation });
        line.into_iter().chain(self.trackers.add_evaluation(evaluation)).collect()
    }

    /// Adds a line to the journal, if there is one, like [`add_metrics`](Self::add_metrics).
    pub(crate) fn add_to_journal(&mut self, line: &impl Serialize) -> Option<LineNotice> {
        self.journal.as_mut()?.add(line)
    }

    /// Retries lines that could not be written.
    pub(crate) fn retry(&mut self) -> Vec<LineNotice> {
        self.lines_mut().filter_map(LinesFile::retry).collect()
    }

    /// Retries for the last time. Returns the number of lines that are missing in the files, and messages about those
    /// still queued.
    pub(crate) fn finish(&mut self) -> (u64, Vec<String>) {
        let _ = self.retry();
        let abandoned = self.trackers.finish();
        let waiting = self.lines().filter(|lines| lines.backlog.waiting_bytes() > 0);
        let faults = waiting.map(|lines| format!("{} lacks its last lines: there was no room for them", lines.name));
        let faults = faults.chain(abandoned.iter().map(ToString::to_string)).collect();
        (self.lines().map(|lines| lines.backlog.missing()).sum(), faults)
    }

    fn lines(&self) -> impl Iterator<Item = &LinesFile> {
        [Some(&self.metrics), self.journal.as_ref()].into_iter().flatten()
    }

    fn lines_mut(&mut self) -> impl Iterator<Item = &mut LinesFile> {
        [Some(&mut self.metrics), self.journal.as_mut()].into_iter().flatten()
    }

    /// Returns the readable lines of `metrics.jsonl`.
    pub(super) fn metrics<T: DeserializeOwned>(&self) -> impl Iterator<Item = T> + use<T> {
        let file = File::open(self.path.join(METRICS)).ok();
        let lines = file.into_iter().flat_map(|file| parsed(file, |line| serde_json::from_slice(line).ok()));
        lines.map_while(Result::ok)
    }

    /// Returns the lengths of `metrics.jsonl` and of the journal, including queued lines: a run resumed from here lacks
    /// these if they are never written.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.metrics.bytes(), self.journal.as_ref().map_or(0, LinesFile::bytes))
    }
}

/// A file of JSON lines.
#[derive(Debug)]
struct LinesFile {
    name: &'static str,
    file: LineFile,
    backlog: Backlog,
}

impl LinesFile {
    /// Opens the file, which need not exist, and truncates it to this many bytes.
    fn open(dir: &Path, name: &'static str, bytes: u64) -> io::Result<(Self, LineCut)> {
        let mut file = File::options().create(true).read(true).append(true).open(dir.join(name))?;
        let (env_steps, left) = cut_back(&mut file, bytes)?;
        let short = if left < bytes { vec![name] } else { Vec::new() };
        Ok((Self { name, file: LineFile::new(file, left), backlog: Backlog::new(name) }, LineCut { env_steps, short }))
    }

    fn add(&mut self, line: &impl Serialize) -> Option<LineNotice> {
        let mut bytes = match serde_json::to_vec(line) {
            Ok(bytes) => bytes,
            Err(error) => return Some(LineNotice::NoJson { file: self.name, error }),
        };
        bytes.push(b'\n');
        self.backlog.add(bytes, |line| self.file.add(line))
    }

    fn retry(&mut self) -> Option<LineNotice> {
        self.backlog.retry(|line| self.file.add(line))
    }

    fn bytes(&self) -> u64 {
        self.file.bytes() + self.backlog.waiting_bytes()
    }
}

/// Truncates a file to complete lines, of `wanted` bytes if it is long enough. Returns the env steps up to the last line of
/// metrics behind them, and the remaining length in bytes.
fn cut_back(lines: &mut File, wanted: u64) -> io::Result<(Option<u64>, u64)> {
    let is_short = lines.metadata()?.len() < wanted;
    let begin = if is_short { 0 } else { wanted };
    lines.seek(SeekFrom::Start(begin))?;
    let mut behind = Vec::new();
    lines.read_to_end(&mut behind)?;
    let whole = behind.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let left = if is_short { whole as u64 } else { wanted };
    lines.set_len(left)?;
    let mut lines = behind[..whole].split(|&byte| byte == b'\n').rev();
    let env_steps = lines.find_map(|line| serde_json::from_slice::<MetricsLine>(line).ok()).map(|line| line.env_steps);
    Ok((env_steps.filter(|_| !is_short), left))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn metrics_are_truncated_to_complete_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let line = |env_steps: u64| format!("{{\"iteration\":1,\"env_steps\":{env_steps}}}\n");
        let kept = line(10).len() as u64;
        let all = [line(10), line(20), line(30), "{\"iter".into()].concat();
        let cut = |wanted: u64| {
            fs::write(&path, &all).unwrap();
            let mut file = File::options().read(true).append(true).open(&path).unwrap();
            let (env_steps, left) = cut_back(&mut file, wanted).unwrap();
            file.write_all(b"next").unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.len() as u64, left + 4);
            (env_steps, text)
        };
        assert_eq!(cut(kept), (Some(30), format!("{}next", line(10))));
        assert_eq!(cut(0), (Some(30), "next".into()));
        let short = [line(10), line(20), line(30), "next".into()].concat();
        assert_eq!(cut(1_000), (None, short.clone()));
        assert_eq!(cut(3 * kept), (None, short));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn saving_syncs_the_journal_and_reports_missing_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let mode = rollmesh_core::group::SamplingMode::Asynchronous { batch_env_steps: 64, max_staleness: 1 };
        let config = RunConfig { mode, ..RunConfig::new("CartPole-v1") };
        let mut dir = RunDir::create(&path, &config, None).unwrap();
        assert_eq!(dir.share_lines().unwrap().len(), 2);
        assert!(dir.metrics.add(&1).is_none() && dir.add_to_journal(&22).is_none());
        assert_eq!(dir.bytes(), (2, 3));
        let full = File::options().append(true).open("/dev/full").unwrap();
        if let Some(journal) = &mut dir.journal {
            journal.file = LineFile::new(full, 3);
        }
        assert!(matches!(dir.add_to_journal(&333), Some(LineNotice::Waiting { file: JOURNAL, .. })));
        assert_eq!(dir.bytes(), (2, 7));
        let (missing, faults) = dir.finish();
        assert_eq!(
            (missing, &faults[..]),
            (1, &["journal.jsonl lacks its last lines: there was no room for them".into()][..])
        );
        let bytes = dir.bytes();
        drop(dir);
        let (dir, cut) = RunDir::reopen(&path, &config, bytes, 0, lock(&path).unwrap()).unwrap();
        assert_eq!((cut, dir.bytes()), (LineCut { env_steps: None, short: vec![JOURNAL] }, (2, 3)));
    }
}

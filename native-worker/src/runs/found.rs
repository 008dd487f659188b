//! Lists the runs below a directory from their files, which are only read.

use std::{
    fmt::Display,
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use rollmesh_core::hub::RunLoopConfig;
use serde::Serialize;
use serde_json::Value;

use super::saving::read_config;
use crate::files::if_exists;

/// Maximum size in bytes of `config.toml` or `summary.json`, far above real ones.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The last line of `metrics.jsonl` about an iteration is within this many bytes of its end.
const END_BYTES: i64 = 64 << 10;

/// A run of a hub or in a directory.
#[derive(Debug, Default, Serialize)]
pub(crate) struct FoundRun {
    /// Its number on the hub; `None` in a directory.
    pub(crate) run: Option<u32>,
    /// In a directory `running`, `interrupted`, `damaged`, or how the run ended.
    pub(crate) state: String,
    /// Its place in the hub's queue, from 1; `None` once it has begun.
    pub(crate) place: Option<u32>,
    pub(crate) env: String,
    pub(crate) algo: String,
    pub(crate) seed: u64,
    pub(crate) env_steps: u64,
    pub(crate) episode_return_mean: Option<f64>,
    /// The error of the run or of its files.
    pub(crate) error: Option<String>,
    pub(crate) dir: Option<String>,
}

/// Returns the runs in the subdirectories of this one, by name; or this one, if it is a run itself.
///
/// # Errors
/// The directory cannot be read. A run with damaged files is listed with its error.
pub(crate) fn found_runs(directory: &Path) -> io::Result<Vec<FoundRun>> {
    if is_run(directory) {
        return Ok(vec![FoundRun::of(directory)]);
    }
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut dirs: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    // Hidden ones are being deleted.
    let is_hidden = |dir: &Path| dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    dirs.retain(|dir| is_run(dir) && !is_hidden(dir));
    dirs.sort();
    Ok(dirs.iter().map(|dir| FoundRun::of(dir)).collect())
}

fn is_run(dir: &Path) -> bool {
    dir.join("config.toml").is_file()
}

impl FoundRun {
    /// Returns the run in this directory; one with damaged files has its error.
    pub(crate) fn of(dir: &Path) -> Self {
        let damaged = |error| Self { state: "damaged".into(), error: Some(error), ..Self::default() };
        let found = Self::read(dir).unwrap_or_else(damaged);
        Self { dir: Some(dir.display().to_string()), ..found }
    }

    fn read(dir: &Path) -> Result<Self, String> {
        let mut found = Self::default();
        let failed = |name, error: &dyn Display| format!("{}: {error}", dir.join(name).display());
        let text = read_text(&dir.join("config.toml")).map_err(|error| failed("config.toml", &error))?;
        let config = read_config(&text).map_err(|error| failed("config.toml", &error))?;
        (found.env, found.seed) = (config.env().into(), config.rollout.seed);
        found.algo = config.algorithm.unwrap_or_else(|| RunLoopConfig::SAMPLING.into());
        // A run in progress has no summary: its figures are in the last line of its metrics.
        let summary = read_json(&dir.join("summary.json")).map_err(|error| failed("summary.json", &error))?;
        let is_over = summary.is_some();
        let figures = match summary {
            Some(summary) => Some(summary),
            None => last_iteration(&dir.join("metrics.jsonl")).map_err(|error| failed("metrics.jsonl", &error))?,
        };
        if let Some(figures) = &figures {
            found.env_steps = figures["env_steps"].as_u64().unwrap_or(0);
            found.episode_return_mean = figures["episode_return_mean"].as_f64();
            found.error = figures["error"].as_str().map(String::from);
        }
        found.state = match figures.as_ref().and_then(|figures| figures["end"].as_str()).filter(|_| is_over) {
            Some(end) => end.into(),
            None if is_held(dir) => "running".into(),
            None => "interrupted".into(),
        };
        Ok(found)
    }
}

/// Returns the object in a file; `None` if the file does not exist or is empty.
pub(super) fn read_json(path: &Path) -> io::Result<Option<Value>> {
    let text = if_exists(read_text(path))?.filter(|text| !text.trim().is_empty());
    Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
}

/// Returns whether a process holds the run's lock.
fn is_held(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the last complete line about an iteration; evaluations have lines, too. `None` if the file does not exist or has no
/// such line.
fn last_iteration(path: &Path) -> io::Result<Option<Value>> {
    let Some(end) = if_exists(read_end(path))? else { return Ok(None) };
    let whole = end.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let iteration = |line: &str| serde_json::from_str::<Value>(line).ok().filter(|line| line["env_steps"].is_u64());
    Ok(whole.rsplit('\n').find_map(iteration))
}

fn read_end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len() as i64;
    file.seek(SeekFrom::Start((end - END_BYTES).max(0) as u64))?;
    let mut bytes = Vec::new();
    file.take(END_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_listed_by_name_and_damaged_ones_say_so() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b/config.toml", "env = \"CartPole-v1\"\nseed = 3\nalgorithm = \"ppo\"");
        write("b/summary.json", r#"{"end": "solved", "env_steps": 64, "episode_return_mean": 475.5}"#);
        write("a/config.toml", "env = \"CartPole-v1\"\nalgorithm = \"ppo\"");
        write(
            "a/metrics.jsonl",
            "{\"env_steps\": 8}\n{\"env_steps\": 16}\n{\"evaluation\": {\"env_steps\": 8}}\n{\"env_st",
        );
        write(".deleted-f/config.toml", "env = \"CartPole-v1\"");
        write("c/config.toml", "num_envs = 0");
        write("d/config.toml", "env = \"CartPole-v1\"");
        write("d/summary.json", "{");
        write("e/other.toml", "");
        let runs = found_runs(root.path()).unwrap();
        let told: Vec<_> = runs.iter().map(|run| (&*run.state, run.env_steps, run.seed)).collect();
        assert_eq!(told, [("interrupted", 16, 0), ("solved", 64, 3), ("damaged", 0, 0), ("damaged", 0, 0)]);
        assert!(runs[2].error.as_ref().unwrap().contains("num_envs is 0"), "{:?}", runs[2]);
        assert!(runs[3].error.as_ref().unwrap().contains("summary.json: EOF"), "{:?}", runs[3]);
        assert_eq!(found_runs(&root.path().join("b")).unwrap().len(), 1);
        assert!(found_runs(&root.path().join("none")).is_err());
    }
}

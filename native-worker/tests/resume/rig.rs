//! A run in a directory, which a test begins and resumes any number of times.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use rollmesh_core::hash::{Hash128, bytes_hash};
use serde_json::Value;

use crate::support::{Process, json};

/// Twelve environments and a small network: an iteration of 192 env steps takes milliseconds.
const SMALL: [&str; 9] =
    ["train", "--env", "CartPole-v1", "--hidden", "16,16", "--rollout-fragment-length", "16", "--seed", "1"];

/// Names of files and folders of a run's directory that differ from run to run: metrics, summary and ledger are compared without
/// times, logs and traces have times in every line, tokens are random, which iterations are evaluated or saved depends on time,
/// and in the newest checkpoint the group and `run.json` have these times and counts, whose hashes are in the manifest.
const OWN_OF_EACH_RUN: [&str; 12] = [
    "metrics.jsonl",
    "summary.json",
    "ledger.json",
    "journal.jsonl",
    "audit.jsonl",
    "audit.leases.jsonl",
    "hub_tokens.json",
    "gifs",
    "checkpoints",
    "group.bin",
    "run.json",
    "manifest.json",
];

pub(crate) struct Rig {
    directory: tempfile::TempDir,
    args: Vec<String>,
    /// Arguments of every life, also those that continue.
    always: Vec<String>,
}

/// The results of a run that must not depend on interruptions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) weights_hash: String,
    pub(crate) summary: Value,
    pub(crate) metrics: Vec<Value>,
    pub(crate) ledger: Value,
    /// Hashes of all other files, and of those of the newest checkpoint.
    files: BTreeMap<PathBuf, Hash128>,
}

impl Outcome {
    /// The files without the settings, which name the number of workers and places outside of the directory.
    pub(crate) fn learned(&self) -> BTreeMap<PathBuf, Hash128> {
        let mut files = self.files.clone();
        files.retain(|path, _| !path.ends_with("config.toml") && !path.ends_with("policy.json"));
        files
    }

    /// Everything but the settings, for a run that was resumed with others.
    pub(crate) fn without_settings(self) -> Self {
        Self { files: self.learned(), ..self }
    }
}

/// The settings of a resumed run are complete, so that their preset is none.
fn without_preset(file: Vec<u8>) -> Vec<u8> {
    let replaced = |text: String| {
        let presets = [("preset = \"auto\"", "preset = \"none\""), ("\"preset\": \"auto\"", "\"preset\": \"none\"")];
        presets.iter().fold(text, |text, (before, after)| text.replace(before, after)).into_bytes()
    };
    String::from_utf8(file).map_or_else(|error| error.into_bytes(), replaced)
}

/// Adds the hashes of the files in a folder, by their path in it, behind a prefix.
fn add_files(files: &mut BTreeMap<PathBuf, Hash128>, folder: &Path, prefix: &Path) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if OWN_OF_EACH_RUN.iter().any(|own| name == *own) {
            continue;
        }
        match path.is_dir() {
            true => add_files(files, &path, &prefix.join(name)),
            false => _ = files.insert(prefix.join(name), bytes_hash(&without_preset(fs::read(path).unwrap()))),
        }
    }
}

impl Rig {
    /// Returns a run of one worker that ends after this many iterations. Its ledger does not depend on time.
    pub(crate) fn new(iterations: u64) -> Self {
        Self::with_workers(1, iterations)
    }

    /// Returns a run with several workers, of which one may get a hedge of another one's lease.
    pub(crate) fn with_workers(workers: u64, iterations: u64) -> Self {
        let numbers =
            [("--workers", workers), ("--num-envs-per-worker", 12 / workers), ("--max-env-steps", 192 * iterations)];
        let numbers = numbers.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]);
        let args = SMALL.into_iter().map(String::from).chain(numbers).collect();
        Self { directory: tempfile::tempdir().unwrap(), args, always: Vec::new() }
    }

    /// Returns a run with the settings of a file, whose flags come before those of every rig.
    pub(crate) fn of_settings(settings: &Value, workers: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("settings.json");
        std::fs::write(&file, settings.to_string()).unwrap();
        let args = ["train", "--no-dashboard", "--config", file.to_str().unwrap(), "--workers", &workers.to_string()];
        let args = args.into_iter().map(String::from).collect();
        Self { directory, args, always: Vec::new() }
    }

    /// Returns a run without local workers.
    pub(crate) fn remote(iterations: u64) -> Self {
        let args = [("--num-envs-per-worker", 12), ("--max-env-steps", 192 * iterations)];
        let args = args.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]);
        let args = SMALL.into_iter().map(String::from).chain(args).collect();
        Self { directory: tempfile::tempdir().unwrap(), args, always: Vec::new() }
    }

    /// Adds these flags for a new run.
    pub(crate) fn with(mut self, flags: &[&str]) -> Self {
        self.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Adds these flags for every start, also a resumed one.
    pub(crate) fn with_always(mut self, flags: &[&str]) -> Self {
        self.always.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    pub(crate) fn begin(&self) -> Process {
        self.begin_with(&["--checkpoint-interval", "3"])
    }

    pub(crate) fn begin_with(&self, args: &[&str]) -> Process {
        Process::start(self.args_with(args))
    }

    /// Works like [`begin`](Self::begin), so that a limit of file sizes causes an error, as on a full disk, and not a
    /// signal.
    pub(crate) fn begin_on_small_disk(&self) -> Process {
        let program = [env!("CARGO_BIN_EXE_rollmesh").into()];
        let args = program.into_iter().chain(self.args_with(&["--checkpoint-interval", "3"]));
        let shell = ["-c", "trap '' XFSZ; exec \"$0\" \"$@\""].map(OsString::from);
        Process::start_program("sh", shell.into_iter().chain(args), |_| {})
    }

    fn args_with(&self, args: &[&str]) -> Vec<OsString> {
        let ours = self.args.iter().map(OsString::from).chain(["--run-dir".into(), self.dir().into()]);
        ours.chain(self.always.iter().map(OsString::from)).chain(args.iter().map(OsString::from)).collect()
    }

    pub(crate) fn resume(&self) -> Process {
        self.resume_with(&[])
    }

    pub(crate) fn resume_with(&self, args: &[&str]) -> Process {
        let dir = self.dir();
        let resume = ["train".as_ref(), "--resume".as_ref(), dir.as_os_str()];
        let always = self.always.iter().map(AsRef::as_ref);
        Process::start(resume.into_iter().chain(always).chain(args.iter().map(AsRef::as_ref)))
    }

    /// Begins the run, or continues with it if it has come far enough for that.
    pub(crate) fn start(&self) -> Process {
        if self.path("config.toml").exists() { self.resume() } else { self.begin() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        read(&self.path(name))
    }

    /// Returns the directories of the checkpoints, oldest first.
    pub(crate) fn checkpoints(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("checkpoints")) else { return Vec::new() };
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_none());
        found.sort_unstable();
        found
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let mut summary = json(&self.text("summary.json"));
        summary["wall_s"] = Value::Null;
        let text = self.text("metrics.jsonl");
        let metrics = text.lines().map(|line| {
            let mut line = json(line);
            (line["wall_s"], line["steps_per_s"]) = (Value::Null, Value::Null);
            line
        });
        let mut ledger = json(&self.text("ledger.json"));
        // The number of recomputed steps depends on the time at which the process ended.
        ledger["regenerated"] = 0.into();
        let mut files = BTreeMap::new();
        add_files(&mut files, &self.dir(), Path::new(""));
        self.checkpoints().last().into_iter().for_each(|newest| add_files(&mut files, newest, Path::new("newest")));
        assert!(files.contains_key(Path::new("weights.safetensors")), "{files:?}");
        Outcome {
            weights_hash: summary["weights_hash"].as_str().unwrap().into(),
            metrics: metrics.collect(),
            summary,
            ledger,
            files,
        }
    }

    /// Returns the ledger's number of env steps that were granted a second time.
    pub(crate) fn regenerated(&self) -> u64 {
        json(&self.text("ledger.json"))["regenerated"].as_u64().unwrap()
    }

    /// Returns the number of iterations in the metrics.
    pub(crate) fn iterations(&self) -> usize {
        fs::read_to_string(self.path("metrics.jsonl")).map_or(0, |text| text.matches('\n').count())
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the results of an undisturbed run of the given number of iterations.
pub(crate) async fn undisturbed(iterations: u64) -> Outcome {
    let rig = Rig::new(iterations);
    rig.begin().finish_with(0).await;
    rig.outcome()
}

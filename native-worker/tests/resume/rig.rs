//! A run in a directory, which a test begins and resumes any number of times.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::support::{Process, json};

/// Twelve environments and a small network: an iteration of 192 env steps takes milliseconds.
const SMALL: [&str; 9] =
    ["train", "--env", "CartPole-v1", "--hidden", "16,16", "--rollout-fragment-length", "16", "--seed", "1"];

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
    pub(crate) weights: Vec<u8>,
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
        let Ok(entries) = std::fs::read_dir(self.path("checkpoints")) else { return Vec::new() };
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
        Outcome {
            weights_hash: summary["weights_hash"].as_str().unwrap().into(),
            metrics: metrics.collect(),
            weights: std::fs::read(self.path("weights.safetensors")).unwrap(),
            summary,
            ledger,
        }
    }

    /// Returns the ledger's number of env steps that were granted a second time.
    pub(crate) fn regenerated(&self) -> u64 {
        json(&self.text("ledger.json"))["regenerated"].as_u64().unwrap()
    }

    /// Returns the number of iterations in the metrics.
    pub(crate) fn iterations(&self) -> usize {
        std::fs::read_to_string(self.path("metrics.jsonl")).map_or(0, |text| text.matches('\n').count())
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the results of an undisturbed run of the given number of iterations.
pub(crate) async fn undisturbed(iterations: u64) -> Outcome {
    let rig = Rig::new(iterations);
    rig.begin().finish_with(0).await;
    rig.outcome()
}

//! Runs that learn from files are killed, interrupted and prolonged; a resumed run reads on from its position, and ends
//! like an undisturbed one.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    time::Duration,
};

use serde_json::{Value, json as object};

use super::kills::{random, seed};
use crate::support::{Process, is_long, json, process::Signal, until};

/// A network and updates so small that one takes milliseconds.
const SMALL: [&str; 8] = ["train", "--hidden", "8,8", "--seed", "3", "--train-batch-size", "40", "--json"];
const UPDATES: u64 = 100;

struct FilesRig {
    directory: tempfile::TempDir,
    args: Vec<String>,
}

/// The results of a run that must not depend on interruptions.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    summary: Value,
    /// Lines of updates, and those of evaluations, whose times vary.
    updates: Vec<Value>,
    evaluations: Vec<Value>,
    weights: Vec<u8>,
}

impl FilesRig {
    /// Samples into two folders, `lines` with a corrupt line, and `tables`; `input` names them in braces.
    async fn new(input: &str, config: &Value, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        for (name, seed) in [("lines", "1"), ("samples", "2")] {
            let sample =
                ["sample", "--env-steps", "600", "--num-envs", "3", "--rollout-fragment-length", "8", "--json"];
            Process::start(sample.into_iter().chain(["--seed", seed, "--output", &path(name)])).finish_with(0).await;
        }
        let file = fs::read_dir(path("lines")).unwrap().next().unwrap().unwrap().path();
        OpenOptions::new().append(true).open(file).unwrap().write_all(b"no line\n").unwrap();
        let convert = ["data", "convert", &path("samples"), "--to", "parquet", "--output", &path("tables")];
        Process::start(convert).finish_with(0).await;
        let input = input.replace("<lines>", &path("lines")).replace("<tables>", &path("tables"));
        let flags = ["--input", &input, "--input-config", &config.to_string()];
        let args = SMALL.into_iter().chain(flags).chain(more.iter().copied()).map(String::from).collect();
        Self { directory, args }
    }

    fn dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Begins a run that ends after at most the given number of updates.
    fn begin(&self, updates: u64) -> Process {
        let (dir, rows) = (self.dir().display().to_string(), (40 * updates).to_string());
        let more = ["--run-dir", &dir, "--max-env-steps", &rows, "--checkpoint-interval", "3"];
        let more = more.into_iter().chain(["--evaluation-interval", "20", "--evaluation-episodes", "2"]);
        Process::start(self.args.iter().map(String::as_str).chain(more))
    }

    fn resume(&self, more: &[&str]) -> Process {
        let dir = self.dir().display().to_string();
        Process::start(["train", "--resume", &dir, "--json"].into_iter().chain(more.iter().copied()))
    }

    /// Begins the run, or resumes it if it has come far enough for that.
    fn start(&self) -> Process {
        if self.dir().join("config.toml").exists() { self.resume(&[]) } else { self.begin(UPDATES) }
    }

    fn updates(&self) -> u64 {
        let text = fs::read_to_string(self.dir().join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("{\"iteration\"") && line.ends_with('}')).count() as u64
    }

    fn outcome(&self) -> Outcome {
        let read = |name: &str| fs::read(self.dir().join(name)).unwrap();
        let timeless = |text: &str| {
            let mut object = json(text);
            (object["wall_s"], object["steps_per_s"]) = (Value::Null, Value::Null);
            object
        };
        let text = |name: &str| String::from_utf8(read(name)).unwrap();
        let (updates, evaluations) =
            text("metrics.jsonl").lines().map(timeless).partition(|line| line["evaluation"].is_null());
        Outcome { summary: timeless(&text("summary.json")), updates, evaluations, weights: read("weights.safetensors") }
    }
}

async fn killed_and_not(input: &str, config: Value, more: &[&str]) {
    let rig = FilesRig::new(input, &config, more).await;
    let report = json(&rig.begin(UPDATES).finish_with(0).await.stdout);
    let calm = rig.outcome();
    let updates = calm.updates.len() as u64;
    assert_eq!(calm.evaluations.len() as u64, updates.div_ceil(20));
    let (mut state, points, mut kills) = (seed(), if is_long() { 20 } else { 3 }, 0);
    fs::remove_dir_all(rig.dir()).unwrap();
    for point in 0..points {
        let run = rig.start();
        let done = rig.updates();
        let left = updates.saturating_sub(done + 20);
        let target = done + random(&mut state) % (2 * left / (points - point + 1) + 1);
        until("an update", || rig.updates() >= target.min(done + left)).await;
        // Anywhere within what follows.
        tokio::time::sleep(Duration::from_micros(random(&mut state) % 5_000)).await;
        run.signal(Signal::KILL);
        // On a busy machine it may end before.
        kills += u32::from(run.finish().await.status.code().is_none());
    }
    assert!(kills > 0, "none of {points} lives was cut short");
    let again = json(&rig.start().finish_with(0).await.stdout);
    assert_eq!(rig.outcome(), calm);
    assert_eq!((&again["corrupt_lines"], &again["weights_hash"]), (&report["corrupt_lines"], &report["weights_hash"]));
}

#[tokio::test]
async fn shuffled_files_resume_at_their_position() {
    killed_and_not("<lines>", object!({"shuffle_buffer_size": 5}), &["--algo", "bc"]).await;
}

#[tokio::test]
async fn epochs_resume_at_their_position() {
    killed_and_not("<lines>", object!({"read_all_files": true}), &["--algo", "marwil"]).await;
}

#[tokio::test]
async fn mixtures_resume_at_their_position() {
    let mixture = r#"{"<lines>": 0.7, "<tables>": 0.3}"#;
    killed_and_not(mixture, object!({"shuffle_buffer_size": 3}), &["--algo", "bc"]).await;
}

/// Checks workers that read by themselves, each in an order of its own.
#[tokio::test]
async fn files_read_by_two_workers_resume_at_their_positions() {
    killed_and_not("<lines>", object!({"shuffle_buffer_size": 5}), &["--algo", "bc", "--workers", "2"]).await;
}

/// Checks mixtures: rows of the sampler have advantages, which MARWIL needs in the read rows, too.
#[tokio::test]
async fn mixtures_with_a_sampler_resume_at_their_position_without_and_with_workers() {
    let mixture = r#"{"<lines>": 0.5, "sampler": 0.5}"#;
    for workers in ["0", "2"] {
        let flags = ["--algo", "marwil", "--workers", workers, "--rollout-fragment-length", "8"];
        killed_and_not(mixture, object!({"postprocess_inputs": true}), &flags).await;
    }
}

#[tokio::test]
async fn a_run_is_interrupted_and_prolonged() {
    let rig = FilesRig::new("<tables>", &object!({}), &[]).await;
    rig.begin(UPDATES).finish_with(0).await;
    let calm = rig.outcome();
    fs::remove_dir_all(rig.dir()).unwrap();
    let run = rig.begin(UPDATES / 2);
    until("an update", || rig.updates() >= 5).await;
    run.signal(Signal::INT);
    run.finish_with(3).await;
    let rows = (40 * UPDATES).to_string();
    rig.resume(&["--max-env-steps", &rows]).finish_with(0).await;
    let prolonged = rig.outcome();
    assert!(prolonged.weights == calm.weights);
    assert_eq!(prolonged.summary["env_steps"], calm.summary["env_steps"]);
    // Nothing is left to do.
    rig.resume(&[]).finish_with(0).await;
    assert_eq!(rig.outcome(), prolonged);
}

/// Interrupts evaluations in the middle of the run, and at its end.
#[tokio::test]
async fn interrupted_evaluation_is_rescheduled() {
    let rig = FilesRig::new("<lines>", &object!({}), &["--stop-return", "10000"]).await;
    rig.begin(40).finish_with(3).await;
    let calm = rig.outcome();
    for updates in [20, calm.updates.len() as u64] {
        fs::remove_dir_all(rig.dir()).unwrap();
        let run = rig.begin(40);
        until("an update that is evaluated", || rig.updates() >= updates).await;
        run.signal(Signal::INT);
        run.finish_with(3).await;
        rig.resume(&[]).finish_with(3).await;
        assert_eq!(rig.outcome(), calm, "interrupted after update {updates}");
    }
}

#[tokio::test]
async fn a_run_that_goes_further_is_one_that_was_always_that_long() {
    let rig = FilesRig::new("<tables>", &object!({}), &[]).await;
    rig.begin(UPDATES).finish_with(0).await;
    let calm = rig.outcome();
    fs::remove_dir_all(rig.dir()).unwrap();
    rig.begin(UPDATES / 2).finish_with(0).await;
    let first_end = rig.updates();
    rig.resume(&["--max-env-steps", &(40 * UPDATES).to_string()]).finish_with(0).await;
    let mut further = rig.outcome();
    // It was also evaluated at its first end, which has no effect on later evaluations.
    further.evaluations.retain(|line| line["evaluation"]["iteration"] != first_end);
    let one_more = calm.evaluations.len() + 1;
    assert_eq!(rig.outcome().evaluations.len(), one_more);
    let counts = &mut further.summary["evaluations"];
    assert!(counts["due"] == one_more && counts["done"] == one_more, "{counts}");
    *counts = calm.summary["evaluations"].clone();
    assert_eq!(further, calm);
}

#[tokio::test]
async fn whatever_would_be_another_run_is_refused() {
    let rig = FilesRig::new("<lines>", &object!({}), &[]).await;
    rig.begin(9).finish_with(0).await;
    for (flags, what) in [
        (["--seed", "9"], "seed is 3, not 9"),
        (["--hidden", "16"], "model_config.fcnet_hiddens is [8, 8], not [16]"),
        (["--algo", "marwil"], "algorithm is \"bc\", not \"marwil\""),
        (["--workers", "2"], "num_workers is 0, not 2"),
        (["--input", "other"], "cannot be used with"),
    ] {
        let end = rig.resume(&flags).finish_with(2).await;
        assert!(end.stderr.contains(what), "{}", end.stderr);
    }
    let lines = rig.directory.path().join("lines");
    let file = fs::read_dir(lines).unwrap().next().unwrap().unwrap().path();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"\n").unwrap();
    let end = rig.resume(&[]).finish_with(2).await;
    assert!(end.stderr.contains("bytes, but had") && end.stderr.contains("bring back what was read"), "{}", end.stderr);
}

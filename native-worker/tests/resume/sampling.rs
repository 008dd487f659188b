//! Runs without a learner are killed and interrupted; resumed, they leave the rows, the hash and the summary of a calm run.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::kills::{random, seed};
use crate::support::{
    Process, is_long, json,
    process::{Finished, Signal},
    until,
};

/// Runs of one kind, each in a directory of its own.
struct Sampling {
    directory: tempfile::TempDir,
    flags: &'static [&'static str],
}

/// The files of a run, without times.
#[derive(Debug, PartialEq)]
struct Left {
    printed: Value,
    metrics: Vec<Value>,
    summary: Value,
    output: String,
}

impl Sampling {
    fn new(flags: &'static [&'static str]) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), flags }
    }

    fn path(&self, run: &str, file: &str) -> PathBuf {
        self.directory.path().join(run).join(file)
    }

    fn text(&self, run: &str, file: &str) -> String {
        fs::read_to_string(self.path(run, file)).unwrap_or_default()
    }

    fn iterations(&self, run: &str) -> usize {
        self.text(run, "metrics.jsonl").matches('\n').count()
    }

    /// Begins the run, or resumes it.
    fn start(&self, run: &str, workers: &str, env_steps: u64) -> Process {
        let [dir, output] = ["", "output"].map(|file| self.path(run, file).display().to_string());
        let (env_steps, flags) = (env_steps.to_string(), ["--checkpoint-interval", "7", "--output", &output]);
        let args = [&["sample", "--json", "--num-workers", workers, "--env-steps", &env_steps], &flags[..]].concat();
        match self.path(run, "config.toml").exists() {
            true => Process::start(args.iter().chain(&["--resume", &dir])),
            false => Process::start(args.iter().chain(&["--run-dir", &dir]).chain(self.flags)),
        }
    }

    /// Interrupts a run, whose own end is far away, in every way. Returns the env steps with which it may end.
    async fn interrupt(&self, run: &str, state: &mut u64) -> u64 {
        for (workers, signal) in [("2", Signal::KILL), ("0", Signal::TERM), ("2", Signal::INT), ("0", Signal::KILL)] {
            let process = self.start(run, workers, 1_000_000_000_000);
            let target = self.iterations(run) + 1 + random(state) as usize % 40;
            until("some iterations", || self.iterations(run) >= target).await;
            tokio::time::sleep(Duration::from_micros(random(state) % 10_000)).await;
            process.signal(signal);
            let end = process.finish().await;
            let code = if signal == Signal::KILL { None } else { Some(3) };
            assert_eq!(end.status.code(), code, "{:?}, {signal:?}: {}", self.flags, end.stderr);
        }
        let metrics = self.text(run, "metrics.jsonl");
        let done = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
        // The last fragments are longer than the rows that are wanted.
        done.unwrap()["env_steps"].as_u64().unwrap() + 1_270
    }

    fn left(&self, run: &str, end: &Finished) -> Left {
        let timeless = |text: &str| {
            let mut object = json(text);
            let times = ["steps_per_s", "wall_s", "num_workers", "bytes_per_step", "moved_slots"];
            for time in times.iter().chain(&["hub_cpu_ns_per_step", "worker_cpu_ns_per_step"]) {
                object.as_object_mut().unwrap().remove(*time);
            }
            object
        };
        let [printed, summary] = [end.stdout.clone(), self.text(run, "summary.json")].map(|text| timeless(&text));
        for name in ["env_steps", "episode_return_mean", "reproducible"] {
            assert_eq!(printed[name], summary[name], "{name}: printed and in summary.json");
        }
        Left {
            printed,
            metrics: self.text(run, "metrics.jsonl").lines().map(timeless).collect(),
            summary,
            output: text_of(&self.path(run, "output")),
        }
    }
}

/// Returns the files in a directory, one after the other.
fn text_of(directory: &Path) -> String {
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// Returns the number of rows in a text of whole lines, each of which is there once.
fn num_rows(text: &str) -> usize {
    assert!(text.ends_with('\n'), "the last line is whole");
    let mut seen = BTreeSet::new();
    for batch in text.lines().map(json) {
        let [episodes, steps] = ["eps_id", "t"].map(|column| batch[column].as_array().unwrap().clone());
        for place in episodes.iter().zip(&steps).map(|(episode, t)| (episode.as_u64().unwrap(), t.as_u64().unwrap())) {
            assert!(seen.insert(place), "{place:?} is there twice");
        }
    }
    seen.len()
}

const CART_POLE: &[&str] = &["--num-envs", "4", "--rollout-fragment-length", "16"];
const FILTERED: &[&str] = &[
    "--env",
    "Pendulum-v1",
    "--num-envs",
    "4",
    "--rollout-fragment-length",
    "16",
    "--observation-filter",
    "MeanStdFilter",
];
const GAME: &[&str] = &["--env", "MultiAgentCartPole-v1", "--num-envs", "3", "--rollout-fragment-length", "16"];
const ASYNC: &[&str] = &["--num-envs", "4", "--rollout-fragment-length", "16", "--mode", "async"];

#[tokio::test]
async fn interrupted_sampling_ends_with_same_rows_hash_and_summary() {
    let mut state = seed();
    for flags in [CART_POLE, FILTERED, GAME] {
        let sampling = Sampling::new(flags);
        for round in 0..if is_long() { 10 } else { 1 } {
            let [run, calm] = ["run", "calm"].map(|name| format!("{name}-{round}"));
            let env_steps = sampling.interrupt(&run, &mut state).await;
            let end = sampling.start(&run, "2", env_steps).finish_with(0).await;
            assert!(!end.stderr.contains("lacks"), "{}", end.stderr);
            let left = sampling.left(&run, &end);
            let end = sampling.start(&calm, "2", env_steps).finish_with(0).await;
            let calm = sampling.left(&calm, &end);
            assert!(calm.printed["rollout_hash"].is_string());
            assert_eq!(left, calm, "{flags:?}");
            let end = sampling.start(&run, "0", env_steps).finish_with(0).await;
            assert_eq!(sampling.left(&run, &end), calm, "{flags:?}: resumed at its end");
        }
    }
}

/// Checks the number of rows only: timing decides which rows they are.
#[tokio::test]
async fn interrupted_asynchronous_sampling_writes_each_row_once() {
    let sampling = Sampling::new(ASYNC);
    let env_steps = sampling.interrupt("run", &mut seed()).await;
    let end = sampling.start("run", "2", env_steps).finish_with(0).await;
    let Left { printed, output, .. } = sampling.left("run", &end);
    let rounded = env_steps.div_ceil(4) * 4;
    assert_eq!((&printed["env_steps"], num_rows(&output) as u64), (&rounded.into(), rounded));
}

/// Checks that the rows which are being written at that time are counted, too.
#[tokio::test]
async fn interrupted_sampling_without_directory_counts_rows_of_its_output() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().display().to_string();
    let args = ["sample", "--json", "--num-workers", "1", "--env-steps", "1000000000000", "--output", &output];
    let process = Process::start(args);
    until("rows", || !text_of(directory.path()).is_empty()).await;
    process.signal(Signal::INT);
    let printed = json(&process.finish_with(3).await.stdout);
    assert_eq!(printed["env_steps"], num_rows(&text_of(directory.path())));
}

/// Checks that the last fragments are sampled once more if only their first rows were taken.
#[tokio::test]
async fn finished_sampling_resumes_with_more_env_steps() {
    for (flags, few, many) in [(CART_POLE, 1_270, 1_500), (GAME, 100, 500)] {
        let sampling = Sampling::new(flags);
        sampling.start("short", "0", few).finish_with(0).await;
        let longer = sampling.start("short", "0", many).finish_with(0).await;
        let long = sampling.start("long", "0", many).finish_with(0).await;
        assert_eq!(sampling.left("short", &longer), sampling.left("long", &long), "{flags:?}");
    }
}

#[tokio::test]
async fn changes_of_resumed_sampling_are_kept() {
    for (flags, after) in [
        // All rows of the last iteration were taken.
        (GAME, "resuming after iteration 3, 144 env steps"),
        // Only the first ones.
        (CART_POLE, "resuming after iteration 1, 64 env steps"),
    ] {
        let sampling = Sampling::new(flags);
        sampling.start("run", "0", 100).finish_with(0).await;
        let dir = sampling.path("run", "").display().to_string();
        let flags = ["--no-dashboard", "--hung-worker-timeout", "7", "--checkpoint-interval", "9"];
        let end = Process::start(["sample", "--resume", &dir].iter().chain(&flags)).finish_with(0).await;
        assert!(end.stderr.contains(after), "{}", end.stderr);
        let config = sampling.text("run", "config.toml");
        let is_kept = config.contains("hung_worker_timeout_s = 7.0") && config.contains("checkpoint_interval = 9");
        assert!(is_kept, "{config}");
    }
}

#[tokio::test]
async fn rows_sampled_without_output_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let [run, output] = ["run", "output"].map(|name| directory.path().join(name).display().to_string());
    let sample = async |iterations: u64, flags: &[&str]| {
        let env_steps = (64 * iterations).to_string();
        let args = ["sample", "--no-dashboard", "--env-steps", &env_steps];
        Process::start(args.iter().chain(flags)).finish_with(0).await.stderr
    };
    sample(3, &[CART_POLE, &["--run-dir", &run]].concat()).await;
    let (without, with) = (["--resume", &run], ["--resume", &run, "--output", &output]);
    let gap =
        |range: &str| format!("the output lacks the rows of iterations {range}, which were sampled without --output");
    for (iterations, flags, message) in [
        (5, &with[..], gap("1 to 3")),
        (7, &with, String::new()),
        (8, &without, "the run was begun with --output: without it, no more rows are written".into()),
        (10, &without, "the run was begun with --output".into()),
        (11, &with, gap("8 to 10")),
        (12, &with, String::new()),
    ] {
        let stderr = sample(iterations, flags).await;
        assert!(stderr.contains(&message), "{iterations}: {stderr}");
        assert_eq!(stderr.contains("lacks"), message.contains("lacks"), "{iterations}: {stderr}");
    }
    assert_eq!(num_rows(&text_of(Path::new(&output))), 64 * (2 + 2 + 1 + 1));
}

#[tokio::test]
async fn wrong_way_to_resume_is_refused_by_name() {
    let sampling = Sampling::new(&["--num-envs", "2", "--rollout-fragment-length", "8"]);
    sampling.start("run", "0", 64).finish_with(0).await;
    let dir = sampling.path("run", "").display().to_string();
    let learned = sampling.path("learned", "").display().to_string();
    let train = ["train", "--workers", "0", "--max-env-steps", "512", "--run-dir", &learned];
    Process::start(train).finish_with(0).await;
    let refused: [(&[&str], &str); 5] = [
        (&["train", "--resume", &dir], "only samples: resume it with `rollmesh sample --resume"),
        (&["sample", "--resume", &learned], "learns: resume it with `rollmesh train --resume"),
        (&["sample", "--run-dir", &dir], "already holds a run; choose another directory"),
        (&["sample", "--resume", &dir, "--seed", "2"], "cannot be used with"),
        (&["sample", "--resume", "/proc/none"], "does not exist, so it holds no run"),
    ];
    for (args, message) in refused {
        let end = Process::start(args).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
    // As earlier versions left it: an absent algorithm is the default one.
    let config = sampling.text("run", "config.toml").replace("algorithm = \"none\"\n", "");
    fs::write(sampling.path("run", "config.toml"), config).unwrap();
    fs::remove_dir_all(sampling.path("run", "checkpoints")).unwrap();
    let end = Process::start(["sample", "--resume", &dir]).finish_with(2).await;
    assert!(end.stderr.contains("was sampled by an earlier version"), "{}", end.stderr);
}

//! Runs without a learner are killed and interrupted; resumed, they leave the rows, the hash and the summary of a calm run.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;

use crate::{
    kills::{random, seed},
    support::{
        Process, is_long, json,
        process::{Finished, Signal},
        until,
    },
};

/// Runs of one kind, each in a directory of its own.
struct Sampling {
    directory: tempfile::TempDir,
    flags: &'static [&'static str],
}

/// What a run has left behind, without times.
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

    fn process(&self, run: &str, args: &[&str]) -> Process {
        let output = self.path(run, "output").display().to_string();
        let usual = ["sample", "--json", "--checkpoint-interval", "7", "--output", &output];
        Process::start(usual.iter().chain(args))
    }

    /// Begins the run, or resumes it.
    fn start(&self, run: &str, workers: &str) -> Process {
        let dir = self.path(run, "").display().to_string();
        match self.path(run, "config.toml").exists() {
            true => self.process(run, &["--num-workers", workers, "--resume", &dir]),
            false => self.process(run, &[&["--num-workers", workers, "--run-dir", &dir], self.flags].concat()),
        }
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
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.path(run, "output")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        Left {
            printed: timeless(&end.stdout),
            metrics: self.text(run, "metrics.jsonl").lines().map(timeless).collect(),
            summary: timeless(&self.text(run, "summary.json")),
            output: files.iter().map(|file| fs::read_to_string(file).unwrap()).collect(),
        }
    }
}

/// The last fragments are longer than the rows that are wanted.
const CART_POLE: &[&str] = &["--num-envs", "4", "--rollout-fragment-length", "16", "--env-steps", "12790"];
const FILTERED: &[&str] = &[
    "--env",
    "Pendulum-v1",
    "--num-envs",
    "4",
    "--rollout-fragment-length",
    "16",
    "--env-steps",
    "6400",
    "--observation-filter",
    "MeanStdFilter",
];
const GAME: &[&str] =
    &["--env", "MultiAgentCartPole-v1", "--num-envs", "3", "--rollout-fragment-length", "16", "--env-steps", "4800"];

#[tokio::test]
async fn interrupted_sampling_ends_with_same_rows_hash_and_summary() {
    let mut state = seed();
    for (flags, iterations) in [(CART_POLE, 200), (FILTERED, 100), (GAME, 100)] {
        let sampling = Sampling::new(flags);
        let end = sampling.start("calm", "2").finish_with(0).await;
        let calm = sampling.left("calm", &end);
        assert_eq!((calm.metrics.len(), calm.printed["rollout_hash"].is_string()), (iterations, true), "{flags:?}");
        for round in 0..if is_long() { 10 } else { 1 } {
            let run = format!("run-{round}");
            for (workers, signal) in [("2", Signal::KILL), ("0", Signal::TERM), ("2", Signal::INT), ("0", Signal::KILL)]
            {
                let process = sampling.start(&run, workers);
                let done = sampling.iterations(&run);
                let target = done + 1 + random(&mut state) as usize % (iterations / 5);
                until("some iterations", || sampling.iterations(&run) >= target).await;
                tokio::time::sleep(Duration::from_micros(random(&mut state) % 10_000)).await;
                process.signal(signal);
                let end = process.finish().await;
                let code = if signal == Signal::KILL { None } else { Some(3) };
                assert_eq!(end.status.code(), code, "{flags:?}, {signal:?}: {}", end.stderr);
            }
            let end = sampling.start(&run, "2").finish_with(0).await;
            assert!(end.stderr.is_empty() || !end.stderr.contains("lacks"), "{}", end.stderr);
            assert_eq!(sampling.left(&run, &end), calm, "{flags:?}");
            let end = sampling.start(&run, "0").finish_with(0).await;
            assert_eq!(sampling.left(&run, &end), calm, "{flags:?}: resumed at its end");
        }
    }
}

#[tokio::test]
async fn finished_sampling_goes_on_with_more_env_steps() {
    let sampling = Sampling::new(CART_POLE);
    sampling.start("short", "0").finish_with(0).await;
    let [short, long] = ["short", "long"].map(|run| sampling.path(run, "").display().to_string());
    let resume = ["--resume", &short, "--env-steps", "15000"];
    let longer = sampling.process("short", &resume).finish_with(0).await;
    let begin = [&CART_POLE[..4], &["--env-steps", "15000", "--run-dir", &long]].concat();
    let long = sampling.process("long", &begin).finish_with(0).await;
    assert_eq!(sampling.left("short", &longer), sampling.left("long", &long));
}

#[tokio::test]
async fn wrong_way_to_resume_is_refused_by_name() {
    let sampling = Sampling::new(&["--num-envs", "2", "--rollout-fragment-length", "8", "--env-steps", "64"]);
    sampling.start("run", "0").finish_with(0).await;
    let dir = sampling.path("run", "").display().to_string();
    let learned = sampling.path("learned", "").display().to_string();
    let train = ["train", "--workers", "0", "--max-env-steps", "512", "--run-dir", &learned];
    Process::start(train).finish_with(0).await;
    let refused: [(&[&str], &str); 5] = [
        (&["train", "--resume", &dir], "only samples: resume it with `rollmesh sample --resume"),
        (&["sample", "--resume", &learned], "learns: resume it with `rollmesh train --resume"),
        (&["sample", "--run-dir", &dir], "already holds a run; choose another directory"),
        (&["sample", "--resume", &dir, "--seed", "2"], "cannot be used with"),
        (&["sample", "--resume", "/proc/none"], "holds no run"),
    ];
    for (args, message) in refused {
        let end = Process::start(args).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
}

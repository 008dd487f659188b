//! Runs with user code that fails.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::PathBuf,
    time::{Duration, Instant},
};

use rollmesh_core::group::Ledger;
use serde_json::{Value, json};

use super::faulty::{EPISODE, SLOT, STEP};
use crate::support::{self, Process, process::Finished};

/// A run that fails is over within this time, also on a busy machine in a debug build.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(20);
/// A lease without progress is over after this time.
const LEASE: Duration = Duration::from_secs(3);

/// A run in a directory of its own.
pub(crate) struct Rig {
    directory: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Trains with four environments, and returns the duration as well.
    pub(crate) async fn train(&self, workers: u32, config: &Value, more: &[&str]) -> (Finished, Duration) {
        run(&self.args(workers, config, more)).await
    }

    pub(crate) fn args(&self, workers: u32, config: &Value, more: &[&str]) -> Vec<String> {
        let (num_workers, num_envs) = (workers.to_string(), 4_u32.div_ceil(workers.max(1)).to_string());
        let (run_dir, config) = (self.path("run").display().to_string(), config.to_string());
        let args = ["train", "--seed", "1", "--hidden", "8", "--rollout-fragment-length", "16", "--num-slots", "4"];
        let args = [&args[..], &["--workers", &num_workers, "--num-envs-per-worker", &num_envs]].concat();
        let mut args = [&args[..], &["--env-config", &config, "--run-dir", &run_dir], more].concat();
        for (flag, value) in [("--env", "Faulty-v0"), ("--max-env-steps", "640")] {
            if !more.contains(&flag) {
                args.extend([flag, value]);
            }
        }
        args.into_iter().map(String::from).collect()
    }

    pub(crate) fn summary(&self) -> Value {
        support::json(&std::fs::read_to_string(self.path("run/summary.json")).unwrap())
    }

    pub(crate) fn ledger(&self) -> Ledger {
        serde_json::from_str(&std::fs::read_to_string(self.path("run/ledger.json")).unwrap()).unwrap()
    }

    /// Checks that the run's ledger has lost no env step.
    pub(crate) fn check_ledger(&self) {
        let ledger = self.ledger();
        assert!(ledger.balances() && ledger.outstanding == 0, "{ledger:?}");
    }
}

pub(crate) async fn run<S: AsRef<OsStr>>(args: &[S]) -> (Finished, Duration) {
    let began = Instant::now();
    let program = std::env::current_exe().unwrap();
    (Process::start_program(program, args, |_| {}).finish().await, began.elapsed())
}

/// Returns the text by which messages name the step at which [`Faulty`](super::faulty) fails.
fn place() -> String {
    format!("slot {SLOT}, episode {}, step {}: ", STEP / EPISODE, STEP % EPISODE)
}

/// Asserts that the run ended with this error message.
pub(crate) fn assert_failed((finished, took): &(Finished, Duration), texts: &[&str], within: Duration) {
    let Finished { status, stdout, stderr } = finished;
    assert_eq!(status.code(), Some(1), "{stdout}\n{stderr}");
    let error =
        stderr.lines().rfind(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error in {stderr}"));
    texts.iter().for_each(|text| assert!(error.contains(text), "no {text:?} in {error}\n{stderr}"));
    assert!(*took < within, "{took:?}\n{stderr}");
}

fn kind(kind: &str) -> Value {
    json!({ "kind": kind })
}

pub(crate) async fn environment_that_always_fails_ends_run_with_its_place() {
    let cases = [
        ("error", "error", "the environment failed: no fuel"),
        ("panic", "panic", "the environment failed: panicked: no brakes"),
        ("nan", "invalid", "the observation is NaN"),
        ("infinite", "invalid", "the reward is inf"),
        ("outside", "invalid", "is not in"),
    ];
    for (fault, name, message) in cases {
        for workers in [0, 2] {
            let rig = Rig::new();
            let ended = rig.train(workers, &kind(fault), &[]).await;
            let place = format!("Faulty-v0, {}", place());
            assert_failed(&ended, &[&place, message, "fix the environment"], AT_ONCE);
            rig.check_ledger();
            let summary = rig.summary();
            let failures = &summary["failures"];
            let (count, latest) = (failures["count"].as_u64().unwrap(), failures["latest"].as_array().unwrap());
            assert_eq!((count, latest.len()), (2, 2), "{failures}");
            for failure in latest {
                let found = (&failure["kind"], &failure["slot"], &failure["episode"], &failure["t"]);
                assert_eq!(
                    found,
                    (&json!(name), &json!(SLOT), &json!(STEP / EPISODE), &json!(STEP % EPISODE)),
                    "{failure}"
                );
            }
            // The other worker, if it has joined by then.
            let before = ended.0.stderr.split("a fragment failed").next().unwrap_or_default();
            if before.contains("worker 2 joined") {
                assert_ne!(latest[0]["worker"], latest[1]["worker"], "{failures}");
            }
            assert!(summary["error"].as_str().unwrap().contains(message), "{summary}");
        }
    }
}

const RESTART: [&str; 2] = ["--set", "restart_failed_sub_environments=true"];

pub(crate) async fn transient_failure_leaves_no_trace_in_weights() {
    for settings in [&[][..], &RESTART] {
        let calm = Rig::new();
        let (finished, _) = calm.train(0, &json!({}), settings).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        assert!(calm.summary().get("failures").is_none());
        for fault in ["error", "panic", "nan"] {
            for workers in [0, 2] {
                let rig = Rig::new();
                let config = json!({ "kind": fault, "once": rig.path("once") });
                let (finished, _) = rig.train(workers, &config, settings).await;
                let case = format!("{fault}, {workers} workers, {settings:?}: {}", finished.stderr);
                assert_eq!(finished.status.code(), Some(0), "{case}");
                rig.check_ledger();
                let summary = rig.summary();
                assert_eq!(summary["weights_hash"], calm.summary()["weights_hash"], "{case}");
                assert!(rig.path("once").exists(), "{case}");
                // A slow worker's fragment may have been granted to the other one, too, which did not fail and was faster.
                let failures = summary.get("failures").map_or(1, |failures| failures["count"].as_u64().unwrap());
                assert_eq!(failures, 1, "{summary}");
                if workers == 0 {
                    let failure = &summary["failures"]["latest"][0];
                    let found = ["slot", "episode", "t"].map(|name| &failure[name]);
                    assert_eq!(found, [&json!(SLOT), &json!(STEP / EPISODE), &json!(STEP % EPISODE)], "{failure}");
                    // Its slots are stepped together, unless they may be restarted, and none of them fails alone.
                    let is_together = failure["message"].as_str().unwrap().ends_with(", but none of them alone");
                    assert_eq!(is_together, settings.is_empty(), "{failure}");
                }
            }
        }
    }
}

/// Lets the environment fail in every episode of a slot, on one worker only.
pub(crate) async fn failures_of_one_worker_leave_no_trace_in_weights() {
    let calm = Rig::new();
    calm.train(0, &json!({}), &[]).await;
    for fault in ["error", "panic", "nan"] {
        let rig = Rig::new();
        let (finished, _) = rig.train(2, &json!({ "kind": fault, "host": rig.path("host") }), &[]).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        rig.check_ledger();
        assert_eq!(rig.summary()["weights_hash"], calm.summary()["weights_hash"], "{fault}");
        assert!(rig.path("host").exists(), "{fault}");
        // None if the other worker was granted the fragment, too, and was faster.
        let summary = rig.summary();
        let latest = summary["failures"]["latest"].as_array().cloned().unwrap_or_default();
        assert!(latest.iter().all(|failure| failure["worker"] == latest[0]["worker"]), "{summary}");
    }
}

/// Lets one in 200 steps fail, in any slot: most leases of several slots, and some of one slot.
pub(crate) async fn frequent_transient_failures_do_not_end_run() {
    let calm = Rig::new();
    calm.train(0, &json!({}), &[]).await;
    for workers in [0, 2] {
        let rig = Rig::new();
        let (finished, _) = rig.train(workers, &json!({ "kind": "error", "every": 200, "once": "/" }), &[]).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        rig.check_ledger();
        assert_eq!(rig.summary()["weights_hash"], calm.summary()["weights_hash"]);
        assert!(!finished.stderr.contains("no more leases"), "{}", finished.stderr);
    }
}

pub(crate) async fn step_that_hangs_ends_run_with_its_slot() {
    let hangs = kind("hang").to_string();
    let sample = ["sample", "--num-workers", "2", "--num-envs", "4", "--env", "Faulty-v0", "--env-config", &hangs];
    let sample = [&sample[..], &["--rollout-fragment-length", "16", "--no-dashboard"]].concat();
    for command in ["train 0", "train 2", "sample"] {
        let rig = Rig::new();
        let run_dir = rig.path("run").display().to_string();
        let patience = ["--hung-worker-timeout", "1"];
        let ended = match command.split_once(' ') {
            Some((_, workers)) => rig.train(workers.parse().unwrap(), &kind("hang"), &patience).await,
            None => run(&[&sample[..], &patience, &["--run-dir", &run_dir]].concat()).await,
        };
        // The fragment of the 34th step begins with the second step of the third episode.
        let place = format!("Faulty-v0, slot {SLOT}, episode 3, step 2: no progress for");
        let per_try = LEASE + Duration::from_secs(1) + Duration::from_secs(5);
        assert_failed(&ended, &[&place, "5 attempts at this fragment have failed in a row"], 5 * per_try);
        rig.check_ledger();
    }
}

pub(crate) async fn environment_that_ends_its_worker_ends_run_with_its_slot() {
    for (fault, status) in [("exit", "exit status: 5"), ("abort", "signal: 6 (SIGABRT)")] {
        let rig = Rig::new();
        let place = format!("Faulty-v0, slot {SLOT}, episode 0, step 0: the worker's process ended ({status}");
        let config = kind(fault).to_string();
        let sample = ["sample", "--num-workers", "2", "--num-envs", "4", "--env", "Faulty-v0", "--env-config", &config];
        for ended in [rig.train(2, &kind(fault), &[]).await, run(&sample).await] {
            assert_failed(&ended, &[&place, "5 attempts at this fragment have failed in a row"], 2 * AT_ONCE);
        }
        rig.check_ledger();
    }
}

pub(crate) async fn environment_that_ends_its_worker_once_leaves_no_trace_in_weights() {
    let calm = Rig::new();
    calm.train(0, &json!({}), &[]).await;
    let rig = Rig::new();
    let config = json!({ "kind": "abort", "once": rig.path("once") });
    let (finished, _) = rig.train(2, &config, &[]).await;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    rig.check_ledger();
    assert_eq!(rig.summary()["weights_hash"], calm.summary()["weights_hash"]);
}

pub(crate) async fn failures_of_other_user_code_end_run() {
    let cases = [
        (vec!["--callbacks", "failing"], "episode 2, step 5: on_episode_step failed: no paper", "callback"),
        (vec!["--callbacks", "panicking"], "episode 2, step 5: panicked: no ink", "panic"),
        (vec!["--env", "FaultyPair-v0"], "episode 0, step 4: environment 0, agent 0: the observation", "invalid"),
        (vec!["--set", "remote_worker_envs=true"], "its process has ended with exit code 5", "error"),
        // While the state of an episode is saved: of lanes in lockstep, and of slots one by one.
        (vec!["--set", "seed=1"], "panicked: no memory", "panic"),
        (vec!["--set", "count_steps_by=agent_steps"], "panicked: no memory", "panic"),
    ];
    for (args, message, name) in cases {
        for workers in [0, 2] {
            let rig = Rig::new();
            let fault = match args[1] {
                "remote_worker_envs=true" => "exit",
                "FaultyPair-v0" => "length",
                "seed=1" | "count_steps_by=agent_steps" => "snapshot",
                _ => "",
            };
            let ended = rig.train(workers, &kind(fault), &args).await;
            assert_failed(&ended, &["slot 1, ", message], AT_ONCE);
            rig.check_ledger();
            assert_eq!(rig.summary()["failures"]["latest"][1]["kind"], name, "{}", rig.summary());
        }
    }
}

/// An environment that fails for itself is restarted where it does, by any worker.
pub(crate) async fn restarted_environment_continues() {
    let in_processes = [&RESTART[..], &["--set", "remote_worker_envs=true"]].concat();
    for (fault, settings) in [("error", &RESTART[..]), ("drawn", &RESTART), ("drawn", &in_processes)] {
        let mut hashes = BTreeSet::new();
        for workers in [0, 0, 1, 2, 2] {
            let rig = Rig::new();
            let (finished, _) = rig.train(workers, &kind(fault), settings).await;
            assert_eq!(finished.status.code(), Some(0), "{fault}, {settings:?}: {}", finished.stderr);
            rig.check_ledger();
            let summary = rig.summary();
            assert_eq!(summary["reproducible"], true, "{summary}");
            let failures = summary["failures"]["latest"].as_array().unwrap();
            for failure in failures {
                assert_eq!(failure["slot"], SLOT, "{failure}");
                let message = failure["message"].as_str().unwrap();
                assert!(message.starts_with("restarted, since it has failed twice here: "), "{failure}");
            }
            let logged = finished.stderr.matches(": restarted, since it has failed twice here: ").count() as u64;
            let count = summary["failures"]["count"].as_u64().unwrap();
            assert!(count > 0 && logged == count, "{count}, {}", finished.stderr);
            hashes.insert((summary["weights_hash"].to_string(), count));
        }
        assert_eq!(hashes.len(), 1, "{fault}, {settings:?}: {hashes:?}");
    }
}

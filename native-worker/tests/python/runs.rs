//! Runs of the program whose environments are Python's.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{
    self, Process,
    process::{Finished, children_of, kill},
};

/// Eight slots, whatever the workers.
fn args(workers: u32, run_dir: &Path, more: &[&str]) -> Vec<String> {
    let (workers, run_dir) = (workers.to_string(), run_dir.display().to_string());
    let args = ["train", "--env", "gym:CartPole-v1", "--seed", "1", "--hidden", "8", "--rollout-fragment-length", "16"];
    let more_args = ["--num-slots", "8", "--max-env-steps", "6400", "--no-dashboard", "--workers", &workers];
    let args = [&args[..], &more_args, &["--run-dir", &run_dir], more].concat();
    args.into_iter().map(String::from).collect()
}

fn summary(run_dir: &Path) -> Value {
    support::json(&std::fs::read_to_string(run_dir.join("summary.json")).unwrap())
}

fn iterations(run_dir: &Path) -> usize {
    std::fs::read_to_string(run_dir.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

async fn rollmesh(args: &[&str]) -> Finished {
    Process::start(args).finish().await
}

#[tokio::test]
async fn weights_are_the_same_for_any_workers_and_whichever_dies() {
    let directory = tempfile::tempdir().unwrap();
    let dir = |name: &str| -> PathBuf { directory.path().join(name) };
    let mut hashes = Vec::new();
    for workers in [0, 1, 2] {
        let run_dir = dir(&workers.to_string());
        Process::start(args(workers, &run_dir, &[])).finish_with(0).await;
        hashes.push(summary(&run_dir)["weights_hash"].clone());
    }
    let run_dir = dir("killed");
    let process = Process::start(args(2, &run_dir, &[]));
    support::until("some iterations", || iterations(&run_dir) >= 3).await;
    let is_worker = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("\0worker\0"))
    };
    // Besides the host of the hub itself.
    let workers: Vec<u32> = children_of(process.pid()).into_iter().filter(is_worker).collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
    let hosts = children_of(workers[0]);
    assert!(!hosts.is_empty());
    kill(workers[0]);
    process.finish_with(0).await;
    let killed = summary(&run_dir);
    hashes.push(killed["weights_hash"].clone());
    assert!(hashes[0].is_string() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    assert_eq!(killed["reproducible"], true, "{killed}");
    // The hosts of a dead worker end with it.
    support::until("the end of its hosts", || hosts.iter().all(|pid| support::process::has_ended(*pid))).await;

    // A checkpoint says which environment it wants, not that it may run here.
    let checkpoint = dir("1").display().to_string();
    let evaluate = ["evaluate", "--checkpoint", &checkpoint, "--episodes", "2", "--json"];
    let refused = rollmesh(&evaluate).await;
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    let reason = "the Python environment 'gym:CartPole-v1' may not run on this machine: start this program with";
    assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    let allowed = rollmesh(&[&evaluate[..], &["--allow-python", "gym:CartPole-v1"]].concat()).await;
    assert_eq!(support::json(&allowed.stdout)["episodes"].as_array().map(Vec::len), Some(2), "{}", allowed.stderr);
    let resume = ["train", "--resume", &checkpoint, "--max-env-steps", "6528", "--no-dashboard"];
    let refused = rollmesh(&resume).await;
    assert!(refused.status.code() == Some(2) && refused.stderr.contains(reason), "{}", refused.stderr);
    let resumed = rollmesh(&[&resume[..], &["--allow-python", "gym:*"]].concat()).await;
    assert_eq!(resumed.status.code(), Some(0), "{}", resumed.stderr);
}

#[tokio::test]
async fn samples_are_the_same_with_workers() {
    let sample =
        ["sample", "--env", "gym:CartPole-v1", "--num-envs", "8", "--env-steps", "800", "--seed", "3", "--json"];
    let alone = rollmesh(&sample).await;
    let hash = |finished: &Finished| support::json(&finished.stdout)["rollout_hash"].clone();
    assert!(hash(&alone).is_string(), "{}", alone.stdout);
    let workers = rollmesh(&[&sample[..], &["--num-workers", "2"]].concat()).await;
    assert_eq!(hash(&workers), hash(&alone), "{}", workers.stderr);
}

#[tokio::test]
async fn environments_in_processes_of_their_own_have_hosts_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("remote");
    let path = run_dir.display().to_string();
    let args = ["train", "--env", "gym:CartPole-v1", "--hidden", "8", "--no-dashboard", "--run-dir", &path];
    let more = ["--workers", "1", "--num-slots", "2", "--max-env-steps", "256", "--set", "remote_worker_envs=true"];
    Process::start([&args[..], &more].concat()).finish_with(0).await;
    assert_eq!(summary(&run_dir)["env_steps"], 256);
}

#[tokio::test]
async fn failure_ends_a_run_with_its_place_and_the_python_error() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run").display().to_string();
    let args = ["train", "--env", "py:lab:faulty", "--env-config", r#"{"fault": "raise"}"#, "--workers", "1"];
    let args = [&args[..], &["--num-slots", "2", "--no-dashboard", "--run-dir", &run_dir]].concat();
    let process = Process::start_with(args, |command| _ = command.env("PYTHONPATH", super::lab()));
    let finished = process.finish_with(1).await;
    for text in ["py:lab:faulty, slot ", ", episode 0, step 3: ", "KeyError: 'the key is lost'"] {
        assert!(finished.stderr.contains(text), "{}", finished.stderr);
    }
}

//! Runs of the program whose environments are Python's.

use super::{
    lab,
    matrix::{Run, summary},
};
use crate::support::{self, Process, process::Finished};

async fn rollmesh(args: &[&str]) -> Finished {
    Process::start(args).finish().await
}

#[tokio::test]
async fn weights_are_the_same_for_any_workers_hosts_and_deaths() {
    let directory = tempfile::tempdir().unwrap();
    let more = ["--max-env-steps", "6400", "--python-processes", "2"];
    Run { env: "gym:CartPole-v1", more: &more, python_path: "", slots: 8 }.check(directory.path()).await;

    // A checkpoint names its environment, but is no permission to run it.
    let checkpoint = directory.path().join("1").display().to_string();
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
async fn samples_are_the_same_with_workers_and_with_hosts() {
    let sample =
        ["sample", "--env", "gym:CartPole-v1", "--num-envs", "8", "--env-steps", "800", "--seed", "3", "--json"];
    let alone = rollmesh(&sample).await;
    let hash = |finished: &Finished| support::json(&finished.stdout)["rollout_hash"].clone();
    assert!(hash(&alone).is_string(), "{}", alone.stdout);
    for more in [["--num-workers", "2"], ["--python-processes", "3"]] {
        let more = rollmesh(&[&sample[..], &more].concat()).await;
        assert_eq!(hash(&more), hash(&alone), "{}", more.stderr);
    }
    // If rows cannot be in shared memory, they go through pipes.
    let folder = format!("{}/no_memory", lab());
    let piped = Process::start_with(sample, |command| _ = command.env("PYTHONPATH", folder)).finish().await;
    assert_eq!(hash(&piped), hash(&alone), "{}", piped.stderr);
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
    for (env, fault, place, error) in [
        ("py:lab:faulty", "raise", ", episode 0, step 3: ", "KeyError: 'the key is lost'"),
        // At the end of the first fragment.
        ("py:lab:simulated", "fails", ", episode 0, step 64: ", "RuntimeError: the simulator cannot tell its state"),
    ] {
        let run_dir = directory.path().join(fault).display().to_string();
        // The modules that the lab pretends to have are in no package.
        let config = format!(r#"{{"fault": "{fault}", "host_fingerprint": false}}"#);
        let args = ["train", "--env", env, "--env-config", &config, "--workers", "1", "--num-slots", "2"];
        let args = [&args[..], &["--no-dashboard", "--run-dir", &run_dir]].concat();
        let process = Process::start_with(args, |command| _ = command.env("PYTHONPATH", lab()));
        let finished = process.finish_with(1).await;
        for text in [&format!("{env}, slot "), place, error] {
            assert!(finished.stderr.contains(text), "{}", finished.stderr);
        }
    }
}

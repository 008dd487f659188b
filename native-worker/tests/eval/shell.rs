//! Evaluation workers with names, from the shell.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

/// Returns the program, with names of its own.
fn rollmesh(state: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
    command.args(args).env("ROLLMESH_STATE_DIR", state);
    command
}

pub(crate) fn evaluators_are_hosted_asked_and_listed_from_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    let finished = |args: &[&str]| {
        let output = rollmesh(dir.path(), args).output().unwrap();
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    let object = |args: &[&str]| {
        let (code, stdout, words) = finished(args);
        assert_eq!(code, Some(0), "{words}");
        serde_json::from_slice::<Value>(&stdout).unwrap()
    };
    #[rustfmt::skip]
    object(&[
        "train", "--env", "CartPole-v1", "--workers", "0", "--num-envs-per-worker", "4", "--rollout-fragment-length", "16",
        "--max-env-steps", "64", "--hidden", "8", "--run-dir", &run, "--no-dashboard", "--json",
    ]);
    let serve = ["evaluator", "serve", "judge", "--checkpoint", &run, "--num-envs", "2", "--json"];
    let mut serving = rollmesh(dir.path(), &serve).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!({ "name": "judge", "answers": true }));

    let ask = ["evaluator", "ask", "judge", "--checkpoint", &run, "--episodes", "3", "--json"];
    let answer = object(&ask);
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort_unstable();
    // The keys that other programs read.
    #[rustfmt::skip]
    assert_eq!(keys, [
        "deterministic", "env", "env_steps", "episode_len_mean", "episode_return_mean", "episode_return_std", "episodes", "faulty",
        "iteration", "name", "partial_return_mean", "trace", "unfinished", "weights_hash", "weights_version",
    ]);
    assert_eq!((&answer["name"], answer["episodes"].as_array().unwrap().len()), (&json!("judge"), 3));
    assert_eq!(answer["env"], "CartPole-v1");
    assert_eq!(object(&ask)["episodes"], answer["episodes"], "the same episodes each time");
    assert_eq!(
        object(&["evaluator", "list", "--json"]),
        json!({ "evaluators": [{ "name": "judge", "answers": true }] })
    );
    let (code, _, words) = finished(&serve);
    assert_eq!((code, words.contains("there is an evaluation worker 'judge' already")), (Some(2), true), "{words}");

    let (code, _, words) = finished(&["evaluator", "serve", "other", "--env", "CartPole-v9"]);
    assert_eq!((code, words.contains("there is no environment 'CartPole-v9'")), (Some(2), true), "{words}");
    // The same observations and actions, and another game.
    let policy = dir.path().join("run/policy.json");
    let other = fs::read_to_string(&policy).unwrap().replace("CartPole-v1", "CartPole-v0");
    fs::write(policy, other).unwrap();
    let _ = fs::remove_dir_all(dir.path().join("run/checkpoints"));
    let (code, _, words) = finished(&ask);
    assert_eq!((code, words.contains("judge evaluates in CartPole-v1")), (Some(2), true), "{words}");
    assert_eq!(object(&[&ask[..], &["--any-env"]].concat())["episodes"], answer["episodes"]);

    serving.kill().unwrap();
    serving.wait().unwrap();
    assert_eq!(object(&["evaluator", "list", "--json"]), json!({ "evaluators": [] }));
    let (code, _, words) = finished(&ask);
    assert_eq!((code, words.contains("there is no evaluation worker 'judge'")), (Some(2), true), "{words}");
}

//! Connections of the clients in Python and JavaScript that break, over TLS and without.

use std::process::Stdio;

use tokio::process::Command;

use super::program::{Program, folder};
use crate::support::{json, process::Signal, soon};

/// Lets a program play with a hub that samples without an end, and checks its output.
async fn play(command: &[&str], more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let config = folder().join("single.json");
    let args = ["sample", "--config", config.to_str().unwrap(), "--num-envs", "4", "--env-steps", "1000000"];
    let program = Program::start_in(&[&args[..], more].concat(), &state).await;
    let mut player = Command::new(command[0]);
    player.args(&command[1..]).args([&program.url, &program.token]).arg(program.fingerprint.as_deref().unwrap_or("-"));
    player.env("PYTHONPATH", folder().join("../../../examples/external"));
    player.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = soon("the end of the player", player.output()).await.unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "played", "{command:?}: {error}");
    program.process.signal(Signal::INT);
    program.process.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_reconnects_and_requests_several_episodes() {
    let script = folder().join("connection.py");
    let python = ["python3", "-X", "dev", "-W", "error", script.to_str().unwrap()];
    play(&python, &[]).await;
    play(&python, &["--tls-self-signed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_client_reconnects_and_requests_several_episodes() {
    let script = folder().join("connection.mjs");
    play(&["node", "--experimental-websocket", "--no-warnings", script.to_str().unwrap()], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_readme_are_those_of_a_world() {
    let readme = std::fs::read_to_string(folder().join("../../../examples/external/README.md")).unwrap();
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("world.toml");
    std::fs::write(&config, rest.split_once("```").unwrap().0).unwrap();
    let run_dir = directory.path().join("run").display().to_string();
    let args = ["train", "--config", config.to_str().unwrap(), "--no-dashboard", "--run-dir", &run_dir];
    let program = Program::start(&args).await;
    let show =
        "import json, sys; from rollmesh_client import Client; print(json.dumps(Client(*sys.argv[1:]).spaces['left']))";
    let mut client = Command::new("python3");
    client.args(["-c", show, &program.url, &program.token]);
    client.env("PYTHONPATH", folder().join("../../../examples/external")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = soon("the spaces", client.output()).await.unwrap();
    let spaces = json(&String::from_utf8_lossy(&output.stdout));
    let low = serde_json::json!([-1.0, -1.0, null, null, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!((&spaces["observation"]["low"], &spaces["action"]["n"]), (&low, &4.into()), "{output:?}");
    program.process.signal(Signal::INT);
    program.process.finish().await;
}

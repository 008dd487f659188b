//! Errors name the fix, end with the exit code of their kind, and show no token.

use super::HubProcess;
use crate::support::Process;

const TOKEN: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";
const COMMANDS: [&[&str]; 8] =
    [&["status"], &["workers"], &["scale", "1"], &["pause"], &["resume"], &["drain"], &["checkpoint"], &["stop"]];

async fn fails(args: &[&str], token: Option<&str>, code: i32, text: &str) {
    let end = Process::start_with(args, |command| {
        if let Some(token) = token {
            command.env("ROLLMESH_TOKEN", token);
        }
    });
    let end = end.finish_with(code).await;
    assert!(end.stderr.contains(text), "{args:?}: {}", end.stderr);
    assert!(!end.stderr.contains("5a5a") && !end.stdout.contains("5a5a"), "{args:?}: {}", end.stderr);
}

#[tokio::test]
async fn without_a_hub() {
    // No process listens on it: it was in use a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let hub = format!("ws://{free}");
    for command in COMMANDS {
        let args = [command, &["--hub", &hub]].concat();
        fails(&args, Some(TOKEN), 1, &format!("cannot reach a hub at {hub}: ")).await;
    }
}

#[tokio::test]
async fn worker_for_rllib_knows_its_environment_before_it_connects() {
    fails(&["worker", "--rllink", "127.0.0.2:1", "--env", "CartPol-v1"], None, 2, "CartPole-v1").await;
}

#[tokio::test]
async fn start_and_runs_without_a_hub() {
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let hub = format!("ws://{free}");
    let settings = ["--set", "env=CartPole-v1"];
    for command in [&["runs"][..], &[&["start"], &settings[..]].concat()] {
        let args = [command, &["--hub", &hub]].concat();
        fails(&args, Some(TOKEN), 1, &format!("cannot reach a hub at {hub}: ")).await;
    }
    // Errors in the settings are reported without a hub, too.
    let wrong = ["start", "--set", "env=CartPole-v1", "--set", "lr=1", "--hub", &hub];
    fails(&wrong, Some(TOKEN), 2, "lr").await;

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fails(&["runs", &path("none")], None, 2, "No such file").await;
    let listed = Process::start(["runs", directory.path().to_str().unwrap(), "--json"]).finish_with(0).await;
    assert_eq!(listed.stdout, "[]\n");
    let train = ["train", "--json", "--workers", "0", "--max-env-steps", "1", "--seed", "7", "--run-dir", &path("run")];
    Process::start(train).finish_with(0).await;
    let listed = Process::start(["runs", directory.path().to_str().unwrap(), "--json"]).finish_with(0).await;
    let runs = crate::support::json(&listed.stdout);
    assert_eq!(
        (runs.as_array().unwrap().len(), &runs[0]["state"], &runs[0]["seed"]),
        (1, &"finished".into(), &7.into())
    );
    assert_eq!(runs[0]["dir"], path("run"));
}

#[tokio::test]
async fn without_a_proper_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let path = file.to_str().unwrap();
    fails(&["status"], None, 2, "ROLLMESH_TOKEN is not set").await;
    fails(&["status"], Some("5a5a"), 2, "ROLLMESH_TOKEN: a token has 64 hexadecimal digits").await;
    fails(&["pause", "--token-file", path], Some(TOKEN), 2, "cannot read a token from ").await;
    std::fs::write(&file, "5a5a\n").unwrap();
    fails(&["pause", "--token-file", path], None, 2, "a token has 64 hexadecimal digits").await;

    let nowhere = directory.path().join("nowhere.json");
    for action in [&["list"][..], &["revoke", "01234567"]] {
        let args = [&["tokens"], action, &["--file", nowhere.to_str().unwrap()]].concat();
        fails(&args, None, 2, "there is no ").await;
    }

    let hub = HubProcess::start().await;
    let address = format!("http://{}/", hub.invitation.address);
    let idle = hub.succeed(&["status", "--json"]).await;
    let idle = crate::support::json(&idle);
    assert!(idle["env"].is_null() && idle["algo"].is_null() && idle["episode_return_mean"].is_null(), "{idle}");
    for command in COMMANDS {
        let args = [command, &["--hub", &address]].concat();
        let role = if ["status", "workers"].contains(&command[0]) { "viewer" } else { "operator" };
        fails(&args, Some(TOKEN), 2, &format!("the hub refused the token for the role {role}; ")).await;
    }
    // A worker's token is none of these.
    fails(&["status", "--hub", &address], Some(&hub.invitation.worker_token), 2, "the hub refused the token").await;
    std::fs::write(&file, &hub.invitation.operator_token).unwrap();
    Process::start(["status", "--hub", &address, "--token-file", path]).finish_with(0).await;
}

/// Checks a tunnel, whose address is not among those to which the hub answers.
#[tokio::test]
async fn behind_a_tunnel_the_worker_says_what_the_hub_needs() {
    let hub = HubProcess::start().await;
    let tunnel = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (tunnel.local_addr().unwrap(), hub.invitation.address.clone());
    let forward = tokio::spawn(async move {
        while let Ok((mut near, _)) = tunnel.accept().await {
            let mut far = tokio::net::TcpStream::connect(&behind).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
    });
    let args = ["status", "--hub", &format!("ws://{address}")];
    fails(&args, Some(&hub.invitation.operator_token), 1, "it answered 403 Forbidden").await;
    fails(&args, Some(&hub.invitation.operator_token), 1, "start it with --public-host HOST:PORT").await;
    forward.abort();
}

#[tokio::test]
async fn with_a_token_in_the_address() {
    for hub in [format!("http://127.0.0.1:1/#token={TOKEN}"), format!("ws://127.0.0.1:1/ws?token={TOKEN}")] {
        fails(&["status", "--hub", &hub], Some(TOKEN), 2, "leave the token out of --hub").await;
    }
    fails(&["status", "--hub", "127.0.0.1:1"], Some(TOKEN), 2, "the address of a hub is ws://HOST:PORT").await;
}

#[tokio::test]
async fn without_a_run() {
    let hub = HubProcess::start().await;
    let what = [
        ("pause", "there is no run to pause"),
        ("resume", "there is no run to resume"),
        ("drain", "there is no run to drain"),
        ("checkpoint", "there is no run to write a checkpoint of"),
        ("stop", "there is no run to stop"),
    ];
    for (command, reason) in what {
        let end = hub.command(&[command]).await;
        assert_eq!((end.status.code(), end.stderr), (Some(1), format!("error: {reason}")));
    }
    let end = hub.command(&["scale", "1000"]).await;
    assert_eq!(end.status.code(), Some(2), "{}", end.stderr);
}

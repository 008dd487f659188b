//! Environments that a hub, a peer or a file names do not run on a machine whose own command line has not named them.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, SecurityConfig},
    kernels::AUTO,
    train::{RunConfig, RunRequest},
};
use rollmesh_core::env::EnvRegistry;

use crate::support::{Process, soon};

const NAME: &str = "py:subprocess:Popen";

/// Starts a hub of a program with these environments.
pub(super) async fn hub(registry: &Registry) -> Hub {
    let config = HubConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        dashboard: false,
        assets: None,
        runs_dir: None,
        worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
        kernels: AUTO,
        external: None,
        allow_origins: Vec::new(),
        security: SecurityConfig::default(),
    };
    Hub::start(config, registry).await.unwrap()
}

#[tokio::test]
async fn worker_refuses_what_only_the_hub_names() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    // For the hub, the name is that of an environment of its own, as for a hub that means harm.
    let mut cart_pole = EnvRegistry::builtin().spec("CartPole-v1").unwrap();
    (cart_pole.name, cart_pole.settings) = (NAME.into(), None);
    let mut hub = hub(&Registry::builtin().with_env(cart_pole)).await;
    let address = hub.address().to_string();
    let token = hub.worker_token().to_hex();
    let mut workers = Vec::new();
    for allowed in ["", "gym:*,py:my_package.*"] {
        let args = ["worker", "--hub", &format!("ws://{address}"), "--allow-python", allowed].map(String::from);
        workers.push(Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", &token)));
    }
    let mut run = RunConfig::new(NAME).num_workers(0).num_envs(2).fcnet_hiddens(&[8]).stop_after(64);
    let touch = format!(r#"{{"args": ["touch", "{}"]}}"#, trace.display());
    run.rollout.env_config = touch.parse().unwrap();
    let request = RunRequest { remote_only: true, ..run.into() };
    let summary = hub.train(request).await.unwrap();
    let reason = format!("it cannot run this: the Python environment '{NAME}' may not run on this machine: start this");
    for process in &mut workers {
        let line = process.line("this worker cannot run the hub's run 1").await;
        assert!(line.contains(&reason), "{line}");
    }
    let notice = soon("the notice at the hub", async {
        loop {
            let text = hub.next_notice().await.expect("the hub continues").text;
            if text.contains("cannot run this") {
                return text;
            }
        }
    })
    .await;
    assert!(notice.contains(&reason), "{notice}");
    soon("the end of the run", summary).await.unwrap();
    assert!(!trace.exists());
    hub.shutdown().await;
}

#[tokio::test]
async fn hub_refuses_what_an_operator_names() {
    let mut hub = Process::start(["hub", "--listen", "127.0.0.1:0"]);
    let invitation = hub.invitation().await;
    let url = format!("ws://{}", invitation.address);
    let args = ["start", "--json", "--set", "num_workers=0", "--set", &format!("env={NAME}"), "--wait", "--hub", &url];
    let token = invitation.operator_token;
    let refused = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token)).finish().await;
    assert_ne!(refused.status.code(), Some(0));
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("may not run on this machine"), "{said}");
}

#[tokio::test]
async fn file_does_not_say_what_may_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    let trace = directory.path().join("trace");
    let environs = r#"{"ROLLMESH_ALLOW_PYTHON": "py:*", "ROLLMESH_PYTHON": "/bin/false"}"#;
    let text = format!(
        r#"{{"env": "{NAME}", "env_config": {{"args": ["touch", "{}"]}}, "extra_environs": {environs}}}"#,
        trace.display()
    );
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let run_dir = directory.path().join("run").display().to_string();
    for args in
        [&["train", "--config", &path, "--workers", "1", "--run-dir", &run_dir][..], &["sample", "--config", &path]]
    {
        let refused = Process::start(args).finish_with(2).await;
        assert!(refused.stderr.contains("may not run on this machine"), "{}", refused.stderr);
    }
    assert!(!trace.exists());
}

#[tokio::test]
async fn machine_without_gymnasium_says_so() {
    let sample = |args: &[&str]| {
        let args = [&["sample", "--env", "gym:CartPole-v1", "--num-envs", "1", "--env-steps", "1"], args].concat();
        Process::start_with(args, |command| _ = command.env_remove("VIRTUAL_ENV"))
    };
    let missing = sample(&["--python", "/nowhere/python3"]).finish_with(2).await;
    assert!(missing.stderr.contains("the Python interpreter /nowhere/python3 does not start"), "{}", missing.stderr);
    // `-S` leaves out everything that is installed.
    let directory = tempfile::tempdir().unwrap();
    let bare = directory.path().join("bare");
    std::fs::write(&bare, format!("#!/bin/sh\nexec {} -S \"$@\"\n", super::interpreter().display())).unwrap();
    std::fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let missing = sample(&["--python", &bare.display().to_string()]).finish_with(2).await;
    let texts = ["ModuleNotFoundError: No module named 'numpy'", "install gymnasium for"];
    assert!(texts.iter().all(|text| missing.stderr.contains(text)), "{}", missing.stderr);
}

//! Hosts whose environments compute other bits than those on the machine where a run began.

use rollmesh::{
    Registry, native,
    train::{RunConfig, RunRequest},
};
use rollmesh_core::run::ReplayMismatch;

use super::{PATIENT, lab, make, registry, same::reset, unasked};
use crate::support::{Process, soon};

#[tokio::test]
async fn worker_with_another_fingerprint_is_refused_and_both_are_named() {
    // So that it may run.
    registry();
    let hub = unasked::hub(&native(Registry::builtin())).await;
    let (address, token) = (hub.address().to_string(), hub.worker_token().to_hex());
    let worker = |shift: &str| {
        let args = ["worker", "--hub", &format!("ws://{address}"), "--allow-python", "py:lab"].map(String::from);
        Process::start_with(args, |command| {
            command.env("ROLLMESH_TOKEN", &token).env("PYTHONPATH", lab()).env("LAB_SHIFT", shift);
        })
    };
    let mut other = worker("1");
    let run = RunConfig::new("py:lab:shifted").num_workers(0).num_envs(2).fcnet_hiddens(&[8]).stop_after(64);
    let summary = hub.train(RunRequest { remote_only: true, ..run.into() }).await.unwrap();
    let line = other.line("this worker cannot run the hub's run 1").await;
    assert!(line.contains("py:lab:shifted may have other bits on this machine than where the run began"), "{line}");
    assert!(line.contains("gymnasium ") && line.matches("random episodes ").count() == 2, "{line}");
    let same = worker("0");
    let summary = soon("the end of the run", summary).await.unwrap();
    assert!(summary.env_steps >= 64 && summary.reproducible, "{summary:?}");
    hub.shutdown().await;
    drop((other, same));
}

/// Returns a run that only workers sample.
fn run(env: &str, config: &str) -> RunConfig {
    let mut run = RunConfig::new(env).num_workers(0).num_envs(2).fcnet_hiddens(&[8]).stop_after(64);
    run.rollout.env_config = config.parse().unwrap();
    run
}

#[tokio::test]
async fn worker_with_other_bits_samples_where_bits_may_differ() {
    registry();
    let hub = unasked::hub(&native(Registry::builtin())).await;
    let (address, token) = (hub.address().to_string(), hub.worker_token().to_hex());
    let args = ["worker", "--hub", &format!("ws://{address}"), "--allow-python", "py:lab"].map(String::from);
    let worker = Process::start_with(args, |command| {
        command.env("ROLLMESH_TOKEN", &token).env("PYTHONPATH", lab()).env("LAB_SHIFT", "1");
    });
    for (env, config, replay_mismatch) in [
        // It does not say that it is not deterministic, but shows it.
        ("py:lab:noisy", "{}", ReplayMismatch::Fail),
        ("py:lab:shifted", r#"{"host_fingerprint": false}"#, ReplayMismatch::Fail),
        ("py:lab:shifted", "{}", ReplayMismatch::Abandon),
    ] {
        let run = RunConfig { replay_mismatch, ..run(env, config) };
        let summary = hub.train(RunRequest { remote_only: true, ..run.into() }).await.unwrap();
        let summary = soon("the end of the run", summary).await.unwrap();
        assert!(summary.env_steps >= 64, "{env} {config}");
        let causes = summary.not_reproducible.join("; ");
        assert_eq!(causes.contains("the environment is opaque"), env == "py:lab:noisy", "{env}: {causes}");
    }
    hub.shutdown().await;
    drop(worker);
}

#[tokio::test]
async fn host_that_fails_while_it_finds_the_fingerprint_is_an_error() {
    registry();
    let hub = unasked::hub(&native(Registry::builtin())).await;
    let run = run("py:lab:faulty", r#"{"fault": "crash"}"#);
    let error = hub.train(RunRequest { remote_only: true, ..run.into() }).await.err().unwrap().to_string();
    for text in [
        "the host fingerprint of the environment: ",
        "py:lab:faulty: its Python process",
        "set host_fingerprint = false in env_config",
    ] {
        assert!(error.contains(text), "{error}");
    }
    hub.shutdown().await;
}

#[test]
fn host_computes_a_fingerprint_once() {
    for _ in 0..3 {
        let config = r#"{"host_fingerprint": "of another machine"}"#;
        let error = make("py:lab:numbered", config, 1, PATIENT).err().unwrap().to_string();
        assert!(error.contains("there it had of another machine"), "{error}");
    }
    let error = make("py:lab:numbered", r#"{"host_fingerprint": 7}"#, 1, PATIENT).err().unwrap().to_string();
    assert!(error.contains("host_fingerprint is 7: it is the fingerprint that a run has written, or false"), "{error}");
    // Four environments that were made in vain and two of the fingerprint.
    let mut env = make("py:lab:numbered", "{}", 1, PATIENT).unwrap();
    assert_eq!(reset(env.as_mut(), 0, 1), [7.0]);
}

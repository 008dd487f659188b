//! Hosts whose environments compute other bits than where a run began.

use rollmesh::{
    Registry, native,
    train::{RunConfig, RunRequest},
};

use super::{lab, registry, unasked};
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

//! A tab behind a network that fails.

use std::{fs, path::Path};

use rollmesh::control::{Control, ControlConfig, Trust};
use rollmesh_core::protocol::{Role, Token, WorkerState};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    DEADLINE,
    dashboard::Dashboard,
    determinism::{RUN, weights_hash, weights_of_run_without_a_tab},
    program::Program,
    proxy::{Blow, Proxy, Way, Weather},
};

/// What is late, repeated, lost or cut off on the way to and from a tab changes no weights, and a tab from which nothing is
/// heard is found by its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_tab_behind_a_network_that_fails_leaves_no_trace_in_the_weights() {
    let page = Dashboard::start().await;
    let directory = TempDir::new().expect("a directory");
    let expected = weights_of_run_without_a_tab(directory.path());

    let directory = TempDir::new().expect("a directory");
    let (proxy, run_dir) = (Proxy::start().await, directory.path().to_str().expect("a plain name"));
    let network = proxy.address.to_string();
    let args = ["--remote-only", "--run-dir", run_dir, "--public-host", &network];
    let mut program = Program::start("train", RUN.iter().chain(&args));
    let address = listens_at(directory.path());
    proxy.lead_to(address.parse().expect("an address"));
    page.go_to(program.url()).await;
    page.wait_for_phase("running").await;
    page.click("join").await;
    let tab = page.own_row().await;
    page.wait_for_steps_of(tab, 0).await;

    let (_, token) = program.url().split_once("#token=").expect("the page's token is an operator's");
    let config = ControlConfig {
        hub: format!("ws://{address}").parse().expect("an address"),
        token: Token::from_hex(token).expect("a token"),
        role: Role::Operator,
        trust: Trust::default(),
        patience: DEADLINE,
    };
    let mut hub = Control::connect(&config).await.expect("the hub is there");
    for blow in [Blow::Twice, Blow::Cut, Blow::ResetMidFrame, Blow::Replay] {
        assert!(proxy.hit(blow), "{blow:?}");
        goes_on(&mut hub).await;
    }
    let late = Way::Late(std::time::Duration::from_millis(20));
    proxy.set(Weather { up: late, down: late });
    goes_on(&mut hub).await;
    proxy.set(Weather { up: Way::Held, down: Way::Held });
    let is_hung = |hub: &Control| hub.workers().values().any(|row| row.state == WorkerState::Hung.to_wire());
    hub.until("the silent tab to be found", is_hung).await.expect("the hub is there");
    proxy.set(Weather::CLEAR);
    goes_on(&mut hub).await;
    hub.leave().await;
    assert!(program.ended().await.success(), "the run has used its steps up");
    assert_eq!(weights_hash(directory.path()), expected);
}

/// Waits for more updates, for which the tab has to sample.
async fn goes_on(hub: &mut Control) {
    let then = hub.status().iteration;
    hub.until("more updates", |hub| hub.status().iteration > then + 2).await.expect("the hub is there");
}

/// Where the hub of a run listens: what it prints is where the network lies.
fn listens_at(run_dir: &Path) -> String {
    let audit = fs::read_to_string(run_dir.join("audit.jsonl")).expect("a run has an audit log");
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).expect("lines of JSON"));
    let started = lines.into_iter().find(|line| line["event"] == "started").expect("it begins with the start");
    started["address"].as_str().expect("an address").into()
}

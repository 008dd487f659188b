//! Drawings of a hub's peers, workers and ledger on the page.

use rollmesh_core::{
    group::Ledger,
    protocol::{
        Message, Phase, WorkerState,
        message::{LedgerReport, LogLine, OtherPeers, RunStatus, WorkerLocation, WorkerLog, WorkerRow},
    },
};
use serde_json::json;

use super::{
    browser::DESKTOP,
    dashboard::Dashboard,
    made_hub::{MadeHub, bind, open},
};

/// The texts of all elements of a selector, without line breaks.
const TEXTS: &str = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent.trim())";

#[tokio::test(flavor = "multi_thread")]
async fn group_ledger_and_last_errors_are_drawn() {
    let page = Dashboard::start().await;
    let (listener, address) = bind().await;
    let hub = tokio::spawn(MadeHub::accept(listener));
    let _front = open(&page, address).await;
    let mut hub = hub.await.expect("the page connects");
    page.wait_for("connection", "data-state", "online").await;
    for message in messages() {
        hub.send(&message).await;
    }
    let texts = async |selector: &str| page.run(TEXTS, vec![json!(selector)]).await;

    // The parts of the ledger are as high as their numbers are large; small ones have no text, but a title.
    let parts = "return [...document.querySelectorAll('[data-testid=ledger-flow] g')].map(part => [
        part.dataset.part, part.querySelector('title').textContent, part.querySelector('text').textContent,
        part.querySelector('path').getBoundingClientRect().height > 0,
    ])";
    let wanted = json!([
        ["learned from", "learned from: 3,000 env steps", "learned from", true],
        ["outstanding", "outstanding: 1,000 env steps", "outstanding", true],
        ["expired", "expired: 4 env steps", "", true],
    ]);
    // The ledger is the last message.
    page.wait("the ledger is drawn", async || page.run(parts, vec![]).await == wanted).await;
    assert_eq!(page.text("ledger-balance").await.as_deref(), Some("balances"));

    let hosts = ["node-2 1 worker by slurm, 4 slots", "node-10 2 workers by slurm, 12 slots"];
    assert_eq!(texts("[data-testid='group-host'] .group-name").await, json!(hosts));
    let peers = ["evaluation worker judge", "launcher slurm, 3 workers", "relay rack"];
    assert_eq!(texts("[data-testid='group-peer']").await, json!(peers));
    assert_eq!(page.text("group-others").await.as_deref(), Some("Also connected: viewer dashboard."));
    assert_eq!(texts("[data-testid^='group-worker-']").await, json!(["4", "4", "8"]));
    let tone = page.attribute("group-worker-2", "data-tone").await;
    assert_eq!(tone.as_deref(), Some("bad"), "a worker that hangs");

    // Only the latest warning or error of a worker is in its row.
    let row = |worker: u32| format!("[data-worker='{worker}'] [data-testid='worker-last-error']");
    page.wait("the last error is shown", async || texts(&row(2)).await == json!(["Last: step 17 hangs"])).await;
    assert_eq!(texts(&row(1)).await, json!([]), "worker 1 has none");
    let title = page.attribute("group-worker-2", "title").await.unwrap_or_default();
    assert!(title.contains("last error: step 17 hangs"), "{title}");

    page.assert_accessible("a group with launchers and relays").await;
    page.browser.screenshot("drawings", DESKTOP).await;
    page.assert_quiet_console().await;
}

/// Three workers of a launcher on two hosts, of which one hangs, and the hub's other peers.
fn messages() -> Vec<Message> {
    let hosts = [(1, "node-10", 4, WorkerState::Sampling), (2, "node-2", 4, WorkerState::Hung)];
    let workers = hosts.into_iter().chain([(3, "node-10", 8, WorkerState::Sampling)]);
    let of_worker = |(worker, host, slots, state): (u32, &str, u32, WorkerState)| {
        let place = WorkerLocation { worker, host: host.into(), launcher: "slurm".into() };
        let row = WorkerRow {
            worker,
            kind: "native".into(),
            name: format!("worker-{worker}"),
            state: state.to_wire(),
            slots,
            ..WorkerRow::default()
        };
        [Message::WorkerLocation(place), Message::WorkerRow(row)]
    };
    let log = |worker, lines: &[(u8, &str)]| {
        let line = |(level, text): &(u8, &str)| LogLine { seconds: 0, level: *level, text: (*text).into() };
        Message::WorkerLog(WorkerLog { worker, first: 0, lines: lines.iter().map(line).collect() })
    };
    let others = [
        (7, "launcher", "slurm"),
        (8, "relay", "rack"),
        (9, "evaluation worker", "judge"),
        (10, "viewer", "dashboard"),
        (1_000, "operator", "this page"),
    ];
    let mut ledger =
        Ledger { granted: 4_004, committed: 3_000, consumed: 3_000, outstanding: 1_000, ..Ledger::default() };
    ledger.expired.timed_out = 4;
    let run = RunStatus { run: 1, phase: Phase::Running.to_wire(), num_slots: 16, ..RunStatus::default() };
    let states = [
        Message::RunStatus(run),
        Message::OtherPeers(OtherPeers::new(others.into_iter())),
        log(1, &[(0, "joined")]),
        log(2, &[(0, "joined"), (1, "is slow"), (2, "step 17 hangs"), (0, "is asked again")]),
        Message::LedgerReport(LedgerReport { ledger, ..LedgerReport::default() }),
    ];
    workers.flat_map(of_worker).chain(states).collect()
}

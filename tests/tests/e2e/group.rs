//! A worker group in a program: a tab as its worker, and its dashboard.

use std::{net::TcpListener, time::Duration};

use fantoccini::Locator;
use rollmesh::{
    WorkerGroup,
    hub::SecurityConfig,
    worker_group::{ForEachWorker, ParallelSample, Placement, WorkerGroupBuilder},
};
use rollmesh_core::{
    batch::AnyBatch,
    worker::{RolloutConfig, WorkerCommand},
};
use serde_json::json;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{
    DEADLINE, LOOK_AGAIN, behind::check_samples_under_faults, browser::Browser, built, dashboard::Dashboard,
    proxy::Proxy,
};

/// A script that starts a Web Worker of the page, which joins at the given address.
const JOIN: &str = "const [url, token, done] = arguments;
    window.tab = new Worker('./worker.js', { type: 'module' });
    window.tab.onerror = event => done(event.message);
    window.tab.onmessage = ({ data }) => {
        if (data.state === 'ready') window.tab.postMessage({ url, token, name: 'tab' });
        else if (data.worker > 0 || data.state === 'ended') done(data.reason ?? '');
    };";

fn group(placement: Placement) -> WorkerGroup {
    builder(placement).build().expect("a group")
}

fn builder(placement: Placement) -> WorkerGroupBuilder {
    let config = RolloutConfig { seed: 7, num_envs: 4, ..RolloutConfig::new("CartPole-v1") };
    WorkerGroup::builder(config).placement(placement).num_workers(1).page(built("ROLLMESH_DIST"))
}

/// Takes three samples from the group's worker.
fn samples(group: &mut WorkerGroup) -> Vec<AnyBatch> {
    let sample = |_| group.synchronous_parallel_sample(ParallelSample::default()).expect("a sample");
    (0..3).flat_map(sample).collect()
}

/// Opens the link that invites a tab.
async fn join(browser: &Browser, group: &WorkerGroup) {
    browser.client.goto(&group.invite().expect("a page")).await.expect("the group's page");
}

/// Waits until the tab shows that it is the first worker. Its Web Worker posts its status only now and then.
async fn shows_its_steps(browser: &Browser) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let note = browser.client.find(Locator::Css("[role=status]")).await.expect("the tab shows its status");
        let note = note.text().await.expect("a text");
        if note.starts_with("This tab is worker 1 of 127.0.0.1:") && note.contains(" env steps") {
            return;
        }
        assert!(Instant::now() < deadline, "{note}");
        sleep(LOOK_AGAIN).await;
    }
}

/// Joins at the group's address from a page of another address, to which no faults are injected.
async fn join_from(browser: &Browser, group: &WorkerGroup, page: &str) {
    browser.client.goto(page).await.expect("the group's page");
    let token = group.worker_token().expect("a hub").to_hex();
    let socket = format!("{}/ws", group.worker_url().expect("a hub"));
    let said = browser.client.execute_async(JOIN, vec![json!(socket), json!(token)]).await;
    assert_eq!(said.expect("the script runs"), "", "the tab has joined");
}

/// Calls a group on a thread where blocking is allowed.
async fn with<T: Send + 'static>(
    mut group: WorkerGroup,
    work: impl FnOnce(&mut WorkerGroup) -> T + Send + 'static,
) -> (WorkerGroup, T) {
    let work = spawn_blocking(move || {
        let done = work(&mut group);
        (group, done)
    });
    work.await.expect("it does not panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_is_a_worker_of_a_group_like_any_other() {
    let browser = Browser::start().await;
    let in_process = spawn_blocking(|| samples(&mut group(Placement::Threads))).await.expect("samples");
    let of_tabs = spawn_blocking(|| group(Placement::Remote)).await.expect("a group");
    join(&browser, &of_tabs).await;
    let wait = |group: &mut WorkerGroup| group.wait_for_workers(1, DEADLINE).expect("a group");
    let (of_tabs, is_there) = with(of_tabs, wait).await;
    assert!(is_there);
    let (of_tabs, in_tab) = with(of_tabs, samples).await;
    assert!(in_tab == in_process, "the same bits");
    shows_its_steps(&browser).await;
    let page = browser.client.current_url().await.expect("an address");
    assert_eq!(page.fragment(), None, "the token does not stay in the address");

    // The tab leaves the page, and joins again with the stored token.
    browser.client.goto("about:blank").await.expect("an empty page");
    let (of_tabs, ()) = with(of_tabs, |group| {
        let remote = ForEachWorker::remote().timeout(Duration::from_secs(5));
        let deadline = Instant::now() + DEADLINE;
        while group.num_healthy_remote_workers() == 1 {
            assert!(Instant::now() < deadline, "the tab that was left is still a worker");
            group.foreach_worker_with(&remote, WorkerCommand::Ping).expect("a group");
        }
    })
    .await;
    browser.client.goto(page.as_str()).await.expect("the group's page");
    let (of_tabs, is_there) = with(of_tabs, wait).await;
    assert!(is_there && of_tabs.num_remote_worker_restarts() == 1);
    let (of_tabs, again) = with(of_tabs, samples).await;
    assert_eq!(again.len(), 3);
    spawn_blocking(move || drop(of_tabs)).await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_behind_a_network_that_fails_samples_the_same() {
    let (browser, proxy) = (Browser::start().await, Proxy::start().await);
    let security = SecurityConfig { hosts: vec![proxy.address.to_string()], ..SecurityConfig::default() };
    // The group's public address is the proxy's, so the test chooses the port to which the proxy leads.
    let listen = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let behind = move || builder(Placement::Remote).security(security).listen(listen).build().expect("a group");
    let (behind, calm) = spawn_blocking(move || (behind(), group(Placement::Threads))).await.expect("groups");
    proxy.lead_to(listen);
    join_from(&browser, &behind, &format!("http://{listen}")).await;
    spawn_blocking(move || check_samples_under_faults(behind, calm, &proxy)).await.expect("samples");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_has_a_dashboard_with_its_workers() {
    let page = Dashboard::start().await;
    let build = || builder(Placement::Threads).num_workers(2).dashboard(true).build().expect("a group");
    let group = spawn_blocking(build).await.expect("it does not panic");
    page.go_to(&group.dashboard_url().expect("a dashboard")).await;
    page.wait_for("connection", "data-state", "online").await;
    let (group, batches) = with(group, samples).await;
    let steps: usize = batches.iter().map(AnyBatch::env_steps).sum();
    page.wait("the samples are counted", async || {
        let rows = page.workers_of_kind("thread").await;
        rows.len() == 2 && rows.iter().all(|row| row.env_steps == steps as u64 / 2)
    })
    .await;
    assert_eq!(page.text("worker-reason").await.as_deref(), Some("worker 1 of the group: no call is under way"));
    assert_eq!(page.attribute("phase", "data-phase").await.as_deref(), Some("idle"));
    // The program adds and removes workers: the page does not ask for what is refused, and says why.
    for button in ["add-worker", "remove-worker"] {
        page.wait_for(button, "disabled", "").await;
        let why = page.attribute(button, "title").await.unwrap_or_default();
        assert!(why.starts_with("The program decides how many workers its group has"), "{button}: {why}");
    }
    assert!(page.text("group-note").await.is_some_and(|note| note.contains("there are no runs")));
    let shown = ["worker-slots", "worker-lag", "start-run"].map(|id| page.text(id));
    for part in shown {
        assert_eq!(part.await, None, "a group has no leases, no weights of a run, and no runs");
    }
    let marks = "return [...document.querySelectorAll(\"[data-testid^='group-worker-']\")].map(one => one.textContent)";
    let ids: Vec<String> = page.workers().await.keys().map(u64::to_string).collect();
    assert_eq!(page.run(marks, vec![]).await, json!(ids), "marks have the ids of their workers");
    page.assert_accessible("a group's dashboard").await;
    spawn_blocking(move || drop(group)).await.expect("it stops");
}

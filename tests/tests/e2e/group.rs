//! A tab as the worker of a group in a program.

use std::time::Duration;

use rollmesh::{
    WorkerGroup,
    worker_group::{ForEachWorker, ParallelSample, Placement},
};
use rollmesh_core::{
    batch::AnyBatch,
    worker::{RolloutConfig, WorkerCommand},
};
use serde_json::json;
use tokio::task::spawn_blocking;

use super::{DEADLINE, browser::Browser, built};

/// Lets a Web Worker of the page join.
const JOIN: &str = "const [url, token, done] = arguments;
    window.tab = new Worker('./rollmesh_worker_loader.js', { type: 'module' });
    window.tab.onerror = event => done(event.message);
    window.tab.onmessage = ({ data }) => {
        if (data.state === 'ready') window.tab.postMessage({ url, token, name: 'tab' });
        else if (data.worker > 0 || data.state === 'ended') done(data.reason ?? '');
    };";

fn group(placement: Placement) -> WorkerGroup {
    let config = RolloutConfig { seed: 7, num_envs: 4, ..RolloutConfig::new("CartPole-v1") };
    let builder = WorkerGroup::builder(config).placement(placement).num_workers(1).page(built("ROLLMESH_DIST"));
    builder.build().expect("a group")
}

/// Three samples of the group's worker.
fn samples(group: &mut WorkerGroup) -> Vec<AnyBatch> {
    let sample = |_| group.synchronous_parallel_sample(ParallelSample::default()).expect("a sample");
    (0..3).flat_map(sample).collect()
}

async fn join(browser: &Browser, group: &WorkerGroup) {
    let url = group.worker_url().expect("a hub");
    let token = group.worker_token().expect("a hub").to_hex();
    browser.client.goto(&url.replace("ws://", "http://")).await.expect("the group's page");
    let socket = format!("{url}/ws");
    let said = browser.client.execute_async(JOIN, vec![json!(socket), json!(token)]).await;
    assert_eq!(said.expect("the script runs"), "", "the tab has joined");
}

/// Lets a group work where blocking is allowed.
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

    // The tab goes, and another one takes its place.
    browser.client.goto("about:blank").await.expect("an empty page");
    let (of_tabs, ()) = with(of_tabs, |group| {
        let remote = ForEachWorker::remote().timeout(Duration::from_secs(5));
        while group.num_healthy_remote_workers() == 1 {
            group.foreach_worker_with(&remote, WorkerCommand::Ping).expect("a group");
        }
    })
    .await;
    join(&browser, &of_tabs).await;
    let (of_tabs, is_there) = with(of_tabs, wait).await;
    assert!(is_there && of_tabs.num_remote_worker_restarts() == 1);
    let (of_tabs, again) = with(of_tabs, samples).await;
    assert_eq!(again.len(), 3);
    spawn_blocking(move || drop(of_tabs)).await.expect("it stops");
}

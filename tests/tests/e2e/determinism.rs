//! The weights of a run do not depend on the workers that sampled for it.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::{
    dashboard::Dashboard,
    program::{Program, summary, train_alone},
};

/// A run that is long enough on any machine for a tab to join and to leave before the end.
const RUN: [&str; 6] = ["--num-envs-per-worker", "12", "--max-env-steps", "400000", "--seed", "5"];

#[tokio::test(flavor = "multi_thread")]
async fn tab_among_the_workers_changes_no_weights() {
    let page = Dashboard::start().await;
    let directory = TempDir::new().expect("a directory");
    let expected = weights_of_run_without_a_tab(directory.path());

    let directory = TempDir::new().expect("a directory");
    let mut program = run_with_a_tab(&page, directory.path()).await;
    assert!(program.ended().await.success(), "the run has used its steps up");
    assert_eq!(weights_hash(directory.path()), expected, "with a tab to the end");

    let directory = TempDir::new().expect("a directory");
    let mut program = run_with_a_tab(&page, directory.path()).await;
    let client = &page.browser.client;
    let tab = client.window().await.expect("the tab has a handle");
    // The browser would exit with its last tab.
    client.new_window(true).await.expect("another tab");
    client.switch_to_window(tab).await.expect("the first one is still there");
    client.close_window().await.expect("it closes");
    assert!(program.is_running(), "the tab was closed in the middle of the run");
    assert!(program.ended().await.success(), "the run has used its steps up");
    assert_eq!(weights_hash(directory.path()), expected, "with a tab that was closed in the middle");
}

/// Starts a run, and returns when a tab has done env steps for it alongside a native worker.
async fn run_with_a_tab(page: &Dashboard, directory: &Path) -> Program {
    let directory = directory.to_str().expect("a plain name");
    // Without local workers the run waits for the tab.
    let program = Program::start("train", RUN.iter().chain(&["--remote-only", "--run-dir", directory]));
    page.go_to(program.url()).await;
    page.wait_for_phase("running").await;
    page.click("join").await;
    let tab = page.own_row().await;
    page.wait_for_steps_of(tab, 0).await;
    page.click("pause").await;
    page.wait_for_phase("paused").await;
    page.click("add-worker").await;
    page.wait("a native worker has joined", async || page.workers_of_kind("native").await.len() == 1).await;
    let before = page.workers().await;
    page.click("resume").await;
    page.wait("both have done more env steps", async || {
        let now = page.workers().await;
        before.iter().all(|(id, row)| now.get(id).is_some_and(|now| now.env_steps > row.env_steps))
    })
    .await;
    program
}

fn weights_of_run_without_a_tab(directory: &Path) -> Value {
    train_alone(&[&RUN[..], &["--workers", "1"]].concat(), directory);
    weights_hash(directory)
}

fn weights_hash(directory: &Path) -> Value {
    let hash = summary(directory)["weights_hash"].clone();
    assert!(hash.is_string(), "the summary has a hash");
    hash
}

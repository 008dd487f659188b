//! Runs that are started and stopped on the page.

use super::{browser::DESKTOP, dashboard::Dashboard, program::Program};

#[tokio::test(flavor = "multi_thread")]
async fn runs_start_and_stop_on_the_page() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.go_to(hub.url()).await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("idle").await;

    // The page names a field with an invalid value, and no run starts.
    page.fill("start-num_workers", "65").await;
    page.click("start-run").await;
    page.wait("the field is named", async || {
        page.text("start-error").await.is_some_and(|error| error.contains("num_workers is 65"))
    })
    .await;

    start_endless_run(&page, "7").await;
    let name = page.text("run-name").await.unwrap_or_default();
    assert!(name.contains("CartPole-v1") && name.contains("seed 7"), "the header shows {name:?}");

    // Another run waits for the first one, and can be removed.
    page.click("start-another").await;
    page.fill("start-seed", "9").await;
    page.click("start-run").await;
    let waits = async || page.text("run-2").await.is_some_and(|row| row.contains("seed 9") && row.contains("place 1"));
    page.wait("the second run waits", waits).await;
    page.browser.screenshot("queued", DESKTOP).await;
    page.click("remove-run").await;
    page.wait("the second run is removed", async || page.text("run-2").await.is_none()).await;

    // Stopping takes two clicks, of which the first can be cancelled.
    page.click("stop").await;
    page.click("stop-cancel").await;
    let steps = page.number("kpi-env-steps").await;
    page.wait_for_more("kpi-env-steps", steps).await;
    stop(&page).await;

    start_endless_run(&page, "8").await;
    drain(&page).await;
    page.assert_quiet_console().await;
}

async fn start_endless_run(page: &Dashboard, seed: &str) {
    page.fill("start-seed", seed).await;
    page.fill("start-num_workers", "1").await;
    page.fill("start-stop.episode_return_mean", "1000").await;
    page.fill("start-stop.env_steps", "1,000,000,000").await;
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", 0).await;
}

async fn drain(page: &Dashboard) {
    page.click("stop").await;
    page.click("drain").await;
    page.wait_for_phase("drained").await;
    assert_eq!(page.number("ledger-outstanding").await, 0);
    assert_eq!(page.number("kpi-env-steps").await, page.number("ledger-committed").await, "all of it was learned from");
}

async fn stop(page: &Dashboard) {
    page.click("stop").await;
    page.click("stop-confirm").await;
    page.wait_for_phase("stopped").await;
}

//! The functions of the form, and runs in the hub's directory.

use std::fs;

use tempfile::TempDir;

use super::{browser::DESKTOP, dashboard::Dashboard, program::Program};

/// The selector of the first run of the list.
const SAVED: &str = "[data-testid^='saved-CartPole']";

/// A script that selects this run for comparison.
const COMPARE: &str = "document.querySelector(\"[data-testid^='compare-CartPole']\").click()";

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_found_and_saved_runs_cloned_resumed_and_deleted() {
    let page = Dashboard::start().await;
    let runs = TempDir::new().expect("a directory");
    let hub = Program::start("hub", ["--runs-dir".as_ref(), runs.path().as_os_str()]);
    page.go_to(hub.url()).await;
    page.wait_for("connection", "data-state", "online").await;

    find_settings(&page).await;
    start(&page).await;
    stop(&page).await;

    // The form takes the settings of an earlier run.
    page.wait("there is another form", async || page.text("start-form").await.is_some()).await;
    assert_eq!(page.value("start-seed").await, "");
    page.click("clone-run").await;
    page.wait("the form has the run's settings", async || page.value("start-seed").await == "7").await;
    assert_eq!(page.value("start-stop.env_steps").await, "1000000000");
    page.browser.screenshot("form", DESKTOP).await;
    page.click("start-reset").await;
    page.wait("the form is as at first", async || page.value("start-seed").await.is_empty()).await;

    page.click("saved-runs").await;
    let state =
        async || page.run(&format!("return document.querySelector(\"{SAVED}\")?.textContent ?? ''"), vec![]).await;
    let says = async |what: &str| state().await.as_str().is_some_and(|text| text.contains(what));
    page.wait("the run is listed", async || says("stopped").await).await;
    page.click("saved-clone").await;
    page.wait("the form has its settings", async || page.value("start-seed").await == "7").await;
    // The page shows its curves alongside those of the hub's run.
    page.run(COMPARE, vec![]).await;
    let legend = async || {
        page.run("return document.querySelector(\"[data-testid='chart-return'] .legend\")?.textContent ?? ''", vec![])
            .await
    };
    page.wait("it is compared", async || legend().await.as_str().is_some_and(|text| text.contains("run CartPole")))
        .await;
    page.run(COMPARE, vec![]).await;
    page.click("saved-resume").await;
    page.wait_for_phase("running").await;
    page.wait("it is resumed", async || says("running").await).await;
    stop(&page).await;
    page.click("saved-refresh").await;
    page.wait("it has stopped", async || says("stopped").await).await;

    // Deleting takes two clicks, of which the first can be cancelled.
    page.click("saved-delete").await;
    page.click("saved-delete-cancel").await;
    page.click("saved-delete").await;
    page.browser.screenshot("saved-runs", DESKTOP).await;
    page.click("saved-delete-confirm").await;
    page.wait("it is removed", async || state().await == "").await;
    assert_eq!(fs::read_dir(runs.path()).expect("the directory").count(), 0);
    page.assert_quiet_console().await;
}

/// Finds settings by their description, names invalid ones, and resets changed ones.
async fn find_settings(page: &Dashboard) {
    let is_shown = async |id: &str| {
        let script = "return document.querySelector(arguments[0])?.offsetParent != null";
        page.run(script, vec![super::dashboard::selector(id).into()]).await == true
    };
    page.fill("start-search", "batch size").await;
    page.wait("others are left out", async || !is_shown("start-seed").await).await;
    assert!(is_shown("start-train_batch_size").await, "a setting below `All settings` is found");
    page.fill("start-train_batch_size", "many").await;
    page.wait_for("start-train_batch_size", "aria-invalid", "true").await;
    assert!(page.text("start-error").await.is_some_and(|error| error.contains("train_batch_size is \"many\"")));
    page.click("start-reset-train_batch_size").await;
    page.wait("nothing is wrong", async || page.text("start-error").await.is_none_or(|error| error.is_empty())).await;
    page.fill("start-search", " ").await;
    page.wait("all are there again", async || is_shown("start-seed").await).await;
    // A preset replaces everything but the seed.
    page.fill("start-seed", "5").await;
    page.fill("start-num_envs", "3").await;
    page.choose("start-preset", "Pendulum-v1 with ppo").await;
    page.wait("its environment is chosen", async || page.value("start-env").await == "Pendulum-v1").await;
    assert_eq!((page.value("start-seed").await.as_str(), page.value("start-num_envs").await.as_str()), ("5", ""));
    page.click("start-reset").await;
    page.wait("everything is reset", async || page.value("start-seed").await.is_empty()).await;
    assert_eq!(page.value("start-env").await, "", "the default");
}

async fn start(page: &Dashboard) {
    for (field, text) in [("seed", "7"), ("num_workers", "1"), ("stop.env_steps", "1,000,000,000")] {
        page.fill(&format!("start-{field}"), text).await;
    }
    page.fill("start-stop.episode_return_mean", "1000").await;
    page.click("start-only-changed").await;
    page.wait("changed ones are counted", async || {
        page.text("start-changed")
            .await
            .is_some_and(|text| text.contains("changed (3)") || text.contains("changed (4)"))
    })
    .await;
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", 0).await;
}

async fn stop(page: &Dashboard) {
    page.click("stop").await;
    page.click("stop-confirm").await;
    page.wait_for_phase("stopped").await;
}

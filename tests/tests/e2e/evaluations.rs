//! The evaluations of a run, as its dashboard shows them.

use fantoccini::Locator;
use serde_json::json;
use tempfile::TempDir;

use super::{
    browser::DESKTOP,
    dashboard::{Dashboard, selector},
    program::Program,
};

#[tokio::test(flavor = "multi_thread")]
async fn evaluation_of_a_run_is_shown_on_every_page() {
    let page = Dashboard::start().await;
    let directory = TempDir::new().expect("a directory");
    let run_dir = directory.path().to_str().expect("a plain name");
    // The run would take a day.
    let run = ["--workers", "1", "--num-envs-per-worker", "4", "--max-env-steps", "10000000000", "--run-dir", run_dir];
    let program =
        Program::start("train", run.iter().chain(&["--evaluation-interval", "2", "--evaluation-episodes", "1"]));
    page.go_to(program.url()).await;
    page.wait_for("connection", "data-state", "online").await;

    page.wait("evaluations have a curve", async || points(&page).await >= 2).await;
    watch(&page, "Latest evaluation").await;
    let slot = page.browser.client.find(Locator::Css(&selector("live-slot"))).await.expect("it is there");
    assert!(!slot.is_enabled().await.expect("it can be asked"), "a slot is not what is shown");
    page.browser.screenshot("evaluations", DESKTOP).await;

    // The view changes back to the slot, and to the evaluation again.
    page.choose("live-source", "Slot").await;
    page.wait("the slot is back", async || caption(&page).await.contains("slot 0")).await;
    let before = points(&page).await;
    page.reload().await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait("the curve is back", async || points(&page).await >= before).await;
    watch(&page, "Best evaluation").await;
    page.assert_quiet_console().await;

    // The evaluations stay when the run has ended, and the program has exited.
    page.click("stop").await;
    page.click("stop-confirm").await;
    page.wait_for_phase("stopped").await;
    watch(&page, "Latest evaluation").await;
    let [slow, fast] = [two_steps_ms(&page, "2/s").await, two_steps_ms(&page, "100/s").await];
    assert!(slow > 700.0 && fast < slow / 2.0, "two steps at 2 and at 100 a second take {slow} ms and {fast} ms");
    page.choose("live-source", "Slot").await;
    page.wait("the slot's last steps are played", async || caption(&page).await.contains("slot 0")).await;
}

/// Returns the number of points of the line, which does not exist before the first.
async fn points(page: &Dashboard) -> u64 {
    let points = page.attribute("legend-evaluations", "data-points").await;
    points.and_then(|points| points.parse().ok()).unwrap_or(0)
}

async fn caption(page: &Dashboard) -> String {
    page.text("live-caption").await.unwrap_or_default()
}

/// Chooses a speed. Returns the milliseconds from one change of the shown step to the second one after it.
async fn two_steps_ms(page: &Dashboard, speed: &str) -> f64 {
    page.choose("live-speed", speed).await;
    let measure = "const [canvas, done] = arguments, changes = [];
        const observer = new MutationObserver(() => {
            if (changes.push(performance.now()) < 3) return;
            observer.disconnect();
            done(changes[2] - changes[0]);
        });
        observer.observe(document.querySelector(canvas), { attributeFilter: ['data-row'] });";
    let measured = page.browser.client.execute_async(measure, vec![json!(selector("live-canvas"))]).await;
    measured.expect("the steps change").as_f64().expect("milliseconds")
}

/// Switches to an evaluation, and waits until it plays.
async fn watch(page: &Dashboard, source: &str) {
    page.wait("there is one", async || page.text("live-source").await.is_some_and(|all| all.contains(source))).await;
    page.choose("live-source", source).await;
    page.wait("an evaluation is shown", async || caption(page).await.contains("evaluation")).await;
    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("its picture changes", async || page.attribute("live-canvas", "data-row").await != row).await;
    assert!(caption(page).await.contains("evaluation"));
}

//! The charts as tools: zooming, other axes, links, and runs that are compared.

use fantoccini::{
    Locator,
    actions::{InputSource as _, MOUSE_BUTTON_LEFT, MouseActions, PointerAction},
};

use super::{
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    program::Program,
};

#[tokio::test(flavor = "multi_thread")]
async fn charts_are_zoomed_and_runs_are_compared() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.go_to(hub.url()).await;
    page.wait_for("connection", "data-state", "online").await;
    for (seed, num_envs) in [("1", "4"), ("2", "4"), ("3", "8")] {
        learn(&page, seed, num_envs).await;
    }

    compare(&page).await;
    zoom(&page).await;
    page.browser.screenshot("charts-light", DESKTOP).await;

    // The link restores everything, also after a reload.
    page.reload().await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait("the runs are compared again", async || has_median(&page).await).await;
    assert_eq!(page.attribute("chart-whole", "disabled").await, None, "a part is shown");
    assert_eq!(page.value("chart-x").await, "iteration");

    page.browser.prefer_colours("dark").await;
    page.click("more-curves").await;
    page.browser.screenshot("charts-dark", DESKTOP).await;
    page.browser.emulate(PHONE).await;
    let width = "return document.documentElement.scrollWidth <= window.innerWidth";
    assert_eq!(page.run(width, vec![]).await, true, "nothing is wider than a phone");
    page.browser.screenshot("charts-phone", PHONE).await;
    page.browser.emulate(DESKTOP).await;

    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    canvas.send_keys("0").await.expect("it takes keys");
    page.wait_for("chart-whole", "disabled", "").await;
    drag(&page).await;
    page.assert_quiet_console().await;
}

/// A mouse zooms into the part that it drags over, and a double click shows everything.
async fn drag(page: &Dashboard) {
    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    let to = |x| PointerAction::MoveToElement { element: canvas.clone(), duration: None, x, y: 0.0 };
    let (down, up) =
        (PointerAction::Down { button: MOUSE_BUTTON_LEFT }, PointerAction::Up { button: MOUSE_BUTTON_LEFT });
    let mouse = || MouseActions::new("mouse".into());
    let dragged = mouse().then(to(-100.0)).then(down.clone()).then(to(100.0)).then(up.clone());
    page.browser.client.perform_actions(dragged).await.expect("there is a mouse");
    page.wait("a part is shown", async || page.attribute("chart-whole", "disabled").await.is_none()).await;
    let clicked = mouse().then(down.clone()).then(up.clone()).then(down).then(up);
    page.browser.client.perform_actions(clicked).await.expect("there is a mouse");
    page.wait_for("chart-whole", "disabled", "").await;
}

async fn learn(page: &Dashboard, seed: &str, num_envs: &str) {
    page.fill("start-seed", seed).await;
    page.fill("start-num_workers", "1").await;
    page.fill("start-num_envs", num_envs).await;
    page.fill("start-stop.episode_return_mean", "1000").await;
    page.fill("start-stop.env_steps", "20000").await;
    page.click("start-run").await;
    let has_begun = async || page.text("run-name").await.is_some_and(|name| name.contains(&format!("seed {seed}")));
    page.wait("it has begun", has_begun).await;
    page.wait_for_phase("finished").await;
}

/// The runs with the first two seeds are one line, next to the current one.
async fn compare(page: &Dashboard) {
    page.click("compare-1").await;
    page.wait("run 1 is a line", async || page.text("legend-run 1").await.is_some()).await;
    page.click("compare-2").await;
    page.wait("seeds are grouped", async || has_median(page).await).await;
    let settings = page.text("comparison").await.unwrap_or_default();
    assert!(settings.contains("num_envs") && settings.contains("seed"), "{settings}");
    assert!(!settings.contains("num_workers"), "equal settings are left out: {settings}");
}

async fn has_median(page: &Dashboard) -> bool {
    let points = page.attribute("legend-median of runs 1, 2", "data-points").await;
    points.is_some_and(|points| points != "0")
}

async fn zoom(page: &Dashboard) {
    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    page.choose("chart-x", "iteration").await;
    assert_eq!(page.attribute("chart-whole", "disabled").await.as_deref(), Some(""), "everything is shown");
    canvas.send_keys("++").await.expect("it takes keys");
    let is_enabled = async || page.attribute("chart-whole", "disabled").await.is_none();
    page.wait("a part is shown", is_enabled).await;
    let hash = async || page.run("return location.hash", vec![]).await.as_str().unwrap_or_default().to_owned();
    page.wait("the address has it", async || hash().await.contains("chart.window=")).await;
    let hash = hash().await;
    assert!(hash.contains("chart.x=iteration") && hash.contains("chart.runs=1%2C2"), "{hash}");
    page.click("chart-return-png").await;
    page.click("chart-csv").await;
}

fn canvas() -> String {
    format!("{} canvas", selector("chart-return"))
}

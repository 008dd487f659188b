//! Hosts, logs, rates of workers and fragments on the page, and the page's accessibility.

use serde_json::json;

use super::{
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    program::Program,
};

const RATES: &str = "chart-steps_per_s_of_workers";

#[tokio::test(flavor = "multi_thread")]
async fn workers_have_hosts_logs_and_rates_and_a_fragment_is_shown() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.go_to(hub.url()).await;
    page.wait_for("connection", "data-state", "online").await;
    start(&page).await;

    let has = async |id: &str, text: &str| page.text(id).await.is_some_and(|found| found.contains(text));
    page.wait("the worker's version is shown", async || has("worker-build", "rollmesh ").await).await;
    page.wait("all are on one host", async || page.text("system-count").await.as_deref() == Some("1")).await;
    page.wait("it is measured", async || has("system", "Memory").await).await;
    page.click("worker-log").await;
    page.wait("the log has its beginning", async || has("log-lines", "joined: local-").await).await;

    page.click("more-curves").await;
    let lines = async || page.run("return document.querySelectorAll(arguments[0]).length", vec![json!(legend())]).await;
    page.wait("both workers are lines", async || lines().await == 2).await;
    page.click_at(&legend()).await;
    let pressed = "return document.querySelector(arguments[0])?.getAttribute('aria-pressed')";
    page.wait("a line is hidden", async || page.run(pressed, vec![json!(legend())]).await == "false").await;
    let has_line =
        "return document.querySelector(\"[data-testid='worker-sparkline'] path\").getAttribute('d').length > 10";
    page.wait("rates are drawn", async || page.run(has_line, vec![]).await == true).await;

    page.click("fragment-show").await;
    page.wait("a fragment is shown", async || has("fragment-what", "rows, made by worker ").await).await;
    let number = async || page.text("fragment-what").await.unwrap_or_default();
    let latest = number().await;
    page.fill("fragment-slot", "1").await;
    page.choose("fragment-back", "2 before").await;
    page.click("fragment-show").await;
    page.wait("an earlier one of another slot is", async || number().await.contains("of slot 1:")).await;
    assert_ne!(number().await, latest);
    page.choose("fragment-column", "action_logp").await;
    let bars = "return document.querySelectorAll(\"[data-testid='fragment-histogram'] tbody tr\").length";
    page.wait("it has a distribution", async || page.run(bars, vec![]).await == 12).await;
    assert!(has("fragment-cuts", "after row ").await && has("fragment-rows", "obs").await);

    // The policy's output in the shown step, which the user can choose.
    page.wait("the agent's step is shown", async || has("live-agents", "Probability").await).await;
    page.click("live-play").await;
    let step = async || page.attribute("live-canvas", "data-row").await;
    let seek = "const range = document.querySelector(arguments[0]); range.value = 3;
        range.dispatchEvent(new Event('input', { bubbles: true }))";
    page.run(seek, vec![json!(selector("live-step"))]).await;
    page.wait("step 3 is shown", async || step().await.as_deref() == Some("3")).await;

    // The drawing of the group, with the link for joining.
    let marks = "return document.querySelectorAll(\"[data-testid^='group-worker-']\").length";
    page.wait("both workers are drawn", async || page.run(marks, vec![]).await == 2).await;
    page.click("invite").await;
    page.click("invite-worker").await;
    page.wait("there is a command", async || page.text("invitation").await.is_some()).await;
    let command = page.value("invitation").await;
    let words: Vec<&str> = command.split_whitespace().collect();
    let [token, "rollmesh", "worker", "--hub", address] = words[..] else { panic!("{command}") };
    assert!(token.starts_with("ROLLMESH_TOKEN=") && address.starts_with("ws://127.0.0.1:"), "{command}");
    work_elsewhere(&page).await;
    page.choose("log-of", "the audit").await;
    page.wait("the audit log is shown", async || has("log-lines", "token_made").await).await;
    page.assert_accessible("the audit log and an invitation").await;
    invite(&page, "invite-operator", false).await;
    invite(&page, "invite-viewer", true).await;

    page.browser.client.execute("document.activeElement.blur()", vec![]).await.expect("it loses the focus");
    page.press('?').await;
    page.wait_for("shortcuts", "open", "").await;
    page.assert_accessible("the keys of the page").await;
    page.click("shortcuts-close").await;
    page.browser.emulate(PHONE).await;
    page.click("shortcuts-show").await;
    let fits = "const sheet = document.querySelector(arguments[0]); return sheet.scrollWidth <= sheet.clientWidth";
    assert_eq!(page.run(fits, vec![json!(selector("shortcuts"))]).await, true, "the sheet is as wide as the screen");
    page.click("shortcuts-close").await;
    page.assert_quiet_console().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_can_be_used_by_people_with_disabilities() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.go_to(hub.url()).await;
    page.wait_for("connection", "data-state", "online").await;
    page.assert_accessible("a hub without a run").await;
    start(&page).await;
    for folded in ["more-curves", "saved-runs", "start-another"] {
        page.click(folded).await;
    }
    page.click("start-more").await;
    page.click("fragment-show").await;
    page.wait("a fragment is shown", async || page.text("fragment-what").await.is_some()).await;
    page.click("stop").await;
    for (screen, size) in [("desktop", DESKTOP), ("phone", PHONE)] {
        page.browser.emulate(size).await;
        page.assert_accessible(&format!("all views on a {screen}")).await;
        let width = "return document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(page.run(width, vec![]).await, true, "nothing is wider than a {screen}");
        for theme in ["light", "dark"] {
            page.browser.prefer_colours(theme).await;
            page.browser.screenshot(&format!("views-{theme}-{screen}"), size).await;
        }
    }
}

/// Opens the link that makes a browser's tab a worker and nothing else.
async fn work_elsewhere(page: &Dashboard) {
    let links = "return document.querySelectorAll(\"[data-testid='invitation']\")[1].value";
    let link = page.run(links, vec![]).await.as_str().expect("a link").to_owned();
    let client = &page.browser.client;
    let tab = client.window().await.expect("the tab has a handle");
    let other = client.new_window(true).await.expect("another tab").handle;
    client.switch_to_window(other).await.expect("the other one is there");
    client.goto(&link).await.expect("the page loads");
    let note = "return document.querySelector('[role=status]')?.textContent ?? ''";
    let is_working =
        async || page.run(note, vec![]).await.as_str().is_some_and(|text| text.starts_with("This tab is worker "));
    page.wait("the tab is a worker", is_working).await;
    client.close_window().await.expect("it closes");
    client.switch_to_window(tab).await.expect("the first one is still there");
}

/// Creates a link for another browser, and opens it: a viewer's page shows its role and cannot stop the run, an
/// operator's can.
async fn invite(page: &Dashboard, button: &str, is_viewer: bool) {
    let before = page.value("invitation").await;
    page.click(button).await;
    page.wait("there is another invitation", async || page.value("invitation").await != before).await;
    let link = page.value("invitation").await;
    let client = &page.browser.client;
    let tab = client.window().await.expect("the tab has a handle");
    let other = client.new_window(true).await.expect("another tab").handle;
    client.switch_to_window(other).await.expect("the other one is there");
    page.go_to(&link).await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("running").await;
    if is_viewer {
        page.wait_for("banner", "data-kind", "viewer").await;
        page.wait_for("stop", "disabled", "").await;
    } else {
        assert_eq!(page.attribute("banner", "data-kind").await, None);
        page.wait("it can stop the run", async || page.attribute("stop", "disabled").await.is_none()).await;
    }
    client.close_window().await.expect("it closes");
    client.switch_to_window(tab).await.expect("the first one is still there");
}

fn legend() -> String {
    format!("[data-testid='{RATES}'] .legend-entry")
}

async fn start(page: &Dashboard) {
    for (field, text) in [("num_workers", "2"), ("stop.episode_return_mean", "1000"), ("stop.env_steps", "1000000000")]
    {
        page.fill(&format!("start-{field}"), text).await;
    }
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", 0).await;
}

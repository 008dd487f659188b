//! A training run with its dashboard, from the start to the end.

use fantoccini::key::Key;
use serde_json::json;
use tempfile::TempDir;

use super::{
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    program::{Program, summary},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_training_run_is_watched_joined_and_controlled() {
    let page = Dashboard::start().await;
    let directory = TempDir::new().expect("a directory");
    let run_dir = directory.path().to_str().expect("a plain name");
    // The run would take a day.
    let run = ["--workers", "2", "--num-envs-per-worker", "8", "--max-env-steps", "10000000000", "--seed", "1"];
    let mut program = Program::start("train", run.iter().chain(&["--run-dir", run_dir]));
    page.go_to(program.url()).await;

    watch(&page).await;
    join(&page).await;
    scale_the_tab(&page).await;
    pause_and_resume(&page).await;
    change_workers(&page).await;
    scale(&page).await;
    checkpoint(&page).await;
    leave(&page).await;
    change_theme(&page).await;
    use_a_phone(&page).await;
    page.assert_quiet_console().await;

    // The program was started for this run, and exits with it.
    page.click("stop").await;
    page.click("stop-confirm").await;
    assert_eq!(program.ended().await.code(), Some(3), "stopped short of a goal");
    assert_eq!(summary(directory.path())["solved"], false);
}

async fn watch(page: &Dashboard) {
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("running").await;
    let url = page.browser.client.current_url().await.expect("it has one");
    assert_eq!(url.fragment(), None, "the token stays out of the URL");
    page.wait("both local workers are there", async || page.workers_of_kind("native").await.len() == 2).await;
    for (worker, row) in page.workers().await {
        page.wait_for_steps_of(worker, row.env_steps).await;
    }

    let steps = page.number("kpi-env-steps").await;
    page.wait_for_more("kpi-env-steps", steps).await;
    for chart in ["return", "steps-per-s", "episode-len", "policy-loss", "vf-loss", "entropy", "kl"] {
        let points = async || page.points(chart).await;
        let before = points().await;
        page.wait(&format!("the curve {chart} grows"), async || points().await > before).await;
    }
    page.wait("the return has risen", async || {
        let mean = value(page.text("kpi-return").await);
        let first = value_at_first_point(page).await;
        matches!((mean, first), (Some(mean), Some(first)) if mean > 2.0 * first)
    })
    .await;

    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("the environment moves", async || page.attribute("live-canvas", "data-row").await != row).await;
    let is_drawn = "const canvas = document.querySelector(arguments[0]);
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return data.some(byte => byte !== 0)";
    for id in ["live-canvas", "chart-return"] {
        let canvas = [format!("canvas{}", selector(id)), format!("{} canvas", selector(id))].join(",");
        assert_eq!(page.run(is_drawn, vec![json!(canvas)]).await, true, "{id} shows something");
    }
    page.run("document.activeElement.blur()", vec![]).await;
    page.browser.screenshot("light", DESKTOP).await;
}

/// Returns the return at the start of the curve, read by keyboard.
async fn value_at_first_point(page: &Dashboard) -> Option<f64> {
    let canvas = format!("{} canvas", selector("chart-return"));
    page.run("document.querySelector(arguments[0]).focus()", vec![json!(canvas)]).await;
    page.press(Key::Home).await;
    let value = value(page.text("chart-return-value").await);
    page.press(Key::Escape).await;
    value
}

fn value(text: Option<String>) -> Option<f64> {
    text?.parse().ok()
}

/// Makes the tab a worker, with the keyboard alone.
async fn join(page: &Dashboard) {
    page.run("document.activeElement?.blur()", vec![]).await;
    let has_focus = async || page.run(FOCUSED, vec![]).await == "join";
    for _ in 0..60 {
        page.press(Key::Tab).await;
        if has_focus().await {
            break;
        }
    }
    assert!(has_focus().await, "the Tab key comes to the button");
    let outline = page.run("return getComputedStyle(document.activeElement).outlineStyle", vec![]).await;
    assert!(outline.is_string() && outline != "none", "the focus is visible: {outline}");
    page.press(Key::Enter).await;

    let tab = page.own_row().await;
    page.wait_for_steps_of(tab, 0).await;
    page.wait_for_more("tab-env-steps", 0).await;
    let (in_table, here) = (page.workers().await[&tab].env_steps, page.number("tab-env-steps").await);
    page.wait_for_steps_of(tab, in_table).await;
    page.wait_for_more("tab-env-steps", here).await;
    page.browser.screenshot("joined", DESKTOP).await;
}

const FOCUSED: &str = "return document.activeElement?.dataset.testid ?? null";

/// Starts and ends Web Workers of the tab, each of which is a separate worker.
async fn scale_the_tab(page: &Dashboard) {
    let tabs = async || page.workers_of_kind("browser").await;
    let one = tabs().await;
    page.click("tab-more").await;
    page.wait("the tab is two workers", async || tabs().await.len() == 2).await;
    let second = tabs().await.into_iter().find(|row| row.id != one[0].id).expect("another id");
    page.wait_for_steps_of(second.id, 0).await;
    page.wait("both rows are this tab's", async || tabs().await.iter().all(|row| row.is_this_tab)).await;
    page.browser.screenshot("tab-workers", DESKTOP).await;
    page.click("tab-fewer").await;
    page.wait("the first one stays", async || tabs().await.iter().map(|row| row.id).eq([one[0].id])).await;
    page.wait("the card counts it", async || page.number("tab-workers").await == 1).await;
}

async fn pause_and_resume(page: &Dashboard) {
    page.click("pause").await;
    page.wait_for_phase("paused").await;
    // Leases in progress are finished.
    page.wait("nothing is outstanding", async || page.number("ledger-outstanding").await == 0).await;
    // The learner has used all of them.
    let is_learned = async || page.number("kpi-env-steps").await == page.number("ledger-committed").await;
    page.wait("all committed env steps count", is_learned).await;
    page.stays("no env step in a pause", async || page.number("kpi-env-steps").await).await;
    let mut parts = 0;
    for part in ["committed", "superseded", "rejected", "expired", "outstanding"] {
        parts += page.number(&format!("ledger-{part}")).await;
    }
    let granted = page.number("ledger-granted").await;
    assert!(granted > 0, "env steps were granted");
    assert_eq!(parts, granted, "every granted env step went somewhere");

    let steps = page.number("kpi-env-steps").await;
    page.click("resume").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", steps).await;
}

async fn change_workers(page: &Dashboard) {
    let natives = page.workers_of_kind("native").await;
    let [removed, kept] = &natives[..] else { panic!("two native workers: {natives:?}") };
    let row = format!("{}[data-worker='{}']", selector("worker-row"), removed.id);
    page.click_at(&format!("{row} {}", selector("remove-worker"))).await;
    page.wait("its row goes", async || !page.workers().await.contains_key(&removed.id)).await;
    page.wait_for_steps_of(kept.id, kept.env_steps).await;

    page.click("add-worker").await;
    page.wait("a new row comes", async || page.workers_of_kind("native").await.len() == 2).await;
    let ids: Vec<u64> = page.workers_of_kind("native").await.iter().map(|row| row.id).collect();
    let new = ids.into_iter().find(|id| *id != kept.id).expect("one of the two is new");
    assert_ne!(new, removed.id, "ids are not used again");
    page.wait_for_steps_of(new, 0).await;

    page.click_at(&format!("{}[data-worker='{new}'] {}", selector("worker-row"), selector("restart-worker"))).await;
    page.wait("its row goes", async || !page.workers().await.contains_key(&new)).await;
    page.wait("another process has its place", async || page.workers_of_kind("native").await.len() == 2).await;
    let ids: Vec<u64> = page.workers_of_kind("native").await.iter().map(|row| row.id).collect();
    page.wait_for_steps_of(ids.into_iter().find(|id| *id != kept.id).expect("it is new"), 0).await;
}

/// Adds and removes workers by the plus and minus buttons, and checks the messages that follow.
async fn scale(page: &Dashboard) {
    page.wait("two local workers", async || page.number("local-workers").await == 2).await;
    page.click("add-worker").await;
    page.wait("three local workers", async || page.number("local-workers").await == 3).await;
    page.click("remove-local-worker").await;
    page.wait("two rows again", async || page.workers_of_kind("native").await.len() == 2).await;
    assert_eq!(page.number("local-workers").await, 2);
    assert_eq!(page.text("ledger-balance").await.as_deref(), Some("balances"));
}

async fn checkpoint(page: &Dashboard) {
    page.click("checkpoint").await;
    // All messages are closed by one script, since they disappear by themselves after a few seconds.
    let close = "const toasts = [...document.querySelectorAll(arguments[0])];
        const written = toasts.find((toast) => toast.textContent.includes('A checkpoint was written.'));
        written?.querySelector(arguments[1]).click();
        return Boolean(written)";
    let arguments = vec![json!(selector("toast")), json!(selector("toast-close"))];
    page.wait("a checkpoint", async || page.run(close, arguments.clone()).await == true).await;
    let is_closed = async || page.text("toast").await.is_none_or(|text| !text.contains("A checkpoint was written."));
    page.wait("its message is closed", is_closed).await;
}

async fn leave(page: &Dashboard) {
    page.click("leave").await;
    page.wait("no tab is among the workers", async || page.workers_of_kind("browser").await.is_empty()).await;
    page.wait("it can join again", async || page.text("join").await.is_some()).await;
    // The tab starts workers for all cores at once, if there are several.
    let cores = page.run("return navigator.hardwareConcurrency", vec![]).await.as_u64().expect("a number");
    if cores > 1 {
        page.click("join-all").await;
        let tabs = async || page.workers_of_kind("browser").await;
        page.wait("every core is a worker", async || tabs().await.len() as u64 == cores).await;
        page.click("leave").await;
        page.wait("all have left", async || tabs().await.is_empty()).await;
    }
    let steps = page.number("kpi-env-steps").await;
    page.wait_for_more("kpi-env-steps", steps).await;
}

async fn change_theme(page: &Dashboard) {
    let background = async || page.run("return getComputedStyle(document.body).backgroundColor", vec![]).await;
    let light = background().await;
    page.click("theme-toggle").await;
    page.wait("the page is dark", async || background().await != light).await;
    let dark = background().await;
    page.reload().await;
    // The token has survived the restart as well.
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("running").await;
    assert_eq!(background().await, dark, "the choice is kept");
    page.wait("the curve is back", async || page.points("return").await > 10).await;
    page.browser.screenshot("dark", DESKTOP).await;
    page.click("theme-toggle").await;
    page.wait("the page is light again", async || background().await == light).await;
}

async fn use_a_phone(page: &Dashboard) {
    page.browser.emulate(PHONE).await;
    let width = "return Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)";
    page.wait("the page is as wide as the phone", async || page.run(width, vec![]).await == PHONE.0).await;
    let is_reachable = "const button = document.querySelector(arguments[0]);
        button.scrollIntoView({ block: 'center', behavior: 'instant' });
        const { left, right, top, bottom } = button.getBoundingClientRect();
        const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
        return left >= 0 && right <= arguments[1] && button.contains(hit)";
    for id in ["theme-toggle", "pause", "add-worker", "stop", "join", "live-slot"] {
        let reach = async || page.run(is_reachable, vec![json!(selector(id)), json!(PHONE.0)]).await == true;
        page.wait(&format!("{id} can be touched"), reach).await;
    }
    page.browser.screenshot("phone", PHONE).await;
    page.click("pause").await;
    page.wait_for_phase("paused").await;
    page.click("resume").await;
    page.wait_for_phase("running").await;
    page.browser.emulate(DESKTOP).await;
}

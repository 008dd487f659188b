//! The functions of charts: zooming, other axes, links, and the comparison of runs.

use std::time::Duration;

use fantoccini::{
    Locator,
    actions::{
        Actions, InputSource as _, KeyAction, KeyActions, MOUSE_BUTTON_LEFT, MouseActions, PointerAction, WheelAction,
        WheelActions,
    },
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    LOOK_AGAIN,
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    program::Program,
};

/// The time without a change of the page's address after which a gesture has ended; during one the address changes
/// every 300 ms.
const SETTLED: Duration = Duration::from_millis(700);

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
    assert_eq!((page.value("chart-x").await, page.value("chart-smoothing").await), ("iteration".into(), "15".into()));
    assert_eq!(pressed(&page).await, "false", "the median is still hidden");
    let checked = "return [...arguments].map(one => document.querySelector(one).checked)";
    let boxes = ["chart-log-x", "chart-log-y"].map(|id| json!(selector(id))).to_vec();
    assert_eq!(page.run(checked, boxes).await, json!([false, true]));

    page.click_at(&format!("{} button", selector("legend-median of runs 1, 2"))).await;
    page.wait("the line is shown", async || pressed(&page).await == "true").await;

    page.browser.prefer_colours("dark").await;
    page.click("more-curves").await;
    page.browser.screenshot("charts-dark", DESKTOP).await;
    page.browser.emulate(PHONE).await;
    let width = "return document.documentElement.scrollWidth <= window.innerWidth";
    assert_eq!(page.run(width, vec![]).await, true, "nothing is wider than a phone");
    page.browser.screenshot("charts-phone", PHONE).await;
    pan_and_pinch(&page).await;
    page.browser.emulate(DESKTOP).await;

    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    canvas.send_keys("0").await.expect("it takes keys");
    page.wait_for("chart-whole", "disabled", "").await;
    drag(&page).await;
    page.assert_quiet_console().await;
}

/// Pans with one finger, zooms with two, and does both with keys.
async fn pan_and_pinch(page: &Dashboard) {
    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    // Each finger moves from the first fraction of the chart's width to the second.
    let touch = async |fingers: &[(f64, f64)]| {
        let place = "const canvas = document.querySelector(arguments[0]);
            canvas.scrollIntoView({ block: 'center', behavior: 'instant' });
            const { x, y, width, height } = canvas.getBoundingClientRect();
            return [x, y + height / 2, width]";
        let place = page.run(place, vec![json!(self::canvas())]).await;
        let [x, y, width] = [0, 1, 2].map(|index| place[index].as_f64().expect("pixels"));
        let at = |part: f64| (x + width * part, y);
        let fingers: Vec<_> = fingers.iter().map(|(from, to)| [at(*from), at(*to)]).collect();
        page.browser.touch(&fingers).await;
    };
    let width = |(low, high): (f64, f64)| high - low;

    let first = window(page).await;
    touch(&[(0.6, 0.3)]).await;
    let second = moved_from(page, first).await;
    assert!(second.0 > first.0 && is_near(width(second), width(first)), "{first:?}, then {second:?}");
    touch(&[(0.45, 0.3), (0.55, 0.7)]).await;
    let third = moved_from(page, second).await;
    assert!(width(third) < 0.8 * width(second), "{second:?}, then {third:?}");
    for (arrow, is_right) in [("\u{e012}", false), ("\u{e014}", true)] {
        let before = window(page).await;
        canvas.send_keys(&format!("\u{e008}{arrow}")).await.expect("it takes keys");
        let after = moved_from(page, before).await;
        assert!((after.0 > before.0) == is_right && is_near(width(after), width(before)), "{before:?}, then {after:?}");
    }
}

/// Waits until the shown range has changed and stays the same. Returns the new one.
async fn moved_from(page: &Dashboard, before: (f64, f64)) -> (f64, f64) {
    page.wait("another part is shown", async || window(page).await != before).await;
    settled(page).await
}

/// Waits until the shown range stays the same. Returns it.
async fn settled(page: &Dashboard) -> (f64, f64) {
    page.wait("the address has the part", async || hash(page).await.contains("chart.window=")).await;
    let (mut last, mut since) = (window(page).await, Instant::now());
    while since.elapsed() < SETTLED {
        sleep(LOOK_AGAIN).await;
        let now = window(page).await;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Returns the shown range of x, from the page's address.
async fn window(page: &Dashboard) -> (f64, f64) {
    let hash = hash(page).await;
    let window = hash.split("chart.window=").nth(1).and_then(|rest| rest.split('&').next());
    let (low, high) = window.and_then(|window| window.split_once("..")).unwrap_or_else(|| panic!("{hash}"));
    (low.parse().expect("a number"), high.parse().expect("a number"))
}

fn is_near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 1e-3 * wanted.abs()
}

async fn hash(page: &Dashboard) -> String {
    page.run("return location.hash", vec![]).await.as_str().unwrap_or_default().to_owned()
}

/// Zooms with the mouse into the part that it drags over, pans with Shift, zooms with the wheel, and shows everything by a
/// double click.
async fn drag(page: &Dashboard) {
    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    let to = |x| PointerAction::MoveToElement { element: canvas.clone(), duration: None, x, y: 0.0 };
    let (down, up) =
        (PointerAction::Down { button: MOUSE_BUTTON_LEFT }, PointerAction::Up { button: MOUSE_BUTTON_LEFT });
    let mouse = || MouseActions::new("mouse".into());
    let dragged = mouse().then(to(-100.0)).then(down.clone()).then(to(100.0)).then(up.clone());
    page.browser.client.perform_actions(dragged).await.expect("there is a mouse");
    page.wait("a part is shown", async || page.attribute("chart-whole", "disabled").await.is_none()).await;

    // With Shift it drags the curve along: to the left, and back. A tick of the keyboard has one of the mouse.
    let mut shown = settled(page).await;
    let width = |(low, high): (f64, f64)| high - low;
    let no_time = Duration::ZERO;
    for (from, till) in [(60.0, -60.0), (-60.0, 60.0)] {
        let shift = KeyActions::new("keyboard".into()).then(KeyAction::Down { value: '\u{e008}' });
        let held = (0..4).fold(shift, |keys, _| keys.pause(no_time)).then(KeyAction::Up { value: '\u{e008}' });
        let drag = mouse().pause(no_time).then(to(from)).then(down.clone()).then(to(till)).then(up.clone());
        page.browser.client.perform_actions(Actions::from(held).and(drag)).await.expect("there are mouse and keyboard");
        let next = moved_from(page, shown).await;
        assert!((next.0 > shown.0) == (till < from) && is_near(width(next), width(shown)), "{shown:?}, then {next:?}");
        shown = next;
    }

    // The wheel zooms a chart that has the focus, which a click gives it.
    for (delta_y, is_closer) in [(-100, true), (100, false)] {
        let place = "const { x, y, width, height } = document.querySelector(arguments[0]).getBoundingClientRect();
            return [Math.round(x + width / 2), Math.round(y + height / 2)]";
        let place = page.run(place, vec![json!(self::canvas())]).await;
        let [x, y] = [0, 1].map(|index| place[index].as_i64().expect("pixels"));
        let turn = WheelAction::Scroll { duration: None, x, y, delta_x: 0, delta_y };
        let turned = WheelActions::new("wheel".into()).then(turn);
        page.browser.client.perform_actions(turned).await.expect("there is a wheel");
        let next = moved_from(page, shown).await;
        assert!((width(next) < width(shown)) == is_closer, "{shown:?}, then {next:?}");
        shown = next;
    }

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

/// Groups the runs with the first two seeds into one line, alongside the current run.
async fn compare(page: &Dashboard) {
    page.click("compare-1").await;
    page.wait("run 1 is a line", async || page.text("legend-run 1").await.is_some()).await;
    page.click("compare-2").await;
    page.wait("seeds are grouped", async || has_median(page).await).await;
    page.assert_accessible("compared runs").await;
    let settings = page.text("comparison").await.unwrap_or_default();
    assert!(settings.contains("num_envs") && settings.contains("seed"), "{settings}");
    assert!(!settings.contains("num_workers"), "equal settings are left out: {settings}");
}

/// Whether the median's entry in the legend of the big chart is pressed: `true` while the line is shown.
async fn pressed(page: &Dashboard) -> String {
    let script = "return document.querySelector(arguments[0])?.getAttribute('aria-pressed') ?? ''";
    let value = page.run(script, vec![json!(format!("{} button", selector("legend-median of runs 1, 2")))]).await;
    value.as_str().unwrap_or_default().to_owned()
}

async fn has_median(page: &Dashboard) -> bool {
    let points = page.attribute("legend-median of runs 1, 2", "data-points").await;
    points.is_some_and(|points| points != "0")
}

async fn zoom(page: &Dashboard) {
    let canvas = page.browser.client.find(Locator::Css(&canvas())).await.expect("the chart is there");
    page.choose("chart-x", "iteration").await;
    let address_has = async |text: &str| {
        page.wait(&format!("the address has {text}"), async || hash(page).await.contains(text)).await;
    };
    for (id, log) in [("chart-log-y", "y"), ("chart-log-x", "xy"), ("chart-log-x", "y")] {
        page.click(id).await;
        address_has(&format!("chart.log={log}")).await;
    }
    let smoothing = page.browser.client.find(Locator::Css(&selector("chart-smoothing"))).await.expect("it is there");
    smoothing.send_keys("\u{e014}\u{e014}\u{e014}").await.expect("it takes keys");
    address_has("chart.smoothing=15").await;
    assert_eq!(page.attribute("chart-whole", "disabled").await.as_deref(), Some(""), "everything is shown");
    canvas.send_keys("++").await.expect("it takes keys");
    let is_enabled = async || page.attribute("chart-whole", "disabled").await.is_none();
    page.wait("a part is shown", is_enabled).await;
    address_has("chart.window=").await;
    let hash = hash(page).await;
    assert!(hash.contains("chart.x=iteration") && hash.contains("chart.runs=1%2C2"), "{hash}");
    // A hidden line is hidden in all charts, and in the link.
    page.click_at(&format!("{} button", selector("legend-median of runs 1, 2"))).await;
    page.wait("the line is hidden", async || pressed(page).await == "false").await;
    address_has("chart.hidden=median").await;
    page.click("chart-return-png").await;
    let png = page.saved("chart-return.png").await;
    assert!(png.starts_with(b"\x89PNG\r\n") && png.len() > 1_000, "{} bytes", png.len());
    page.click("chart-csv").await;
    let csv = String::from_utf8(page.saved("curves.csv").await).expect("UTF-8");
    assert!(csv.starts_with("run,kind,iteration,env_steps,wall_s,episode_return_mean,"), "{csv}");
    for run in ["3", "1", "2"] {
        assert!(csv.contains(&format!("\n{run},training,1,")), "run {run} is in {csv}");
    }
}

fn canvas() -> String {
    format!("{} canvas", selector("chart-return"))
}

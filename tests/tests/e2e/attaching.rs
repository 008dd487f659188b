//! The page without a hub, when one appears, and when it disappears again.

use super::{browser::DESKTOP, dashboard::Dashboard, front::Front, program::Program};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_hub_the_page_plays_a_demo_and_attaches_when_one_appears() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    let front = Front::start(hub.address()).await;
    page.go_to(&front.url()).await;

    // No token: a demo, and a field for the token.
    page.wait_for("banner", "data-kind", "no-token").await;
    page.wait_for_phase("demo").await;
    assert_eq!(page.attribute("connection", "data-state").await.as_deref(), Some("none"));
    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("the demo moves", async || page.attribute("live-canvas", "data-row").await != row).await;
    page.wait("its curve grows", async || {
        let (return_mean, value) = (page.text("kpi-return").await, page.text("chart-return-value").await);
        page.points("return").await > 2 && return_mean == value
    })
    .await;
    // Another environment in the demo: a game, in its own picture and at its own pace.
    page.choose("demo-env", "PixelBreakout-v0").await;
    page.wait("the game is announced", async || {
        page.text("run-name").await.is_some_and(|name| name.contains("PixelBreakout-v0"))
    })
    .await;
    page.wait("its channels are explained", async || page.text("live-legend").await.is_some()).await;
    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("the game moves", async || page.attribute("live-canvas", "data-row").await != row).await;
    page.browser.screenshot("demo-game", DESKTOP).await;
    page.choose("demo-env", "CartPole-v1").await;
    assert_eq!(page.attribute("join", "disabled").await.as_deref(), Some(""), "there is nothing to join");
    page.browser.screenshot("demo", DESKTOP).await;
    page.assert_quiet_console().await;

    // What is no token is refused on the spot; a dashboard URL is one, but its hub is not in reach.
    page.fill("token-input", "not a token").await;
    page.click("token-connect").await;
    page.wait_for("token-input", "aria-invalid", "true").await;
    page.fill("token-input", hub.url()).await;
    page.click("token-connect").await;
    page.wait_for("banner", "data-kind", "demo").await;
    page.wait_for_phase("demo").await;

    // The hub appears: the page attaches by itself.
    front.bring_hub_in_reach(true);
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("idle").await;
    assert_eq!(page.attribute("banner", "data-kind").await, None);

    // It disappears: the page keeps what it knows, and comes back with the hub.
    page.fill("start-stop.episode_return_mean", "1000").await;
    page.fill("start-stop.env_steps", "1,000,000,000").await;
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", 0).await;
    front.bring_hub_in_reach(false);
    page.wait_for("banner", "data-kind", "lost").await;
    let known = page.number("kpi-env-steps").await;
    assert!(known > 0, "the last numbers stay");
    front.bring_hub_in_reach(true);
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-env-steps", known).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_with_a_reason_and_the_right_one_helps() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    let (address, _) = hub.url().split_once('#').expect("the URL has a token");
    page.go_to(&format!("{address}#token={}", "0".repeat(64))).await;
    page.wait_for("banner", "data-kind", "refused").await;
    let banner = page.text("banner").await.expect("it is there");
    assert!(banner.contains("token"), "the reason is in the banner: {banner}");
    page.wait_for_phase("demo").await;

    page.fill("token-input", hub.url()).await;
    page.click("token-connect").await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("idle").await;
    page.assert_quiet_console().await;
}

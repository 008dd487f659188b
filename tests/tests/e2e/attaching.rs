//! The page without a hub, and when a hub becomes reachable and unreachable again.

use super::{dashboard::Dashboard, front::Front, program::Program};

#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_a_hub_attaches_when_one_appears() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    let front = Front::start(hub.address()).await;
    page.go_to(&front.url()).await;

    // Without a token the page shows a field for it.
    page.wait_for("banner", "data-kind", "no-token").await;
    assert_eq!(page.attribute("connection", "data-state").await.as_deref(), Some("none"));
    page.assert_quiet_console().await;

    // An invalid token is refused immediately; the hub's token is valid, but the hub cannot be reached.
    page.fill("token-input", "not a token").await;
    page.click("token-connect").await;
    page.wait_for("token-input", "aria-invalid", "true").await;
    let (_, token) = hub.url().split_once("#token=").expect("the URL has a token");
    page.fill("token-input", token).await;
    page.click("token-connect").await;
    page.wait_for("banner", "data-kind", "tab").await;
    // Until the hub is reachable, this tab trains.
    page.fill("start-stop.episode_return_mean", "1000").await;
    page.click("start-run").await;
    page.wait_for_more("kpi-iteration", 0).await;

    // The hub becomes reachable: the page attaches by itself.
    front.bring_hub_in_reach(true);
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("idle").await;
    assert_eq!(page.attribute("banner", "data-kind").await, None);
    assert_eq!(page.points("return").await, 0, "nothing is left of the run in this tab");

    // The hub becomes unreachable: the page keeps its state, and reconnects when the hub is back.
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
async fn token_without_a_hub_is_discarded_and_an_address_of_another_page_is_opened() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    let front = Front::start("127.0.0.1:1").await;
    page.go_to(&front.url()).await;
    page.wait_for("banner", "data-kind", "no-token").await;
    page.fill("token-input", &"0".repeat(64)).await;
    page.click("token-connect").await;
    page.wait_for("banner", "data-kind", "tab").await;
    page.click("token-forget").await;
    page.wait_for("banner", "data-kind", "no-token").await;
    page.reload().await;
    page.wait_for("banner", "data-kind", "no-token").await;

    page.fill("token-input", hub.url()).await;
    page.click("token-connect").await;
    page.wait_for("connection", "data-state", "online").await;
    let origin = page.run("return location.origin", vec![]).await;
    assert!(origin.as_str().is_some_and(|origin| hub.url().starts_with(origin)), "{origin}");
    // The first page has stored nothing of it.
    page.go_to(&front.url()).await;
    page.wait_for("banner", "data-kind", "no-token").await;
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
    page.wait_for_phase("idle").await;

    page.fill("token-input", hub.url()).await;
    page.click("token-connect").await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for_phase("idle").await;
    page.assert_quiet_console().await;
}

//! Policies that play in a tab: from a folder next to the page, from files that are dropped, and from the tab's own run.

use std::{fs, path::Path};

use fantoccini::{Locator, key::Key};
use serde_json::json;

use super::{
    browser::DESKTOP,
    dashboard::{Dashboard, selector},
    front::Front,
};

async fn open(page: &Dashboard, fragment: &str) -> Front {
    let front = Front::start("127.0.0.1:1").await;
    page.go_to(&format!("{}{fragment}", front.url())).await;
    front
}

async fn wait_said(page: &Dashboard, what: &str) {
    let is_said = async || page.text("player-said").await.is_some_and(|said| said.contains(what));
    page.wait(&format!("the player says '{what}'"), is_said).await;
}

/// Drops files with these bytes on the page.
async fn drop_files(page: &Dashboard, files: &[(&str, Vec<u8>)]) {
    let script = "const transfer = new DataTransfer();
        for (const [name, bytes] of arguments[0]) transfer.items.add(new File([Uint8Array.from(bytes)], name));
        document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));";
    page.run(script, vec![json!(files)]).await;
}

fn policy(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tab/policy");
    fs::read(folder.join(name)).expect("the example's policy")
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_plays_from_a_folder_until_the_user_takes_over_with_the_keyboard() {
    let page = Dashboard::start().await;
    let _front = open(&page, "#policy=tab/policy").await;
    wait_said(&page, "CartPole-v1: the policy plays episode 1").await;
    page.wait("its picture is there", async || page.attribute("player-canvas", "hidden").await.is_none()).await;
    page.browser.screenshot("tab-playing", DESKTOP).await;
    // If the cart is held to the right, the pole falls, which the policy would prevent.
    page.run("document.querySelector(arguments[0]).focus()", vec![json!(selector("player-canvas"))]).await;
    let hold =
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))";
    page.run(hold, vec![]).await;
    wait_said(&page, "you play episode").await;
    wait_said(&page, "the last one returned").await;
    page.press(Key::Right).await;
    wait_said(&page, "the policy plays episode").await;
    page.click("player-close").await;
    page.wait("it is removed", async || page.text("player-said").await.is_none()).await;
    page.assert_quiet_console().await;
}

/// Opens the example's page, which uses the npm package.
#[tokio::test(flavor = "multi_thread")]
async fn page_of_example_draws_its_environment_and_a_curve_that_grows() {
    let page = Dashboard::start().await;
    let front = Front::start("127.0.0.1:1").await;
    page.browser.client.goto(&format!("{}tab/index.html", front.url())).await.expect("the page loads");
    // The text is `N episodes, mean return M`.
    let mean_return = async || {
        let text = page.run("return document.getElementById('status').textContent", vec![]).await;
        text.as_str()?.split_once(" episodes, mean return ")?.1.parse::<f64>().ok()
    };
    let choose = async |id: &str, label: &str| {
        let select = page.browser.client.find(Locator::Id(id)).await.expect("the choice is there");
        select.select_by_label(label).await.expect("it can be chosen");
    };
    // Counts the columns of a canvas that are not empty.
    let inked = async |id: &str| {
        // Reads a copy, since Chromium warns about canvases that are both drawn to and read often.
        let script = "const { width, height } = document.getElementById(arguments[0]);
            const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
            copy.drawImage(document.getElementById(arguments[0]), 0, 0);
            const { data } = copy.getImageData(0, 0, width, height);
            const columns = new Set();
            for (let at = 3; at < data.length; at += 4) if (data[at] > 0) columns.add((at >> 2) % width);
            return columns.size";
        page.run(script, vec![json!(id)]).await.as_u64().expect("a number")
    };
    choose("speed", "10").await;
    page.wait("the trained policy's first episodes are long", async || {
        mean_return().await.is_some_and(|mean| mean > 300.0)
    })
    .await;
    // The curve grows for ten more seconds, until it is as wide as its canvas.
    let before = inked("curve").await;
    assert!(inked("picture").await > 100, "the environment is drawn");
    page.wait("the curve grows", async || inked("curve").await > before).await;
    choose("speed", "100").await;
    choose("policy", "untrained").await;
    page.wait("untrained it plays shorter ones", async || mean_return().await.is_some_and(|mean| mean < 300.0)).await;
    page.assert_quiet_console().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_files_of_a_policy_play_and_others_are_refused_by_name() {
    let page = Dashboard::start().await;
    let _front = open(&page, "").await;
    page.wait("the panel is there", async || page.text("data-file").await.is_some()).await;
    drop_files(&page, &[("weights.safetensors", policy("weights.safetensors"))]).await;
    wait_said(&page, "Drop policy.json, too").await;
    drop_files(&page, &[("policy.json", policy("policy.json"))]).await;
    wait_said(&page, "CartPole-v1: the policy plays").await;
    for (name, bytes, wanted) in [
        ("policy.json", b"{".to_vec(), "policy.json is no JSON"),
        ("policy.json", b"{\"run\": 1}".to_vec(), "it needs policies, model and run.env"),
        ("policy.json", vec![b' '; (1 << 20) + 1], "at most 1048576 are read"),
        ("weights.safetensors", vec![7; 100], "It does not play"),
    ] {
        page.click("player-close").await;
        let good = if name == "policy.json" { "weights.safetensors" } else { "policy.json" };
        drop_files(&page, &[(good, policy(good)), (name, bytes)]).await;
        wait_said(&page, wanted).await;
    }
    page.assert_quiet_console().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_policy_of_another_origin_is_refused() {
    let page = Dashboard::start().await;
    let _front = open(&page, "#policy=http%3A%2F%2F127.0.0.1%3A9%2Fpolicy").await;
    wait_said(&page, "is not on this page's own origin").await;
}

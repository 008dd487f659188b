//! Policies that play in a tab: from a folder next to the page, from files that are dropped, and from the tab's own run.

use std::{fs, path::Path};

use fantoccini::key::Key;
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
async fn a_policy_plays_from_a_folder_until_a_person_takes_over_with_the_keyboard() {
    let page = Dashboard::start().await;
    let _front = open(&page, "#policy=policy").await;
    wait_said(&page, "CartPole-v1: the policy plays episode 1").await;
    page.wait("its picture is there", async || page.attribute("player-canvas", "hidden").await.is_none()).await;
    page.browser.screenshot("tab-playing", DESKTOP).await;
    // Held to the right the pole falls, and the policy would not let it.
    page.run("document.querySelector(arguments[0]).focus()", vec![json!(selector("player-canvas"))]).await;
    let hold =
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))";
    page.run(hold, vec![]).await;
    wait_said(&page, "you play episode").await;
    wait_said(&page, "the last one returned").await;
    page.press(Key::Right).await;
    wait_said(&page, "the policy plays episode").await;
    page.click("player-close").await;
    page.wait("it is gone", async || page.text("player-said").await.is_none()).await;
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

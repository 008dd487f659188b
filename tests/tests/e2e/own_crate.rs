//! The program of a user's crate, outside this workspace, and the page that was built for it. A separate step of the
//! test suite builds both.

use serde_json::json;

use super::{
    browser::DESKTOP,
    dashboard::{Dashboard, selector},
    program::Program,
};

#[tokio::test(flavor = "multi_thread")]
async fn program_of_a_users_crate_has_page_form_picture_and_curve_of_its_environment() {
    let page = Dashboard::start().await;
    let program = Program::start_own(["hub"]);
    page.go_to(program.url()).await;
    page.wait_for("connection", "data-state", "online").await;

    page.wait("the form offers it", async || {
        page.text("start-env").await.is_some_and(|envs| envs.contains("Corridor-v0"))
    })
    .await;
    page.choose("start-env", "Corridor-v0").await;
    page.fill("start-num_workers", "1").await;
    page.fill("start-stop.env_steps", "10000000000").await;
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    page.wait("the curve grows", async || page.points("return").await > 3).await;

    let colours = "const canvas = document.querySelector(arguments[0]);
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size";
    let canvas = json!(selector("live-canvas"));
    let is_drawn = async || page.run(colours, vec![canvas.clone()]).await.as_u64() > Some(2);
    page.wait("its `render` draws walker and goal", is_drawn).await;

    // The page's Web Workers know it as well.
    page.click("join").await;
    let tab = page.own_row().await;
    page.wait_for_steps_of(tab, 0).await;
    page.browser.screenshot("own-crate", DESKTOP).await;
    page.assert_quiet_console().await;
}

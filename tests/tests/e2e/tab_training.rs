//! A page without a hub, which trains in its own tab.

use serde_json::{Value, json};

use super::{
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    front::Front,
    program::weights_hash_of,
};

/// Opens the page from a static host, without a hub.
async fn open(page: &Dashboard, fragment: &str) -> Front {
    let front = Front::start("127.0.0.1:1").await;
    page.go_to(&format!("{}{fragment}", front.url())).await;
    front
}

#[tokio::test(flavor = "multi_thread")]
async fn page_without_a_hub_solves_cart_pole_with_the_hash_of_the_program() {
    let page = Dashboard::start().await;
    let _front = open(&page, "").await;
    page.wait_for("banner", "data-kind", "no-token").await;
    page.fill("start-seed", "1").await;
    page.browser.screenshot("tab-start", DESKTOP).await;
    page.assert_accessible("the form of a page without a hub").await;
    page.click("start-run").await;

    page.wait_for_phase("running").await;
    page.wait_for_more("kpi-iteration", 1).await;
    for chart in ["return", "steps-per-s", "episode-len", "policy-loss", "vf-loss", "entropy", "kl"] {
        page.wait(&format!("the curve {chart} grows"), async || page.points(chart).await > 1).await;
    }
    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("the environment moves", async || page.attribute("live-canvas", "data-row").await != row).await;
    page.browser.screenshot("tab-running", DESKTOP).await;
    pause_and_resume(&page).await;
    // A worker is ended, and another one joins, which does not change the hash.
    let workers = page.workers_of_kind("browser").await;
    assert!(!workers.is_empty(), "Web Workers sample");
    page.click("add-worker").await;
    page.wait("there is one more", async || page.workers().await.len() > workers.len()).await;
    page.click_at(&format!("[data-worker='{}'] [data-testid='remove-worker']", workers[0].id)).await;
    page.wait("it has left", async || !page.workers().await.contains_key(&workers[0].id)).await;

    page.wait_for_phase("solved").await;
    page.wait("its hash is there", async || page.text("weights-hash").await.is_some()).await;
    assert_eq!(page.text("ledger-balance").await.as_deref(), Some("balances"));
    page.browser.screenshot("tab-solved", DESKTOP).await;
    page.browser.screenshot("tab-solved-phone", PHONE).await;
    page.browser.prefer_colours("dark").await;
    page.browser.screenshot("tab-solved-dark", DESKTOP).await;
    save(&page).await;
    page.click("play-policy").await;
    page.wait("it plays", async || {
        page.text("player-said").await.is_some_and(|said| said.contains("CartPole-v1: the policy plays"))
    })
    .await;
    page.assert_accessible("weights of a run in a tab, and a policy that plays").await;
    page.assert_quiet_console().await;

    let (hash, command) = (page.text("weights-hash").await, page.text("proof").await.expect("a command"));
    assert_eq!(hash, Some(weights_hash_of(&command)), "{command}");
}

/// Saves both files of the policy.
async fn save(page: &Dashboard) {
    page.click("save-weights").await;
    let weights = page.saved("weights.safetensors").await;
    // The file begins with the length of its JSON.
    assert!(weights.len() > 1_000 && weights[8] == b'{', "{} bytes", weights.len());
    page.click("save-policy").await;
    let policy: Value = serde_json::from_slice(&page.saved("policy.json").await).expect("JSON");
    assert_eq!(policy["run"]["env"], "CartPole-v1", "{policy}");
}

async fn pause_and_resume(page: &Dashboard) {
    page.click("pause").await;
    page.wait_for_phase("paused").await;
    page.wait("nothing is outstanding", async || page.number("ledger-outstanding").await == 0).await;
    let is_learned = async || page.number("kpi-env-steps").await == page.number("ledger-committed").await;
    page.wait("all committed env steps count", is_learned).await;
    page.stays("no env step in a pause", async || page.number("kpi-env-steps").await).await;
    let steps = page.number("kpi-env-steps").await;
    page.click("resume").await;
    page.wait_for_more("kpi-env-steps", steps).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn link_restores_the_set_up_and_a_stopped_run_shows_its_hash() {
    let page = Dashboard::start().await;
    let settings =
        "#env=PixelBreakout-v0&algorithm=a2c&seed=3&model_config.fcnet_hiddens=[8]&num_slots=4&stop.env_steps=1e9";
    let _front = open(&page, &settings.replace("1e9", "1000000000")).await;
    page.wait("the form is there", async || page.text("start-form").await.is_some()).await;
    let chosen = async |id: &str| page.value(&format!("start-{id}")).await;
    assert_eq!((chosen("env").await, chosen("seed").await), ("PixelBreakout-v0".into(), "3".into()));
    page.click("start-run").await;
    page.wait("the game is announced", async || {
        page.text("run-name").await.is_some_and(|name| name.contains("PixelBreakout-v0"))
    })
    .await;
    page.wait("its channels are explained", async || page.text("live-legend").await.is_some()).await;
    let row = page.attribute("live-canvas", "data-row").await;
    page.wait("the game moves", async || page.attribute("live-canvas", "data-row").await != row).await;
    page.browser.screenshot("tab-game", DESKTOP).await;
    let watched = "const select = document.querySelector(arguments[0]);
        select.value = '3';
        select.dispatchEvent(new Event('change', { bubbles: true }))";
    page.run(watched, vec![json!(selector("live-slot"))]).await;
    page.wait("slot 3 is watched", async || {
        page.text("live-caption").await.is_some_and(|caption| caption.contains("slot 3"))
    })
    .await;
    page.browser.freeze_and_thaw().await;
    let iteration = page.number("kpi-iteration").await;
    page.wait_for_more("kpi-iteration", iteration).await;
    page.click("stop").await;
    page.click("stop-confirm").await;
    page.wait_for_phase("stopped").await;
    page.wait("its hash is there", async || page.text("weights-hash").await.is_some()).await;
    let (hash, command) = (page.text("weights-hash").await, page.text("proof").await.expect("a command"));
    assert_eq!(hash, Some(weights_hash_of(&command)), "{command}");

    // The page is reloaded by its address.
    page.reload().await;
    page.wait("the form is there again", async || page.text("start-form").await.is_some()).await;
    assert_eq!((chosen("env").await, chosen("num_slots").await), ("PixelBreakout-v0".into(), "4".into()));
    // The form, or the trainer, explains settings that cannot be trained.
    page.fill("start-num_slots", "0").await;
    page.click("start-run").await;
    page.wait("the form says what is wrong", async || {
        page.text("start-error").await.is_some_and(|error| error.contains("num_slots is 0"))
    })
    .await;
    // All invalid fields are marked, and the first one is focused, even in a closed section.
    let enter = "const field = document.querySelector(arguments[0]);
        field.value = arguments[1];
        field.dispatchEvent(new Event('input', { bubbles: true }))";
    let folded = "start-rollout_fragment_length";
    page.run(enter, vec![json!(selector(folded)), json!("0")]).await;
    page.wait_for(folded, "aria-invalid", "true").await;
    page.wait_for("start-num_slots", "aria-invalid", "true").await;
    let focused = async || page.run("return document.activeElement.dataset.testid", vec![]).await;
    page.click("start-run").await;
    assert_eq!(focused().await, "start-num_slots");
    page.fill("start-num_slots", "4").await;
    page.click("start-run").await;
    page.wait("the folded one is focused", async || focused().await == folded).await;
    page.assert_quiet_console().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_of_one_origin_train_without_each_other_and_hear_no_frame_of_another_origin() {
    let page = Dashboard::start().await;
    let settings = "#env=CartPole-v1&seed=4&num_slots=4&stop.env_steps=20000";
    let front = open(&page, settings).await;
    page.click("start-run").await;
    page.wait_for_phase("running").await;
    let first = page.browser.client.window().await.expect("a window");
    let second = page.browser.client.new_window(true).await.expect("a second tab").handle;
    page.browser.client.switch_to_window(second.clone()).await.expect("it is there");
    page.go_to(&format!("{}{settings}", front.url())).await;
    page.click("start-run").await;
    let num_workers =
        page.run("return Math.min(navigator.hardwareConcurrency, 4)", vec![]).await.as_u64().expect("a number");
    let ids = async || page.workers().await.into_keys().collect::<Vec<_>>();
    page.wait("its workers are there", async || ids().await.len() as u64 == num_workers).await;
    let workers = ids().await;
    post_from_another_origin(&page).await;
    let mut hashes = Vec::new();
    for window in [None, Some(first)] {
        if let Some(window) = window {
            page.browser.client.switch_to_window(window).await.expect("it is still there");
        }
        page.wait("the run has ended", async || page.text("weights-hash").await.is_some()).await;
        hashes.push(page.text("weights-hash").await);
    }
    assert!(hashes[0] == hashes[1] && hashes[0].as_deref() != Some("forged"), "{hashes:?}");
    // The second tab, which received all these messages, has opened no file, and still has its first workers.
    page.browser.client.switch_to_window(second).await.expect("it is still there");
    assert_eq!(page.text("player").await, None);
    assert_eq!(ids().await, workers);
    page.assert_quiet_console().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_worker_that_is_never_ready_is_replaced() {
    let page = Dashboard::start().await;
    let _front = open(&page, "#env=CartPole-v1&num_slots=4&stop.env_steps=20000").await;
    page.wait("the form is there", async || page.text("start-form").await.is_some()).await;
    // The first Web Worker for sampling never posts, and its timeout of a minute passes immediately.
    let silent = "const { Worker, setTimeout } = window;
        let isFirst = true, isNext = false;
        window.Worker = function (url, options) {
            if (!isFirst || !String(url).includes('worker.js')) return new Worker(url, options);
            [isFirst, isNext] = [false, true];
            return { postMessage() {}, terminate() { window.isTerminated = true; } };
        };
        // The page checks the class of its Web Workers.
        window.Worker.prototype = Worker.prototype;
        window.setTimeout = (call, ms, ...rest) => {
            const delay = isNext && ms === 60_000 ? 0 : ms;
            isNext &&= delay !== 0;
            return setTimeout(call, delay, ...rest);
        };";
    page.run(silent, vec![]).await;
    page.click("start-run").await;
    page.wait("it is ended", async || page.run("return window.isTerminated === true", vec![]).await == true).await;
    page.wait("the run has ended", async || page.text("weights-hash").await.is_some()).await;
}

/// Posts the messages of the trainer and of the page from a frame of another origin; returns when the page's window has
/// received all of them.
async fn post_from_another_origin(page: &Dashboard) {
    // Numbers of runs depend on the clock: the script uses those of the last ten minutes, and the first workers' ports.
    let script = "const [done] = arguments, next = Math.floor(Date.now() / 1000 + 1);
        const runs = Array.from({ length: 600 }, (_, ago) => ({ run: (next - ago) % 10000, weights_hash: 'forged' }));
        const forged = [...runs, { name: 'policy.json', bytes: [123, 125], plays: true },
            { ended: 2, reason: 'forged' }, { closed: 2 }, 'forged'];
        let missing = forged.length;
        addEventListener('message', ({ origin }) => { if (origin === 'null' && --missing === 0) done(true); });
        const frame = document.createElement('iframe');
        frame.srcdoc = `<script>for (const data of ${JSON.stringify(forged)}) {
            if (data.bytes) data.bytes = Uint8Array.from(data.bytes);
            parent.postMessage(data, '*');
        }</` + 'script>';
        frame.setAttribute('sandbox', 'allow-scripts');
        document.body.append(frame);";
    page.browser.client.execute_async(script, vec![]).await.expect("the page has received it");
}

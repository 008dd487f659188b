//! Files of logged experience that the user drops on the page or chooses, without a hub.

use std::{fs, path::Path};

use serde_json::json;

use super::{
    browser::{DESKTOP, PHONE},
    dashboard::{Dashboard, selector},
    front::Front,
};

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/conformance/data").join(name)
}

/// Drops a file with this text on the page, as a user does from another window.
async fn drop_file(page: &Dashboard, name: &str, text: &str) {
    let script = "const transfer = new DataTransfer();
        transfer.items.add(new File([arguments[1]], arguments[0]));
        const drop = new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true });
        return !document.body.dispatchEvent(drop);";
    assert_eq!(
        page.run(script, vec![json!(name), json!(text)]).await,
        true,
        "the browser does not open it in place of the page"
    );
}

/// Chooses a file with golden data, and waits until the page shows it.
async fn choose(page: &Dashboard, path: &str) {
    let input = page.browser.client.find(fantoccini::Locator::Css(&selector("data-choose"))).await.expect("the input");
    let path = golden(path);
    input.send_keys(path.to_str().expect("a path")).await.expect("it takes a file");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    page.wait("the file is there", async || page.text("data-name").await.as_ref() == Some(&name)).await;
}

/// Replays the open file from an episode on.
async fn replay(page: &Dashboard, episode: u32) {
    page.fill("data-episode", &episode.to_string()).await;
    page.click("data-replay").await;
    let start = format!("episode {episode} of the file, step ");
    let is_shown = async || page.text("live-caption").await.is_some_and(|text| text.starts_with(&start));
    page.wait(&format!("episode {episode} is replayed"), is_shown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_file_is_shown_and_what_is_wrong_with_it() {
    let page = Dashboard::start().await;
    let front = Front::start("127.0.0.1:9").await;
    page.go_to(&front.url()).await;
    page.wait("the panel is there", async || page.text("data-file").await.is_some()).await;

    // A dropped file of RLlib with compressed columns.
    let text = fs::read_to_string(golden("single_compressed.json")).expect("the file is in the repository");
    drop_file(&page, "single_compressed.json", &text).await;
    page.wait_for("data-status", "data-status", "read").await;
    assert_eq!(page.text("data-name").await.as_deref(), Some("single_compressed.json"));
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
    assert_eq!(page.number("data-batches").await, lines);
    assert!(page.number("data-env-steps").await > 0);
    let columns = page.text("data-columns").await.expect("the columns");
    assert!(columns.contains("obs") && columns.contains("float32"), "{columns}");
    let problems = page.text("data-problems").await.expect("the problems");
    assert!(problems.starts_with("steps whose 'new_obs' is not the next step's 'obs': 10"), "{problems}");

    // Episodes with returns, and a line that is not a batch.
    let episode = |id: u32, reward: u32| {
        format!(
            "{{\"type\": \"SampleBatch\", \"eps_id\": [{id}, {id}], \"t\": [0, 1], \"obs\": [[0.5], [1.5]], \"actions\": [0, 1], \
             \"rewards\": [{reward}.0, 1.0], \"terminateds\": [false, true]}}"
        )
    };
    let text = [episode(1, 1), "no batch".into(), episode(2, 3), episode(3, 8)].join("\n");
    drop_file(&page, "mine.json", &text).await;
    page.wait("the other file is there", async || page.text("data-name").await.as_deref() == Some("mine.json")).await;
    page.wait_for("data-status", "data-status", "read").await;
    assert_eq!((page.number("data-batches").await, page.number("data-episodes").await), (3, 3));
    assert_eq!(page.text("data-return").await.as_deref(), Some("5 (2 to 9)"));
    assert_eq!(page.attribute("data-histogram", "hidden").await, None);
    let problems = page.text("data-problems").await.expect("the problems");
    assert!(problems.contains("lines that are no batches: 1") && problems.contains("line 2: no JSON"), "{problems}");
    // The page replays the last episode, until the user chooses another one.
    replay(&page, 2).await;
    let is_step = async || page.text("live-caption").await.as_deref() == Some("episode 2 of the file, step 0: 0.5");
    page.wait("the first step has its observation", is_step).await;
    let is_reward = async || page.text("live-agents").await.is_some_and(|text| text.ends_with("8"));
    page.wait("the first step has its reward", is_reward).await;
    // A new episode replaces one that is paused at a later step, and starts from its beginning. The form keeps the
    // focus.
    let seek = "const step = document.querySelector(arguments[0]);
        step.value = 1;
        step.dispatchEvent(new Event('input', { bubbles: true }))";
    page.run(seek, vec![json!(selector("live-step"))]).await;
    replay(&page, 1).await;
    let is_first =
        async || page.text("live-caption").await.is_some_and(|text| text.starts_with("episode 1 of the file, step 0"));
    page.wait("it begins with its first step", is_first).await;
    let focused = page.run("return document.activeElement.dataset.testid", vec![]).await;
    assert_eq!((focused.as_str(), &*page.value("data-episode").await), (Some("data-replay"), "1"));
    let says = async |what: &str| {
        page.click("data-replay").await;
        page.wait(what, async || page.text("data-no-episode").await.as_deref() == Some(what)).await;
    };
    page.fill("data-episode", "3").await;
    says("The file has no episode 3 of a single agent.").await;
    page.run("document.querySelector(arguments[0]).value = ''", vec![json!(selector("data-episode"))]).await;
    says("Enter the number of an episode, 0 for the first one.").await;
    for (name, theme, screen) in [("data-file", "light", DESKTOP), ("data-file-phone", "dark", PHONE)] {
        page.browser.prefer_colours(theme).await;
        page.browser.emulate(screen).await;
        let wide = page.run("return document.documentElement.scrollWidth > innerWidth", vec![]).await;
        assert_eq!(wide, false, "the page is as wide as the screen");
        page.browser.screenshot(name, screen).await;
    }
    page.browser.emulate(DESKTOP).await;
    page.assert_accessible("an open file with a replay").await;

    // Chosen tables, which other modules read.
    for (path, steps) in [
        ("transitions_snappy.parquet", Some(600)),
        ("pendulum_small_contiguous.hdf5", None),
        ("minari_cartpole_hdf5/data/main_data.hdf5", Some(812)),
    ] {
        choose(&page, path).await;
        page.wait_for("data-status", "data-status", "read").await;
        let found = page.number("data-env-steps").await;
        assert!(steps.map_or(found > 0, |steps| found == steps), "{path}: {found}");
        assert!(page.text("data-columns").await.expect("the columns").contains("rewards"), "{path}");
        replay(&page, 1).await;
        assert!(page.text("live-caption").await.expect("the step").contains(": "), "{path}: it has an observation");
    }
    page.browser.screenshot("data-tables", DESKTOP).await;

    // The page names an unreadable file with a remedy, and shows nothing of the previous file.
    for (path, problem) in [
        ("transitions_zstd.parquet", "compressed by Zstandard"),
        ("minari_cartpole_arrow/data/0/part-0.arrow", "this is an Arrow file"),
        ("mal_missing_column.hdf5", "there is no column"),
    ] {
        choose(&page, path).await;
        page.wait_for("data-status", "data-status", "failed").await;
        let status = page.text("data-status").await.expect("the status");
        assert!(status.contains(problem), "{status}");
        assert_eq!(page.text("data-columns").await, None);
    }
    page.click("data-close").await;
    page.wait("nothing is open", async || page.text("data-name").await.is_none()).await;
    page.wait("the slot is watched again", async || page.text("live-source").await.is_none()).await;
    page.assert_quiet_console().await;
}

//! A tab as an evaluation worker that programs find by its name.

use std::{num::NonZeroU32, time::Duration};

use rollmesh::{
    Registry,
    control::Trust,
    eval::{EvalHub, EvalMakers, EvalWorker, EvalWorkerError},
    hub::{Hub, HubConfig, SecurityConfig},
    kernels::AUTO,
};
use rollmesh_core::{
    evaluation::{Earlier, Evaluation, EvaluationRequest},
    ids::WeightsVersion,
    policy::{NetPolicy, Policy as _, PolicyContext},
    run::RunConfig,
    weights::Weights,
};
use tokio::task::spawn_blocking;

use super::{DEADLINE, browser::DESKTOP, built, dashboard::Dashboard};

const ENV: &str = "CartPole-v1";

/// Returns a request for whole episodes with pictures, of more bytes than may be in transit at a time.
fn request() -> EvaluationRequest {
    let episodes = NonZeroU32::new(5).expect("not zero");
    EvaluationRequest { deterministic: false, render: true, ..EvaluationRequest::of_episodes(episodes, 2_500) }
}

/// Returns weights that differ from the initial weights of the tab's policy.
fn weights() -> Weights {
    let spaces = Registry::builtin().envs.spec(ENV).expect("built in").spaces().expect("spaces");
    let policy = NetPolicy::for_context(&PolicyContext::new(spaces, 99, AUTO)).expect("a net for them");
    policy.weights().with_version(WeightsVersion(12))
}

fn evaluate(worker: &mut EvalWorker) -> Evaluation {
    worker.submit_request(Some(&weights()), request(), Earlier::Cancel).expect("it can be asked");
    worker.poll(DEADLINE).expect("no error").expect("a result")
}

async fn hub() -> Hub {
    let config = HubConfig {
        listen: "127.0.0.1:0".parse().expect("an address"),
        dashboard: true,
        assets: Some(built("ROLLMESH_DIST")),
        worker_program: built("ROLLMESH_BIN"),
        kernels: AUTO,
        external: None,
        allow_origins: Vec::new(),
        runs_dir: None,
        security: SecurityConfig::default(),
    };
    Hub::start(config, &Registry::builtin()).await.expect("a hub")
}

/// Makes the tab an evaluation worker through the page's form.
async fn evaluate_as(page: &Dashboard, name: &str) {
    offer_evaluator(page, name).await;
    wait_for_state(page, "idle").await;
    assert_eq!(page.text("tab-name").await.as_deref(), Some(name));
}

async fn offer_evaluator(page: &Dashboard, name: &str) {
    page.wait_for("connection", "data-state", "online").await;
    page.click("evaluate-more").await;
    page.choose("evaluate-env", ENV).await;
    for (field, text) in [("evaluate-envs", "3"), ("evaluate-seed", "7"), ("evaluate-name", "not a name")] {
        page.fill(field, text).await;
    }
    page.click("evaluate").await;
    page.wait("the mistake is named", async || {
        page.text("evaluate-error").await.is_some_and(|error| error.starts_with("Name must be"))
    })
    .await;
    page.fill("evaluate-name", name).await;
    page.click("evaluate").await;
}

async fn wait_for_state(page: &Dashboard, state: &str) {
    page.wait(&format!("the tab is {state}"), async || page.text("tab-state").await.as_deref() == Some(state)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn named_evaluator_in_a_tab_is_bit_identical() {
    let page = Dashboard::start().await;
    let hub = hub().await;
    let url = format!("ws://{}", hub.address()).parse().expect("a hub's address");
    let at_hub = EvalHub { url, token: hub.worker_token(), trust: Trust::default() };
    let find = move || at_hub.find("judge");
    page.go_to(&hub.dashboard_url()).await;
    evaluate_as(&page, "judge").await;

    let here = spawn_blocking(|| {
        let mut run = RunConfig::new(ENV).seed(7);
        run.evaluation.num_envs = 3;
        let makers = EvalMakers::of_run(&run, &rollmesh::native(Registry::builtin()), AUTO).expect("known names");
        evaluate(&mut EvalWorker::in_thread(makers).expect("a thread"))
    });
    let here = here.await.expect("no panic");
    let asked = find.clone();
    let in_tab = spawn_blocking(move || {
        let mut worker = asked().expect("the tab has the name");
        let found = evaluate(&mut worker);
        // This evaluation would never end.
        let endless =
            EvaluationRequest { break_when_any_done: false, render: false, ..EvaluationRequest::new(u32::MAX) };
        worker.submit_request(None, endless, Earlier::Cancel).expect("it can be asked");
        (worker, found)
    });
    let (mut worker, found) = in_tab.await.expect("no panic");
    assert!(here.episodes.len() == 5 && here.frames.as_ref().is_some_and(|frames| frames.rgb().len() > 1 << 20));
    assert!(found == here, "episodes, returns and pictures are the same");
    wait_for_state(&page, "evaluating").await;
    assert_eq!(page.number("tab-evaluations").await, 1);
    page.browser.screenshot("evaluating", DESKTOP).await;
    page.assert_quiet_console().await;

    // Another tab cannot have the same name, and keeps the text of its form.
    let client = &page.browser.client;
    let tab = client.window().await.expect("the tab has a handle");
    let next = client.new_window(true).await.expect("another tab").handle;
    client.switch_to_window(next.clone()).await.expect("the other one is there");
    page.go_to(&hub.dashboard_url()).await;
    offer_evaluator(&page, "judge").await;
    page.wait("the refusal is shown", async || {
        page.text("toast").await.is_some_and(|text| text.contains("'judge' is taken"))
    })
    .await;
    wait_for_state(&page, "not a worker").await;
    page.assert_accessible("the form of an evaluation worker").await;
    assert_eq!(
        (page.value("evaluate-name").await.as_str(), page.value("evaluate-seed").await.as_str()),
        ("judge", "7")
    );

    // The tab is closed during an evaluation, which is reported once.
    client.switch_to_window(tab).await.expect("the first one is still there");
    client.close_window().await.expect("it closes");
    client.switch_to_window(next).await.expect("the other one is there");
    let asked = find.clone();
    let refused = spawn_blocking(move || {
        assert!(matches!(worker.poll(DEADLINE), Err(EvalWorkerError::Io(_))));
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
        assert!(matches!(asked(), Err(EvalWorkerError::UnknownName { .. })));
    });
    refused.await.expect("no panic");

    // Another tab takes its place.
    page.reload().await;
    evaluate_as(&page, "judge").await;
    let again = spawn_blocking(move || evaluate(&mut find().expect("the name is found again")));
    assert!(again.await.expect("no panic") == here, "the same bits again");
    page.click("leave").await;
    page.wait("the tab has left", async || page.text("tab-state").await.as_deref() == Some("not a worker")).await;
    hub.shutdown().await;
}

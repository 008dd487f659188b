//! Untrusted workers with divergent fragments: they are quarantined, and their rows are undone.

use std::{path::Path, time::Duration};

use rollmesh::{
    Registry,
    checkpoint::PolicyCheckpoint,
    hub::{Distrust, Hub, HubConfig, OnDivergence, PendingSummary, SecurityConfig},
    train::{RunConfig, RunEnd, RunRequest, SavedRun, Summary},
};
use rollmesh_core::{
    batch::{REWARDS, SlotFragment},
    column::ColumnData,
    group::{AuditPolicy, SamplingMode},
    hash::weights_hash,
    protocol::{
        Message, Phase, Role, Token,
        message::{Request, StartRun, WorkerToken},
    },
};

use serde_json::Value;

use super::{TestHub, end, hand_made::HandMade, small, undisturbed};
use crate::support::{
    client::{Client, hello},
    json,
};

pub(crate) fn watchful(share: f64, on_divergence: OnDivergence) -> SecurityConfig {
    let audits = AuditPolicy { share, first_fragments: 0 };
    SecurityConfig { distrust: Distrust { audits, on_divergence, ..Distrust::default() }, ..SecurityConfig::default() }
}

/// Requests a token as a page does, for its tab's worker.
pub(crate) async fn token_of_page(hub: &TestHub) -> Token {
    let mut page = hub.operator().await;
    page.say(&Message::WorkerTokenRequest(Request { request: 7 })).await;
    page.wait_for(|message| match message {
        Message::WorkerToken(WorkerToken { request: 7, token }) => Some(*token),
        _ => None,
    })
    .await
}

pub(crate) fn flip_a_reward(fragment: &mut SlotFragment) {
    let mut rewards = fragment.rows.get(REWARDS).unwrap().to_vec();
    rewards[0] = f32::from_bits(rewards[0].to_bits() ^ 1);
    fragment.rows.insert(REWARDS.name(), ColumnData::scalars(rewards)).unwrap();
}

/// Returns the metrics of a run, except times.
pub(crate) fn metrics(run_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let without_time = |mut line: Value| {
        (line["wall_s"], line["steps_per_s"]) = (Value::Null, Value::Null);
        line
    };
    text.lines().map(json).map(without_time).collect()
}

/// Returns the metrics of an undisturbed run of 2,000 steps.
pub(crate) async fn undisturbed_metrics() -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let hub = TestHub::start().await;
    end(hub.train(RunRequest { run_dir: Some(run_dir.clone()), ..small(1, 2_000) }).await).await;
    hub.hub.shutdown().await;
    metrics(&run_dir)
}

/// Returns the lines of a run's output.
pub(crate) fn kept(output: &Path) -> String {
    let files = std::fs::read_dir(output).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Returns the output of an undisturbed run of 2,000 steps.
pub(crate) async fn kept_undisturbed() -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let hub = TestHub::start().await;
    end(hub.train(RunRequest { output: Some(output.clone()), ..small(1, 2_000) }).await).await;
    hub.hub.shutdown().await;
    kept(&output)
}

/// Joins as a tab that is honest for the given number of uploads and then sends divergent fragments, until it is
/// removed.
pub(crate) async fn diverges_after(hub: &TestHub, token: Token, honest: u32) {
    upload_until_quarantined(HandMade::join_as(hub, token, "browser").await, honest).await;
}

/// Uploads the given number of honest fragments, and then divergent ones until the hub disconnects the worker.
pub(crate) async fn upload_until_quarantined(mut worker: HandMade, honest: u32) {
    let mut uploads = 0;
    while let Some(upload) = worker.next_upload().await {
        uploads += 1;
        let upload = if uploads > honest { worker.changed(&upload, flip_a_reward) } else { upload };
        worker.client.send_if_connected(&Message::FragmentUpload(upload)).await;
    }
    assert!(uploads > honest);
}

/// Lets a tab join that sends divergent fragments after the given number of honest ones, and waits for the hub's notice of that.
async fn tab_diverges(hub: &mut TestHub, honest: u32, notice: &str) -> String {
    diverges_after(hub, token_of_page(hub).await, honest).await;
    hub.notice(notice).await
}

/// Lets a worker of the hub's end the run, and ends the hub.
async fn finished(hub: TestHub, run: PendingSummary) -> Summary {
    let helper = hub.worker();
    let summary = end(run).await;
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
    summary
}

#[tokio::test]
async fn divergent_tab_is_quarantined_and_its_rows_are_undone() {
    let expected = undisturbed().await;
    let directory = tempfile::tempdir().unwrap();
    for run_dir in [None, Some(directory.path().join("run"))] {
        let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
        let output = directory.path().join(if run_dir.is_some() { "with" } else { "without" });
        let (run_dir_too, output_too) = (run_dir.clone(), Some(output.clone()));
        let config = RunRequest { run_dir: run_dir_too, output: output_too, ..super::saved_often(small(0, 2_000)) };
        let run = hub.train(config).await;
        let token = token_of_page(&hub).await;
        diverges_after(&hub, token, 3).await;
        let line = hub.notice("the run goes back").await;
        // To before the first unaudited fragment: an audit of an honest fragment may still have been pending.
        let back: u32 = line
            .split_once(" to ")
            .and_then(|(_, rest)| rest.split_once(", before the rows of a quarantined principal")?.0.parse().ok())
            .unwrap();
        assert!(back <= 3, "{line}");
        let mut again = Client::connect(hub.hub.address()).await;
        again.say(&Message::Hello(hello(Role::Worker, token))).await;
        assert!(again.refusal().await.is_some(), "its token is revoked");

        let helper = hub.worker();
        let summary = end(run).await;
        assert_eq!(
            (summary.end, summary.weights_hash.to_string(), summary.tainted),
            (RunEnd::Finished, expected.clone(), false)
        );
        assert!(
            kept(&output) == kept_undisturbed().await,
            "rows from the divergent fragment are removed and recomputed"
        );
        if let Some(run_dir) = run_dir {
            assert_eq!(metrics(&run_dir), undisturbed_metrics().await);
            assert_eq!(weights_hash(&PolicyCheckpoint::load(run_dir).unwrap().weights).to_string(), expected);
        }
        hub.hub.shutdown().await;
        helper.finish_with(0).await;
    }
}

/// Checks that it has a higher number from then on, and is listed before the runs that wait for its end.
#[tokio::test]
async fn rolled_back_run_keeps_its_place_before_queued_runs() {
    let runs = tempfile::tempdir().unwrap();
    let with_runs = |config| HubConfig {
        security: watchful(1.0, OnDivergence::RollBack),
        runs_dir: Some(runs.path().into()),
        ..config
    };
    let start = |config| async { Hub::start(with_runs(config), &Registry::builtin()).await };
    let mut hub = TestHub::start_by("127.0.0.1:0", start).await;
    let run = hub.train(small(0, 2_000)).await;
    let mut operator = hub.operator().await;
    let next = |request| Message::StartRun(StartRun { request, settings: r#"{"seed": 2}"#.into() });
    assert_eq!(operator.ask(next).await, "");
    diverges_after(&hub, token_of_page(&hub).await, 1).await;
    hub.notice("the run goes back").await;
    let places = |message: &Message| match message {
        Message::RunList(list) => Some(list.runs.iter().map(|row| (row.run, row.place)).collect::<Vec<_>>()),
        _ => None,
    };
    let listed = operator.wait_for(|message| places(message).filter(|rows| rows.contains(&(3, 0)))).await;
    assert_eq!(listed, [(1, 0), (3, 0), (2, 1)]);
    hub.hub.stop_run().await;
    end(run).await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn divergent_fragment_that_no_batch_has_taken_is_undone_where_slots_do_not_keep_step() {
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    // Two rounds of all slots.
    let mode = SamplingMode::Asynchronous { batch_env_steps: 2 * 12 * 16, max_staleness: 1 };
    let run = hub.train_with(small(0, 2_000), |config| config.mode = mode).await;
    let line = tab_diverges(&mut hub, 0, "the run goes back").await;
    assert!(line.contains(" to 0, before the rows of a quarantined principal"), "{line}");
    let summary = finished(hub, run).await;
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, false));
}

/// Checks rows of devices, which cannot be recomputed in every bit: audits replay their actions.
#[tokio::test]
async fn divergent_tab_is_quarantined_in_a_run_with_rows_of_devices() {
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    let run = hub.train_with(small(0, 2_000), |config| config.device_rows = true).await;
    tab_diverges(&mut hub, 3, "the run goes back").await;
    let summary = finished(hub, run).await;
    assert_eq!((summary.end, summary.tainted, summary.reproducible), (RunEnd::Finished, false, false));
}

#[tokio::test]
async fn run_may_continue_tainted() {
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::Continue)).await;
    let run = hub.train(small(0, 2_000)).await;
    tab_diverges(&mut hub, 1, "it is tainted").await;
    let summary = finished(hub, run).await;
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, true));
}

#[tokio::test]
async fn a_tainted_run_stays_tainted_in_another_hub() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::Continue)).await;
    let run = hub.train(RunRequest { run_dir: Some(run_dir.clone()), ..small(0, 2_000) }).await;
    tab_diverges(&mut hub, 1, "it is tainted").await;
    hub.hub.stop_run().await;
    assert!(end(run).await.tainted);
    hub.hub.shutdown().await;
    let hub = TestHub::start().await;
    let run = hub.hub.resume(SavedRun::load(run_dir).unwrap()).await.unwrap();
    let summary = finished(hub, run).await;
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, true));
}

#[tokio::test]
async fn run_that_only_samples_continues_tainted() {
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    let config = RunConfig::sampling("CartPole-v1", 4).num_workers(0).rollout_fragment_length(16).stop_after(1_280);
    let mut sampling = hub.hub.sample(RunRequest { remote_only: true, ..config.into() }).await.unwrap();
    let batches = tokio::spawn(async move {
        while sampling.next_batch().await.is_some() {}
        end(sampling.end()).await
    });
    tab_diverges(&mut hub, 1, "it is tainted").await;
    let helper = hub.worker();
    let summary = batches.await.unwrap();
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, true));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn rolled_back_run_is_still_paused() {
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    let mut operator = hub.operator().await;
    let run = hub.train(small(0, 2_000)).await;
    let mut tab = HandMade::join_as(&hub, token_of_page(&hub).await, "browser").await;
    let wrong = tab.upload_after(3).await;
    assert_eq!(operator.ask(|request| Message::Pause(Request { request })).await, "");
    tab.client.say(&Message::FragmentUpload(tab.changed(&wrong, flip_a_reward))).await;
    hub.notice("the run goes back").await;
    let status = hub.status("a run that went back", |status| status.run == 2).await;
    assert_eq!((status.phase, status.iteration), (Phase::Paused.to_wire(), 3));
    assert_eq!(operator.ask(|request| Message::Resume(Request { request })).await, "");
    let helper = hub.worker();
    assert_eq!(end(run).await.weights_hash.to_string(), undisturbed().await);
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn tab_that_is_only_contradicted_is_disconnected() {
    let SecurityConfig { distrust, .. } = watchful(0.0, OnDivergence::RollBack);
    // As fast as any other worker, so that it is soon overdue.
    let distrust = Distrust { distrust_remote: true, ..distrust };
    let mut hub = TestHub::start_watchful(SecurityConfig { distrust, ..SecurityConfig::default() }).await;
    let run = hub.train(small(0, 2_000)).await;
    let (of_divergent, of_honest) = (token_of_page(&hub).await, token_of_page(&hub).await);
    let mut divergent = HandMade::join_as(&hub, of_divergent, "native").await;
    let wrong = divergent.next_upload().await.unwrap();
    let wrong = divergent.changed(&wrong, flip_a_reward);
    // Another worker is asked for the same, and is done first.
    let mut honest = HandMade::join_as(&hub, of_honest, "native").await;
    let right = honest.next_upload().await.unwrap();
    honest.client.say(&Message::FragmentUpload(right)).await;
    hub.status("the first iteration", |status| status.iteration == 1).await;
    divergent.client.say(&Message::FragmentUpload(wrong)).await;
    hub.notice("a fragment of its principal failed an audit").await;
    let mut again = Client::connect(hub.hub.address()).await;
    again.say(&Message::Hello(hello(Role::Worker, of_divergent))).await;
    assert!(again.refusal().await.is_some(), "its token is revoked");
    let summary = tokio::select! {
        summary = end(run) => summary,
        () = honest.stay() => panic!("an honest tab was disconnected"),
    };
    assert_eq!((summary.weights_hash.to_string(), summary.tainted), (undisturbed().await, false));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn rolled_back_run_keeps_its_throttle_and_its_output() {
    const THROTTLE: Duration = Duration::from_millis(400);
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, output) = (directory.path().join("run"), directory.path().join("output"));
    let lines = || -> usize {
        let files =
            std::fs::read_dir(&output).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        files.map(|text| text.lines().count()).sum()
    };
    // From the end of one update to that of the one after the next.
    let took = |iteration: usize| {
        let text = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
        let at: Vec<f64> = text.lines().map(|line| json(line)["wall_s"].as_f64().unwrap()).collect();
        Duration::from_secs_f64(at[iteration + 1] - at[iteration - 1])
    };
    let config = RunRequest {
        throttle: THROTTLE,
        run_dir: Some(run_dir.clone()),
        output: Some(output.clone()),
        ..small(0, 5 * 12 * 16)
    };
    let mut hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    let run = hub.train(config.clone()).await;
    let line = tab_diverges(&mut hub, 2, "the run goes back").await;
    assert!(line.contains(" to 2, before the rows of a quarantined principal"), "{line}");
    let helper = hub.worker();
    assert_eq!(end(run).await.end, RunEnd::Finished);
    assert!(lines() >= 5 && took(3) > THROTTLE, "{} {:?}", lines(), took(3));
    // So does one that resumes in another process, if it is started with the same flag.
    let before = lines();
    let later = RunRequest { config: config.config.stop_after(8 * 12 * 16), ..config };
    let run = hub.hub.resume(SavedRun::load(&run_dir).unwrap().with_request(later).unwrap()).await.unwrap();
    assert_eq!(end(run).await.end, RunEnd::Finished);
    assert_eq!(lines(), before + 3);
    assert!(took(6) > THROTTLE, "{:?}", took(6));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn no_honest_tab_fails_an_audit() {
    let expected = undisturbed().await;
    let hub = TestHub::start_watchful(watchful(1.0, OnDivergence::RollBack)).await;
    let run = hub.train(small(0, 2_000)).await;
    let mut tab = HandMade::join_as(&hub, token_of_page(&hub).await, "browser").await;
    // It has work as long as the run continues.
    let summary = tokio::select! {
        summary = end(run) => summary,
        () = tab.stay() => panic!("an honest tab was disconnected"),
    };
    assert_eq!((summary.weights_hash.to_string(), summary.tainted), (expected, false));
    hub.hub.shutdown().await;
}

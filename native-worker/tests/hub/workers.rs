//! Workers that disconnect, send garbage or falsified rows, or have no hub yet.

use std::time::Duration;

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, SecurityConfig},
    train::{RunEnd, RunRequest},
};
use rollmesh_core::{
    batch::REWARDS,
    column::ColumnData,
    env::EnvRegistry,
    protocol::{
        CHUNK_BYTES, Message, Token, WorkerState,
        message::{CallProgress, CallResult, Chunk, FragmentUpload, LeaseRefused, Request, RunAnswer, WorkerRow},
    },
};
use serde_json::{Value, json};

use super::{TestHub, end, hand_made::HandMade, small, undisturbed};
use crate::support::{
    Process,
    client::Client,
    process::{Signal, children_of, has_ended},
    until,
};

#[tokio::test]
async fn worker_that_disconnects_with_a_lease_changes_no_weights() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    for _ in 0..3 {
        let mut worker = hub.hand_made_worker().await;
        worker.answer_able().await;
        worker.wait_for(|message| matches!(message, Message::LeaseGrant(_)).then_some(())).await;
        drop(worker);
        hub.notice(" left: ").await;
    }
    let helper = hub.worker();
    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn garbage_for_a_lease_is_rejected_and_the_lease_re_granted() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    let mut worker = HandMade::join(&hub).await;
    let upload = worker.next_upload().await.unwrap();

    let unknown = FragmentUpload { lease: upload.lease + 1000, ..upload.clone() };
    worker.client.say(&Message::FragmentUpload(unknown)).await;
    hub.notice("was not accepted: the lease is unknown").await;
    let empty = FragmentUpload { run: upload.run, lease: upload.lease, ..FragmentUpload::default() };
    worker.client.say(&Message::FragmentUpload(empty)).await;
    hub.notice("was not accepted: ").await;
    drop(worker);
    let helper = hub.worker();
    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

/// Checks that a peer with a worker's token fills neither the audit log nor the terminal nor the memory.
#[tokio::test]
async fn worker_that_sends_unrequested_answers_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let hub =
        TestHub::start_watchful(SecurityConfig { audit_log: Some(audit.clone()), ..SecurityConfig::default() }).await;
    let run = hub.train(small(0, 2_000)).await;
    let answers: [fn(u64) -> Message; 5] = [
        |run| Message::RunAnswer(RunAnswer::new(run as u32 + 1_000, Ok(()))),
        |lease| Message::LeaseRefused(LeaseRefused { lease: lease + 1_000, reason: String::new(), failed: None }),
        |lease| Message::FragmentUpload(FragmentUpload { run: 1, lease: lease + 1_000, ..FragmentUpload::default() }),
        |call| Message::CallResult(CallResult { call, ok: true, body: vec![0; 1_000] }),
        |call| Message::CallProgress(CallProgress { call }),
    ];
    let hub_says = || std::fs::read_to_string(&audit).unwrap();
    for (sent_away, answer) in answers.into_iter().enumerate() {
        let mut worker = hub.hand_made_worker().await;
        for number in 0..200 {
            worker.send_if_connected(&answer(number)).await;
        }
        let fault = r#""fault":"it keeps sending answers without a call""#;
        until("the end of its connection", || hub_says().matches(fault).count() == sent_away + 1).await;
    }
    let log = std::fs::read_to_string(audit.with_extension("leases.jsonl")).unwrap();
    assert_eq!(log.matches(r#""event":"lease_refused""#).count(), 0);
    // At most fifty in each of two seconds.
    assert!(log.matches(r#""event":"upload_rejected""#).count() <= 100);
    let helper = hub.worker();
    assert_eq!(end(run).await.end, RunEnd::Finished);
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

/// Checks that a worker that was called may send a large answer; other large answers are cut off.
#[tokio::test]
async fn unrequested_large_result_disconnects_at_its_first_part() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let hub =
        TestHub::start_watchful(SecurityConfig { audit_log: Some(audit.clone()), ..SecurityConfig::default() }).await;
    let mut worker = hub.hand_made_worker().await;
    let mut data = Message::CallResult(CallResult { call: 1, ok: true, body: vec![0; CHUNK_BYTES as usize] }).encode();
    let total = data.len() as u32;
    data.truncate(CHUNK_BYTES as usize);
    worker.say(&Message::Chunk(Chunk { stream: 0, total, offset: 0, data })).await;
    let fault = r#""fault":"a result in parts, and no call that waits for one""#;
    until("the end of its connection", || std::fs::read_to_string(&audit).unwrap().contains(fault)).await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn divergent_worker_does_not_stop_the_run() {
    let hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    let mut divergent = HandMade::join(&hub).await;
    let honest = divergent.next_upload().await.unwrap();
    let lie = divergent.changed(&honest, |fragment| {
        let mut rewards = fragment.rows.get(REWARDS).unwrap().to_vec();
        rewards[0] = 2.0;
        fragment.rows.insert(REWARDS.name(), ColumnData::scalars(rewards)).unwrap();
    });
    assert_ne!(lie, honest);
    divergent.client.say(&Message::FragmentUpload(lie)).await;
    let helper = hub.worker();
    hub.status("the first iteration", |status| status.iteration > 0).await;
    drop(divergent);
    assert_eq!(end(run).await.end, RunEnd::Finished);
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

/// Returns the output of `rollmesh status` about a hub.
pub(crate) async fn status_of(hub: &TestHub, flags: &[&str]) -> String {
    let url = format!("ws://{}", hub.hub.address());
    let args = ["status", "--hub", &url].into_iter().chain(flags.iter().copied());
    let token = hub.operator_token().to_hex();
    let status = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token));
    status.finish_with(0).await.stdout
}

/// Waits until a worker's row meets the condition.
pub(crate) async fn row_of(viewer: &mut Client, worker: u32, is_so: impl Fn(&WorkerRow) -> bool) -> WorkerRow {
    let row = viewer.wait_for(|message| match message {
        Message::WorkerRow(row) if row.worker == worker && is_so(row) => Some(row.clone()),
        _ => None,
    });
    row.await
}

#[tokio::test]
async fn run_ends_if_no_connected_worker_is_able() {
    let mut cart_pole = EnvRegistry::builtin().spec("CartPole-v1").unwrap();
    cart_pole.name = "Mine-v0".into();
    let registry = Registry::builtin().with_env(cart_pole);
    let hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(config, &registry).await }).await;
    let run = hub.train_with(small(0, 2_000), |config| config.rollout.env = Some("Mine-v0".into())).await;
    let _worker = hub.worker();
    let summary = end(run).await;
    let error = summary.error.unwrap();
    let expected =
        "none of the 1 connected workers can continue, worker 1: unknown environment: there is no environment";
    assert!(error.starts_with(expected), "{error}");
    assert!(matches!(summary.end, RunEnd::Failed(_)));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn unable_worker_reports_the_reason_and_works_for_the_next_run() {
    let mut cart_pole = EnvRegistry::builtin().spec("CartPole-v1").unwrap();
    cart_pole.name = "Mine-v0".into();
    let registry = Registry::builtin().with_env(cart_pole);
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let security = SecurityConfig { audit_log: Some(audit.clone()), ..SecurityConfig::default() };
    let secured = |config| HubConfig { security, ..config };
    let mut hub =
        TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(secured(config), &registry).await }).await;
    let mut process = hub.worker();
    hub.notice(" joined: ").await;
    let run = hub.train_with(small(0, 2_000), |config| config.rollout.env = Some("Mine-v0".into())).await;

    let why = "unknown environment: there is no environment 'Mine-v0'; Gymnasium's would be gym:Mine-v0; known are: ";
    let line = process.line("this worker cannot run the hub's run 1").await;
    assert!(line.contains(why), "{line}");
    hub.notice(&format!("worker 1 cannot run this, and gets no lease of it: {why}")).await;
    hub.notice("none of the 1 workers can run this: the run ends unless one that can comes soon").await;
    let mut viewer = hub.viewer().await;
    let row = row_of(&mut viewer, 1, |row| row.state == WorkerState::Unable.to_wire()).await;
    assert!(row.reason.starts_with(why), "{row:?}");
    let text = status_of(&hub, &[]).await;
    assert!(text.contains(&format!("unable      worker 1: {why}")), "{text}");
    let json: Value = serde_json::from_str(&status_of(&hub, &["--json"]).await).unwrap();
    assert_eq!((&json["idle_workers"][0]["state"], &json["unhealthy_workers"]), (&"unable".into(), &json!([])));

    let mut able = HandMade::join_with(&hub, hub.hub.worker_token(), "native", registry.envs.clone()).await;
    let summary = tokio::select! {
        summary = end(run) => summary,
        () = able.stay() => panic!("the hub hung up"),
    };
    assert_eq!(summary.end, RunEnd::Finished);
    drop(able);
    // It is asked again, without a penalty.
    let summary = end(hub.train(small(0, 2_000)).await).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, undisturbed().await));
    hub.hub.shutdown().await;
    process.finish_with(0).await;
    let log = std::fs::read_to_string(audit.with_extension("leases.jsonl")).unwrap();
    assert_eq!(log.matches("worker 1 cannot run this").count(), 1, "{log}");
    assert!(!log.contains("refused") && !log.contains("gets no more leases"), "{log}");
}

#[tokio::test]
async fn worker_without_a_slot_shows_why_it_idles() {
    let mut hub = TestHub::start().await;
    let mut processes = vec![];
    for _ in 0..3 {
        processes.push(hub.worker());
        hub.notice(" joined: ").await;
    }
    let mut viewer = hub.viewer().await;
    let run = hub.train_with(small(0, u64::MAX), |config| config.rollout.num_envs = 2).await;
    let few = |workers: u32| {
        let wanted = 2 * workers;
        format!(
            "the run has 2 slots for {workers} workers that could have 2 each; raise num_slots to {wanted}, or use fewer workers"
        )
    };
    hub.notice(&format!("slots, not workers, are the limit: {}", few(2))).await;
    let no_slot = format!("no free slot: {}", few(3));
    let is_idle = |row: &WorkerRow| row.reason == no_slot && row.state == WorkerState::Idle.to_wire();
    let idle = viewer.wait_for(|message| match message {
        Message::WorkerRow(row) if is_idle(row) => Some(row.worker),
        _ => None,
    });
    let idle = idle.await;
    hub.status("an iteration", |status| status.iteration > 3).await;
    // Workers take turns with the slots, so only a pause lasts until the command line is asked.
    let mut operator = hub.operator().await;
    assert_eq!(operator.ask(|request| Message::Pause(Request { request })).await, "");
    row_of(&mut viewer, idle, |row| row.reason == "the run is paused").await;
    assert!(status_of(&hub, &[]).await.contains("the run is paused"));
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    row_of(&mut viewer, idle, |row| row.reason == "the run is over").await;
    hub.hub.shutdown().await;
    for process in processes {
        process.finish_with(0).await;
    }
}

#[tokio::test]
async fn a_worker_waits_for_its_hub_and_says_so() {
    // A port of an address that no other test uses.
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let token = Token::new([7; 32]);
    let mut worker = Process::worker(&address.to_string(), &token.to_hex());
    for _ in 0..2 {
        let line = worker.line("trying again in ").await;
        assert!(line.starts_with(&format!("cannot reach the hub at ws://{address}: ")), "{line}");
    }
    // This hub has other tokens: the worker has arrived when it is refused.
    let _hub = TestHub::start_at(&address.to_string()).await;
    let end = worker.finish_with(2).await;
    assert!(
        end.stderr.contains("error: the hub refused this worker: the token is not valid for this role; a hub that"),
        "{}",
        end.stderr
    );
}

#[tokio::test]
async fn a_worker_ends_with_its_hub() {
    let mut hub = TestHub::start().await;
    let worker = hub.worker();
    hub.notice(" joined: ").await;
    hub.hub.shutdown().await;
    let end = worker.finish_with(0).await;
    assert!(end.stderr.contains("the hub is shutting down"), "{}", end.stderr);
}

#[tokio::test]
async fn an_extra_worker_may_help_local_ones() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let run = hub.train(RunRequest { throttle: Duration::from_millis(100), ..small(2, 2_000) }).await;
    // It comes in the middle: the run waits for it.
    hub.status("an iteration", |status| status.iteration > 0).await;
    assert_eq!(operator.ask(|request| Message::Pause(Request { request })).await, "");
    let helper = hub.worker();
    hub.notice(" joined: worker (native, cpu)").await;
    assert_eq!(operator.ask(|request| Message::Resume(Request { request })).await, "");
    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn the_commands_of_the_hub_and_its_worker_fit_together() {
    let mut hub = Process::start(["hub", "--listen", "127.0.0.1:0"]);
    let invitation = hub.invitation().await;
    let worker = Process::worker(&invitation.address, &invitation.worker_token);
    hub.line("worker 1 joined: worker (native, cpu)").await;
    hub.signal(Signal::INT);
    let end = hub.finish_with(0).await;
    assert_eq!(end.stdout, "");
    let end = worker.finish_with(0).await;
    assert!(end.stderr.contains("the hub is shutting down"), "{}", end.stderr);
}

#[tokio::test]
async fn worker_without_a_valid_token_names_the_fix() {
    let tokenless = Process::start(["worker", "--hub", "ws://127.0.0.1:1"]).finish_with(2).await;
    assert!(tokenless.stderr.contains("ROLLMESH_TOKEN is not set"), "{}", tokenless.stderr);
    let garbled = Process::worker("127.0.0.1:1", "secret").finish_with(2).await;
    assert!(garbled.stderr.contains("a token has 64 hexadecimal digits"), "{}", garbled.stderr);
    let open = Process::worker("192.0.2.1:1", &"ab".repeat(32)).finish_with(2).await;
    assert!(open.stderr.contains("use wss://"), "{}", open.stderr);
}

#[tokio::test]
async fn a_hub_that_is_shut_down_takes_its_workers_along() {
    let mut hub = TestHub::start().await;
    let run = hub.train(small(2, 1_000_000_000)).await;
    hub.notice(" joined: ").await;
    hub.notice(" joined: ").await;
    // Other tests' workers are children of this process as well.
    let ours: Vec<u32> = children_of(std::process::id())
        .into_iter()
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&hub.hub.address().to_string())
        })
        .collect();
    assert_eq!(ours.len(), 2);
    hub.hub.shutdown().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    until("the end of its workers", || ours.iter().all(|&pid| has_ended(pid))).await;
}

//! The requests of an operator, over the socket.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig},
    train::{RunConfig, RunEnd, RunRequest, SavedRun},
};
use rollmesh_core::{
    config::Config,
    filter::FilterKind,
    group::SamplingMode,
    protocol::{
        Message, Phase,
        message::{Request, RunHistoryRequest, RunStatus, StartRun, Watch, WorkerRequest},
    },
    time::Micros,
};

use serde_json::json;

use super::{TestHub, end, small};
use crate::support::{Process, client::Client};

async fn phase(operator: &mut Client, phase: Phase) -> RunStatus {
    operator
        .wait_for(|message| match message {
            Message::RunStatus(status) if status.phase == phase.to_wire() => Some(status.clone()),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn an_operator_controls_a_run() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let pause = |request| Message::Pause(Request { request });
    assert_eq!(operator.ask(pause).await, "there is no run to pause");

    let run = hub.train(small(2, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    assert_eq!(operator.ask(pause).await, "");
    let paused =
        hub.status("nothing outstanding", |status| status.phase == Phase::Paused.to_wire() && status.outstanding == 0);
    let paused = paused.await;
    assert_eq!(paused.granted, paused.committed + paused.superseded + paused.rejected + paused.expired);

    // Each answer comes with a fresh status behind it: commands, not time, pass here.
    for slot in [0, 11, 3] {
        assert_eq!(operator.ask(|request| Message::Watch(Watch { request, slot })).await, "");
    }
    let answer = operator.ask(|request| Message::Watch(Watch { request, slot: 12 })).await;
    assert_eq!(answer, "the run has 12 slots, there is no slot 12");
    let later = hub.status("slot 3 to be watched", |status| status.watched_slot == 3).await;
    assert_eq!(later.granted, paused.granted, "a paused run grants nothing");

    assert_eq!(operator.ask(|request| Message::Resume(Request { request })).await, "");
    hub.status("more steps", |status| status.env_steps > later.env_steps + 1_000).await;

    let answer = start(&mut operator, &settings()).await;
    assert_eq!(answer, "another run is in progress; stop it first");
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    let answer = operator.ask(|request| Message::Resume(Request { request })).await;
    assert_eq!(answer, "there is no run to resume");
}

fn settings() -> Config {
    r#"{"seed": 3, "num_workers": 1, "num_envs": 4, "stop": {"env_steps": 100}}"#.parse().unwrap()
}

async fn start(operator: &mut Client, settings: &Config) -> String {
    operator.ask(|request| Message::StartRun(StartRun { request, settings: settings.to_string() })).await
}

#[tokio::test]
async fn an_operator_starts_a_run() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    for (path, wrong, reason) in [
        ("env", json!("CartPole-v9"), "there is no environment 'CartPole-v9'"),
        ("algorithm", json!("magic"), "there is no algorithm 'magic'; known are: a2c, bc, marwil, pg, ppo"),
        ("evaluation.init.name", json!("magic"), "evaluation.init: there is no init function 'magic'"),
        ("stop.env_steps", json!(0), "stop.env_steps is 0; it must be at least 1"),
        ("num_envs", json!(0), "num_envs is 0"),
        ("observation_filter", json!("Magic"), "observation_filter is \"Magic\"; it must be NoFilter or"),
        ("mode", json!("magic"), "mode is \"magic\""),
        ("mode.deadline.after", json!(u64::MAX), "mode.deadline.after is 18446744073709551615; it must be at most"),
        ("num_workers", json!(u32::MAX), "num_workers is 4294967295; it must be at most 64"),
        ("policy_config.gamma", json!(2), "policy_config.gamma: 2 must be from 0 to 1"),
        ("host.device", json!("cuda:1"), "host.device belongs to one machine and is not taken from the wire"),
        ("output", json!("/etc"), "output is \"/etc\"; it must be at most 64 letters"),
        // This hub has no directory for runs, which would hold them.
        ("output", json!("rows"), "output belongs to one machine and is not taken from the wire"),
        ("monitor_path", json!("films"), "monitor_path belongs to one machine and is not taken from the wire"),
    ] {
        let answer = start(&mut operator, &settings().with_at(path, wrong)).await;
        assert!(answer.contains(reason), "{answer}");
    }
    let answer = operator.ask(|request| Message::StartRun(StartRun { request, settings: "7".into() })).await;
    assert!(answer.contains("must be a JSON object"), "{answer}");
    let long = settings().with_at("policy_config", json!({ "x".repeat(40_000): 1 }));
    let answer = start(&mut operator, &long).await;
    assert!(answer.contains("there is no such setting") && answer.len() <= 1_000, "{answer}");
    let long = settings().with_at("policies", json!({ "x".repeat(40_000): { "policy": "ppo" } }));
    assert_eq!(start(&mut operator, &long).await.len(), 1_000, "the hub replies whatever the length of a name");
    assert_eq!(start(&mut operator, &settings()).await, "");
    let status = phase(&mut operator, Phase::Finished).await;
    assert_eq!((status.run, status.seed, status.num_slots), (1, 3, 4));
    assert!(status.env_steps >= 100);
    // And another one after it, with the same worker.
    assert_eq!(start(&mut operator, &settings()).await, "");
    let again = hub.status("another run", |status| status.run == 2 && status.phase == Phase::Finished.to_wire()).await;
    assert_eq!(again.env_steps, status.env_steps);
    compare(&hub, &status).await;
}

/// Compares past runs, also as a viewer: their curves and settings are available.
async fn compare(hub: &TestHub, first: &RunStatus) {
    let mut viewer = hub.viewer().await;
    let mut histories = Vec::new();
    for run in [1, 2] {
        viewer.say(&Message::RunHistoryRequest(RunHistoryRequest { request: 40 + run, run })).await;
        let history = viewer.wait_for(|message| match message {
            Message::RunHistory(history) if history.request == 40 + run => Some(history.clone()),
            _ => None,
        });
        histories.push(history.await);
    }
    let [past, current] = &histories[..] else { panic!("two answers") };
    assert_eq!((past.run, current.run, &past.config), (1, 2, &current.config));
    let config = RunConfig::from_wire(&past.config).expect("it is what workers get");
    assert_eq!((config.rollout.seed, config.stop.env_steps), (3, 100));
    let last = past.iterations.last().expect("an iteration");
    assert_eq!((past.iterations.len() as u64, last.env_steps, last.run), (first.iteration, first.env_steps, 1));
    viewer.say(&Message::RunHistoryRequest(RunHistoryRequest { request: 50, run: 3 })).await;
    let refused = viewer.wait_for(|message| match message {
        Message::Reply(reply) if reply.request == 50 => Some(reply.error.clone()),
        _ => None,
    });
    assert_eq!(refused.await, "the hub has no run 3 that has begun");
}

#[tokio::test]
async fn run_started_by_an_operator_has_a_directory_and_resumes_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let runs_dir = directory.path().join("runs");
    let at = |config| HubConfig { runs_dir: Some(runs_dir.clone()), ..config };
    let hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(at(config), &Registry::builtin()).await });
    let hub = hub.await;
    let mut operator = hub.operator().await;
    let (after, max_staleness) = (Micros::from_millis(50), 2);
    let mut seen = Vec::new();
    // A batch of an iteration is at most a fragment of each of the four slots.
    for (mode, wanted) in [
        (json!("synchronous"), SamplingMode::Synchronous),
        (
            json!({ "asynchronous": { "max_staleness": 2 } }),
            SamplingMode::Asynchronous { batch_env_steps: 4 * 64, max_staleness },
        ),
        (
            json!({ "deadline": { "after": after, "max_staleness": 2 } }),
            SamplingMode::Deadline { after, max_staleness },
        ),
    ] {
        let filter = FilterKind::MeanStdFilter;
        let settings = settings().with_at("seed", json!(7)).with_at("observation_filter", json!(filter.name()));
        assert_eq!(start(&mut operator, &settings.with_at("mode", mode)).await, "");
        // A run may be over before a status says that it continues.
        let finished = Phase::Finished.to_wire();
        let run_dir = operator
            .wait_for(|message| match message {
                Message::RunStatus(status) if status.phase == finished && !seen.contains(&status.run_dir) => {
                    Some(status.run_dir.clone())
                }
                _ => None,
            })
            .await;
        assert!(run_dir.starts_with(runs_dir.join("CartPole-v1-seed7-").to_str().unwrap()), "{run_dir}");
        let saved = SavedRun::load(&run_dir).unwrap();
        assert_eq!((saved.config().mode, saved.config().rollout.observation_filter), (wanted, filter));
        assert!(saved.iteration() > 0, "it was saved at its end");
        let later = saved.config().clone().stop_after(saved.env_steps() + 100);
        let again = hub.hub.resume(saved.with_request(RunRequest::from(later)).unwrap()).await.unwrap();
        assert_eq!(end(again).await.end, RunEnd::Finished);
        seen.push(run_dir);
    }
    assert_eq!(std::fs::read_dir(&runs_dir).unwrap().count(), 3);
}

#[tokio::test]
async fn dashboard_receives_schema_of_hub() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let schema = operator.wait_for(|message| match message {
        Message::RunSchema(schema) => Some(schema.schema.clone()),
        _ => None,
    });
    let schema: serde_json::Value = serde_json::from_str(&schema.await).unwrap();
    assert_eq!(schema, rollmesh::learner::run_schema(&Registry::builtin()));
}

#[tokio::test]
async fn an_operator_adds_and_removes_workers() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let joined = |message: &Message| match message {
        Message::WorkerRow(row) => Some(row.clone()),
        _ => None,
    };
    assert_eq!(operator.ask(|request| Message::AddWorker(Request { request })).await, "");
    hub.notice(" joined: local-1 (native, cpu)").await;
    let row = operator.wait_for(joined).await;
    assert!(row.local);

    operator.say(&Message::WorkerTokenRequest(Request { request: 99 })).await;
    let token = operator.wait_for(|message| match message {
        Message::WorkerToken(answer) => Some((answer.request, answer.token)),
        _ => None,
    });
    let (request, token) = token.await;
    assert_eq!(request, 99);
    let invited = Process::worker(&hub.hub.address().to_string(), &token.to_hex());
    hub.notice(" joined: worker (native, cpu)").await;

    let run = hub.train(small(1, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    let answer = operator.ask(|request| Message::RemoveWorker(WorkerRequest { request, worker: 4711 })).await;
    assert_eq!(answer, "there is no worker 4711");
    let remove = |request| Message::RemoveWorker(WorkerRequest { request, worker: row.worker });
    assert_eq!(operator.ask(remove).await, "");
    hub.notice(&format!("worker {} left: ", row.worker)).await;
    let before = hub.hub.status().current().env_steps;
    hub.status("more steps without it", |status| status.env_steps > before + 1_000).await;

    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    assert!(!hub.seen.iter().any(|line| line.contains("takes its place")), "{:?}", hub.seen);
    hub.hub.shutdown().await;
    invited.finish_with(0).await;
}

#[tokio::test]
async fn an_operator_restarts_workers_of_the_hub_and_no_others() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    assert_eq!(operator.ask(|request| Message::AddWorker(Request { request })).await, "");
    let row = |local| {
        move |message: &Message| match message {
            Message::WorkerRow(row) if row.local == local => Some(row.worker),
            _ => None,
        }
    };
    let first = operator.wait_for(row(true)).await;
    let run = hub.train(small(1, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;

    let restart = |worker| move |request| Message::RestartWorker(WorkerRequest { request, worker });
    assert_eq!(operator.ask(restart(first)).await, "");
    hub.notice("; another one takes its place").await;
    let other = |message: &Message| row(true)(message).filter(|worker| *worker != first);
    let second = operator.wait_for(other).await;
    let before = hub.hub.status().current().env_steps;
    hub.status("more steps of the other one", |status| status.env_steps > before + 1_000).await;
    assert_eq!(operator.ask(restart(first)).await, format!("there is no worker {first}"));

    operator.say(&Message::WorkerTokenRequest(Request { request: 99 })).await;
    let token = operator.wait_for(|message| match message {
        Message::WorkerToken(answer) => Some(answer.token),
        _ => None,
    });
    let invited = Process::worker(&hub.hub.address().to_string(), &token.await.to_hex());
    let invited_id = operator.wait_for(row(false)).await;
    let refusal = format!("worker {invited_id} was not started by this hub: restart it where it was started");
    assert_eq!(operator.ask(restart(invited_id)).await, refusal);

    assert_eq!(operator.ask(|request| Message::RemoveWorker(WorkerRequest { request, worker: second })).await, "");
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    let summary = end(run).await;
    assert_eq!((summary.end, summary.failures.count), (RunEnd::Stopped, 0), "a restart is no failure");
    hub.hub.shutdown().await;
    invited.finish_with(0).await;
}

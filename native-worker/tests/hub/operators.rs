//! What an operator asks for, over the socket.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig},
    train::{RunEnd, SavedRun, TrainConfig},
};
use rollmesh_core::{
    filter::FilterKind,
    group::SamplingMode,
    protocol::{
        Message, Phase,
        message::{RemoveWorker, Request, RunStatus, StartRun, Watch},
    },
    time::Micros,
};

use super::{
    TestHub, end, small,
    support::{Process, client::Client},
};

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

    let answer = operator.ask(|request| Message::StartRun(start(request))).await;
    assert_eq!(answer, "another run is going on; stop it first");
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    let answer = operator.ask(|request| Message::Resume(Request { request })).await;
    assert_eq!(answer, "there is no run to resume");
}

fn start(request: u32) -> StartRun {
    StartRun {
        request,
        env: "CartPole-v1".into(),
        algo: "ppo".into(),
        seed: 3,
        num_workers: 1,
        num_envs_per_worker: 4,
        stop_return: f32::NAN,
        max_env_steps: 100,
        observation_filter: "NoFilter".into(),
        mode: "sync".into(),
        max_staleness: 1,
        batch_env_steps: 0,
        deadline_ms: 50,
    }
}

#[tokio::test]
async fn an_operator_starts_a_run() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    for (wrong, reason) in [
        (StartRun { env: "CartPole-v9".into(), ..start(0) }, "there is no environment 'CartPole-v9'"),
        (StartRun { algo: "magic".into(), ..start(0) }, "there is no algorithm 'magic'"),
        (StartRun { max_env_steps: 0, ..start(0) }, "max_env_steps must be at least 1"),
        (StartRun { num_envs_per_worker: 0, ..start(0) }, "num_"),
        (StartRun { observation_filter: "Magic".into(), ..start(0) }, "'Magic'"),
        (StartRun { mode: "magic".into(), ..start(0) }, "there is no sampling mode 'magic'"),
        (
            StartRun { mode: "deadline".into(), deadline_ms: u64::MAX, ..start(0) },
            "deadline_ms is 18446744073709551615",
        ),
        (StartRun { num_workers: u32::MAX, num_envs_per_worker: u32::MAX, ..start(0) }, "number of local workers"),
    ] {
        let answer = operator.ask(|request| Message::StartRun(StartRun { request, ..wrong })).await;
        assert!(answer.contains(reason), "{answer}");
    }
    assert_eq!(operator.ask(|request| Message::StartRun(start(request))).await, "");
    let status = phase(&mut operator, Phase::Finished).await;
    assert_eq!((status.run, status.seed, status.num_slots), (1, 3, 4));
    assert!(status.env_steps >= 100);
    // And another one after it, with the same worker.
    assert_eq!(operator.ask(|request| Message::StartRun(start(request))).await, "");
    let again = hub.status("another run", |status| status.run == 2 && status.phase == Phase::Finished.to_wire()).await;
    assert_eq!(again.env_steps, status.env_steps);
}

#[tokio::test]
async fn a_run_that_an_operator_starts_has_a_directory_and_goes_on_from_there() {
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
        ("sync", SamplingMode::Synchronous),
        ("async", SamplingMode::Asynchronous { batch_env_steps: 4 * 64, max_staleness }),
        ("deadline", SamplingMode::Deadline { after, max_staleness }),
    ] {
        let filter = FilterKind::MeanStdFilter;
        let (observation_filter, mode) = (filter.name().into(), mode.into());
        let start = StartRun { seed: 7, observation_filter, mode, max_staleness, ..start(0) };
        assert_eq!(operator.ask(|request| Message::StartRun(StartRun { request, ..start })).await, "");
        // A run may be over before a status says that it goes on.
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
        assert_eq!((saved.config().mode, saved.config().observation_filter), (wanted, filter));
        assert!(saved.iteration() > 0, "it was saved at its end");
        let later = TrainConfig { max_env_steps: saved.env_steps() + 100, ..saved.config().clone() };
        let again = hub.hub.resume(saved.with_config(later).unwrap()).await.unwrap();
        assert_eq!(end(again).await.end, RunEnd::Finished);
        seen.push(run_dir);
    }
    assert_eq!(std::fs::read_dir(&runs_dir).unwrap().count(), 3);
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
    let guest = Process::worker(&hub.hub.address().to_string(), &token.to_hex());
    hub.notice(" joined: worker (native, cpu)").await;

    let run = hub.train(small(1, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    let answer = operator.ask(|request| Message::RemoveWorker(RemoveWorker { request, worker: 4711 })).await;
    assert_eq!(answer, "there is no worker 4711");
    let remove = |request| Message::RemoveWorker(RemoveWorker { request, worker: row.worker });
    assert_eq!(operator.ask(remove).await, "");
    hub.notice(&format!("worker {} left: ", row.worker)).await;
    let before = hub.hub.status().borrow().env_steps;
    hub.status("more steps without it", |status| status.env_steps > before + 1_000).await;

    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    assert!(!hub.seen.iter().any(|line| line.contains("takes its place")), "{:?}", hub.seen);
    hub.hub.shutdown().await;
    guest.finish_with(0).await;
}

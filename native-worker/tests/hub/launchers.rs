//! Launchers and their workers made by hand: the permissions of a worker's token, and workers whose launcher is
//! disconnected.

use rollmesh_core::protocol::{
    Message, RefusalCode, Role, Token, TokenAction, TokenHash,
    message::{
        Hello, HostReport, LaunchWorker, LauncherReady, ManageTokens, NewToken, Renew, Request, Scale, StartRun,
        WorkerEnded, WorkerLocation, WorkerRequest,
    },
};

use super::{TestHub, small};
use crate::support::client::{Client, hello};

const READY: LauncherReady = LauncherReady { capacity: 2, token_seconds: 600, running: Vec::new() };

async fn create_token(operator: &mut Client) -> Token {
    let (action, role) = (TokenAction::Create.to_wire(), Role::Launcher.to_wire());
    operator.say(&Message::ManageTokens(ManageTokens { request: 77, action, role, token: 0, seconds: 0 })).await;
    operator
        .wait_for(|message| match message {
            Message::NewToken(NewToken { request: 77, token, .. }) => Some(*token),
            _ => None,
        })
        .await
}

async fn revoke(operator: &mut Client, token: &Token) {
    let (action, token) = (TokenAction::Revoke.to_wire(), TokenHash::of(token).id().0);
    let wish = |request| Message::ManageTokens(ManageTokens { request, action, token, ..ManageTokens::default() });
    assert_eq!(operator.ask(wish).await, "");
}

async fn scale(operator: &mut Client, num_workers: u32) -> String {
    operator.ask(|request| Message::Scale(Scale { request, num_workers })).await
}

/// Waits for the next order to start a worker.
async fn order(launcher: &mut Client) -> LaunchWorker {
    launcher
        .wait_for(|message| match message {
            Message::LaunchWorker(order) => Some(order.clone()),
            _ => None,
        })
        .await
}

async fn next_end_worker(launcher: &mut Client) -> u64 {
    launcher
        .wait_for(|message| match message {
            Message::EndWorker(end) => Some(end.worker),
            _ => None,
        })
        .await
}

/// Joins as a worker; returns its connection and session, or the hub's refusal as an error.
async fn join(hub: &TestHub, token: Token, resume_id: [u8; 16]) -> Result<(Client, [u8; 16]), u8> {
    greet(hub, Hello { resume_id, ..hello(Role::Worker, token) }).await
}

/// Connects with this Hello; returns the connection and session, or the hub's refusal as an error.
async fn greet(hub: &TestHub, hello: Hello) -> Result<(Client, [u8; 16]), u8> {
    let mut peer = hub.connect().await;
    peer.say(&Message::Hello(hello)).await;
    match peer.receive().await {
        Some(Message::Welcome(welcome)) => Ok((peer, welcome.resume_id)),
        Some(Message::Refused(refused)) => Err(refused.code),
        other => panic!("{other:?}"),
    }
}

/// Starts a hub with an operator, and a launcher that is ready, with its token.
async fn ready() -> (TestHub, Client, Token, Client) {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let token = create_token(&mut operator).await;
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    launcher.say(&Message::LauncherReady(READY)).await;
    hub.notice("has places").await;
    (hub, operator, token, launcher)
}

#[tokio::test]
async fn workers_token_admits_one_worker_which_may_reconnect() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let token = create_token(&mut operator).await;
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    launcher.say(&Message::LauncherReady(READY)).await;
    hub.notice("has places for 2 workers").await;
    assert_eq!(operator.ask(|request| Message::AddWorker(Request { request })).await, "");
    let ordered = order(&mut launcher).await;
    assert_eq!((ordered.number, &*ordered.spec), (1, r#"{"cpus":0}"#));
    let (mut worker, session) = join(&hub, ordered.token, [0; 16]).await.unwrap();
    worker.say(&Message::HostReport(HostReport { host: "node\n7".into(), ..HostReport::default() })).await;
    let place = operator.wait_for(|message| match message {
        Message::WorkerLocation(place) if !place.host.is_empty() => Some(place.clone()),
        _ => None,
    });
    let place = place.await;
    assert_eq!(place, WorkerLocation { worker: place.worker, host: "node?7".into(), launcher: "by-hand".into() });

    let refused = RefusalCode::Token.to_wire();
    for stranger in [[0; 16], [1; 16]] {
        assert_eq!(join(&hub, ordered.token, stranger).await.err(), Some(refused));
    }
    let (_worker, again) = join(&hub, ordered.token, session).await.unwrap();
    assert_eq!(again, session);

    // A worker that has ended takes its token with it, and another one takes its place.
    let ended = WorkerEnded { worker: ordered.worker, status: "exit status: 1".into(), is_crash: false };
    launcher.say(&Message::WorkerEnded(ended)).await;
    hub.notice("local worker 1 ended (exit status: 1); another one takes its place").await;
    let next = order(&mut launcher).await;
    assert_ne!((next.worker, next.token), (ordered.worker, ordered.token));
    assert_eq!(join(&hub, ordered.token, session).await.err(), Some(refused));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn workers_exit_with_their_launchers_token_and_are_not_replaced() {
    let (mut hub, mut operator, token, mut launcher) = ready().await;
    assert_eq!(scale(&mut operator, 2).await, "");
    let (first, second) = (order(&mut launcher).await, order(&mut launcher).await);
    let (worker, _) = join(&hub, first.token, [0; 16]).await.unwrap();
    let refused = scale(&mut operator, 3).await;
    assert!(refused.starts_with("all 2 places of the connected launchers are taken"), "{refused}");

    revoke(&mut operator, &token).await;
    hub.notice("was removed with its 2 workers").await;
    assert!(worker.close_code().await.is_some());
    assert!(launcher.refusal().await.is_none(), "it is sent away");
    assert_eq!(join(&hub, second.token, [0; 16]).await.err(), Some(RefusalCode::Token.to_wire()));
    assert!(hub.hub.traffic().await.worker_pids.is_empty(), "none is started on the hub's machine instead");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn reconnecting_launcher_reports_its_running_workers() {
    let (mut hub, mut operator, token, mut launcher) = ready().await;
    assert_eq!(scale(&mut operator, 2).await, "");
    let (kept, lost) = (order(&mut launcher).await, order(&mut launcher).await);
    let (_worker, _) = join(&hub, kept.token, [0; 16]).await.unwrap();
    // While it is connected, there is no other one with its token and name.
    let mut second = hub.connect().await;
    second.say(&Message::Hello(hello(Role::Launcher, token))).await;
    assert_eq!(second.refusal().await.map(|refused| refused.code), Some(RefusalCode::Busy.to_wire()));
    drop(launcher);
    hub.notice("left: ").await;
    let mut newer = Client::join(hub.hub.address(), Role::Launcher, token).await;
    let unknown = 7;
    newer.say(&Message::LauncherReady(LauncherReady { running: vec![kept.worker, unknown], ..READY })).await;
    assert_eq!(next_end_worker(&mut newer).await, unknown);
    // It takes a place until then.
    newer.say(&Message::WorkerEnded(WorkerEnded { worker: unknown, status: "asked".into(), is_crash: false })).await;
    let replacement = order(&mut newer).await;
    assert!(![kept.number, lost.number].contains(&replacement.number));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn launcher_keeps_its_workers_when_its_token_is_replaced() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let old = create_token(&mut operator).await;
    let (mut launcher, session) = greet(&hub, hello(Role::Launcher, old)).await.unwrap();
    launcher.say(&Message::LauncherReady(READY)).await;
    hub.notice("has places").await;
    assert_eq!(scale(&mut operator, 2).await, "");
    let (kept, lost) = (order(&mut launcher).await, order(&mut launcher).await);
    let (_worker, _) = join(&hub, kept.token, [0; 16]).await.unwrap();

    // Another launcher has the old token, and is removed with it.
    let (mut idle, _) = greet(&hub, Hello { name: "idle".into(), ..hello(Role::Launcher, old) }).await.unwrap();
    idle.say(&Message::LauncherReady(READY)).await;
    hub.notice("launcher idle has places").await;
    let second = create_token(&mut operator).await;
    launcher.say(&Message::Renew(Renew { token: second })).await;
    let running = vec![kept.worker, lost.worker];
    launcher.say(&Message::LauncherReady(LauncherReady { running, ..READY })).await;
    hub.notice("launcher by-hand has places").await;
    revoke(&mut operator, &old).await;
    hub.notice("launcher idle was removed with its 0 workers").await;

    // It resumes its session with a third token, which it has got while it was disconnected.
    let third = create_token(&mut operator).await;
    drop(launcher);
    hub.notice("left: ").await;
    let hello = Hello { resume_id: session, ..hello(Role::Launcher, third) };
    let (mut launcher, _) = greet(&hub, hello).await.unwrap();
    launcher.say(&Message::LauncherReady(LauncherReady { running: vec![kept.worker], ..READY })).await;
    let replacement = order(&mut launcher).await;
    assert!(![kept.number, lost.number].contains(&replacement.number));
    revoke(&mut operator, &second).await;
    revoke(&mut operator, &third).await;
    hub.notice("launcher by-hand was removed with its 2 workers").await;
    assert_eq!(hub.seen.iter().filter(|line| line.contains("was removed")).count(), 2, "{:?}", hub.seen);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn launcher_with_another_ones_new_token_and_name_keeps_its_own_and_leaves_it_alone() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let tokens = [create_token(&mut operator).await, create_token(&mut operator).await];
    let (mut renewed, _) = greet(&hub, hello(Role::Launcher, tokens[0])).await.unwrap();
    let (mut other, _) = greet(&hub, hello(Role::Launcher, tokens[1])).await.unwrap();
    for launcher in [&mut renewed, &mut other] {
        launcher.say(&Message::LauncherReady(READY)).await;
        hub.notice("launcher by-hand has places").await;
    }
    assert_eq!(scale(&mut operator, 4).await, "");
    let running = vec![order(&mut renewed).await.worker, order(&mut renewed).await.worker];
    let (_, _) = (order(&mut other).await, order(&mut other).await);

    renewed.say(&Message::Renew(Renew { token: tokens[1] })).await;
    renewed.say(&Message::LauncherReady(LauncherReady { running, ..READY })).await;
    hub.notice("launcher by-hand has places").await;
    revoke(&mut operator, &tokens[0]).await;
    hub.notice("launcher by-hand was removed with its 2 workers").await;
    let refused = scale(&mut operator, 3).await;
    assert!(refused.starts_with("all 2 places of the connected launchers are taken"), "{refused}");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn places_of_absent_launchers_and_of_workers_that_still_end_are_awaited() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let token = create_token(&mut operator).await;
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    // Of a hub's earlier life.
    let (capacity, old) = (1, 7);
    launcher.say(&Message::LauncherReady(LauncherReady { capacity, running: vec![old], ..READY })).await;
    assert_eq!(next_end_worker(&mut launcher).await, old);
    let refused = scale(&mut operator, 1).await;
    assert!(refused.starts_with("the launchers' places are free once they have ended other workers"), "{refused}");
    let settings = r#"{"num_workers": 1, "stop": {"env_steps": 1000000000}}"#.to_owned();
    assert_eq!(operator.ask(|request| Message::StartRun(StartRun { request, settings })).await, "");
    let ended = WorkerEnded { worker: old, status: "it is asked to end".into(), is_crash: false };
    launcher.say(&Message::WorkerEnded(ended)).await;
    let first = order(&mut launcher).await;
    let refused = scale(&mut operator, 2).await;
    assert!(refused.starts_with("all 1 places of the connected launchers are taken"), "{refused}");

    drop(launcher);
    hub.notice("left: ").await;
    let refused = scale(&mut operator, 2).await;
    assert!(refused.starts_with("launchers with free places have lost their connections"), "{refused}");
    // Its worker has ended meanwhile: the run gets another one.
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    launcher.say(&Message::LauncherReady(LauncherReady { capacity, ..READY })).await;
    assert_ne!(order(&mut launcher).await.worker, first.worker);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn worker_that_does_not_join_while_its_token_is_valid_is_ended_and_replaced() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let token = create_token(&mut operator).await;
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    launcher.say(&Message::LauncherReady(LauncherReady { token_seconds: 0, ..READY })).await;
    hub.notice("has places").await;
    assert_eq!(scale(&mut operator, 1).await, "");
    let ordered = order(&mut launcher).await;
    assert_eq!(next_end_worker(&mut launcher).await, ordered.worker);
    let ended = WorkerEnded { worker: ordered.worker, status: "signal: 9".into(), is_crash: false };
    launcher.say(&Message::WorkerEnded(ended)).await;
    hub.notice("it was killed, since it had not connected after 0 s; signal: 9").await;
    assert_ne!(order(&mut launcher).await.worker, ordered.worker);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn removed_worker_that_has_not_joined_is_ended_by_its_launcher_alone() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let (token, other) = (create_token(&mut operator).await, create_token(&mut operator).await);
    let mut launcher = Client::join(hub.hub.address(), Role::Launcher, token).await;
    launcher.say(&Message::LauncherReady(READY)).await;
    hub.notice("has places").await;
    assert_eq!(scale(&mut operator, 1).await, "");
    let ordered = order(&mut launcher).await;
    // Another launcher has no influence on it.
    let mut stranger = Client::join(hub.hub.address(), Role::Launcher, other).await;
    stranger.say(&Message::LauncherReady(LauncherReady { capacity: 0, ..READY })).await;
    hub.notice("has places for 0").await;
    let ended = WorkerEnded { worker: ordered.worker, status: "no".into(), is_crash: true };
    stranger.say(&Message::WorkerEnded(ended)).await;
    let (_worker, _) = join(&hub, ordered.token, [0; 16]).await.unwrap();
    let worker = operator.wait_for(|message| match message {
        Message::WorkerLocation(place) => Some(place.worker),
        _ => None,
    });
    let worker = worker.await;
    assert_eq!(scale(&mut operator, 2).await, "");
    let waiting = order(&mut launcher).await;
    assert_eq!(scale(&mut operator, 1).await, "");
    assert_eq!(next_end_worker(&mut launcher).await, waiting.worker);
    // A restart is an end and a start order for its launcher.
    assert_eq!(operator.ask(|request| Message::RestartWorker(WorkerRequest { request, worker })).await, "");
    assert_eq!(next_end_worker(&mut launcher).await, ordered.worker);
    let ended = WorkerEnded { worker: ordered.worker, status: "killed".into(), is_crash: true };
    launcher.say(&Message::WorkerEnded(ended)).await;
    assert!(order(&mut launcher).await.number > waiting.number);
    hub.hub.shutdown().await;
}

/// Checks that the other machine's own limit applies.
#[tokio::test]
async fn launcher_starts_the_workers_of_a_run_that_limits_the_memory_of_environments() {
    let (hub, _operator, _token, mut launcher) = ready().await;
    let _run = hub.train_with(small(1, 2_000), |config| config.rollout.remote_env_memory_mb = 100).await;
    order(&mut launcher).await;
}

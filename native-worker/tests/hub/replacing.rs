//! Local workers that stop, hang or cannot be started, and their replacements.

use std::{
    future::pending,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use rollmesh::{
    Registry,
    hub::Hub,
    launch::{LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher, WorkerSpec},
    train::RunEnd,
};
use rollmesh_core::{
    ids::LeaseId,
    protocol::{
        Message, Role, Token,
        message::{LeaseRefused, Request, Scale, WorkerRequest},
    },
    run::RunConfig,
};
use tokio::sync::mpsc;

use super::{TestHub, end, hand_made::HandMade, small};
use crate::support::{client::Client, soon};

/// Starts nothing, and reports the requested starts of workers to the test.
#[derive(Debug)]
struct Stage {
    started: mpsc::UnboundedSender<Token>,
    /// Number of starts that succeed before the next ones fail, and number of those that fail.
    succeed: u32,
    fail: u32,
    orders: AtomicU32,
    /// The requested resources of the workers.
    specs: Mutex<Vec<WorkerSpec>>,
}

impl Stage {
    /// Returns a launcher whose starts fail after some successful ones, and the tokens of the latter.
    fn new(succeed: u32, fail: u32) -> (Arc<Self>, mpsc::UnboundedReceiver<Token>) {
        let (started, tokens) = mpsc::unbounded_channel();
        let (orders, specs) = (AtomicU32::new(0), Mutex::default());
        (Arc::new(Self { started, succeed, fail, orders, specs }), tokens)
    }
}

impl Launcher for Stage {
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        let before = self.orders.fetch_add(1, Ordering::Relaxed);
        if (self.succeed..self.succeed + self.fail).contains(&before) {
            return Err(LaunchError::Failed("not now".into()));
        }
        self.specs.lock().unwrap().push(order.spec.clone());
        self.started.send(*order.token).unwrap();
        Ok(Box::new(Process { is_killed: false }))
    }
}

/// A process that does nothing until it is killed.
struct Process {
    is_killed: bool,
}

impl LaunchedWorker for Process {
    /// Returns an id: the process is on this machine, where the hub gives up lost connections soon.
    fn pid(&self) -> Option<u32> {
        Some(std::process::id())
    }

    fn kill(&mut self) {
        self.is_killed = true;
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        if self.is_killed { Box::pin(async { LaunchedEnd::plain("killed") }) } else { Box::pin(pending()) }
    }
}

impl TestHub {
    async fn on_stage(stage: Arc<Stage>) -> Self {
        Self::start_by("127.0.0.1:0", |config| async {
            Hub::start_with(config, &Registry::builtin(), stage, WorkerSpec::default()).await
        })
        .await
    }

    async fn join_as(&self, token: Token) -> Client {
        Client::join(self.hub.address(), Role::Worker, token).await
    }
}

async fn next(tokens: &mut mpsc::UnboundedReceiver<Token>) -> Token {
    soon("the start of a worker", tokens.recv()).await.unwrap()
}

#[tokio::test]
async fn suspended_process_that_lost_its_connection_is_replaced() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage).await;
    let _run = hub.train(small(1, 2_000)).await;
    let frozen = next(&mut tokens).await;
    drop(hub.join_as(frozen).await);
    hub.notice(" left: ").await;
    hub.notice("does not come back: it is ended").await;
    hub.notice("ended (killed); another one takes its place").await;
    assert_ne!(next(&mut tokens).await, frozen);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn local_worker_in_quarantine_is_replaced() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage).await;
    let run = hub.train(small(1, 2_000)).await;
    let mut refusing = hub.join_as(next(&mut tokens).await).await;
    refusing.answer_able().await;
    for _ in 0..3 {
        let lease = refusing.wait_for(|message| match message {
            Message::LeaseGrant(grant) => Some(grant.lease),
            _ => None,
        });
        let refused = LeaseRefused::whole(LeaseId(lease.await), "cannot");
        refusing.say(&Message::LeaseRefused(refused)).await;
    }
    hub.notice("it failed three times in a row").await;
    hub.notice("another one takes its place").await;
    drop(refusing);
    let mut sound = HandMade::join_as(&hub, next(&mut tokens).await, "native").await;
    let summary = tokio::select! {
        summary = end(run) => summary,
        () = sound.stay() => panic!("the hub hung up"),
    };
    assert_eq!((summary.end, summary.failures.count), (RunEnd::Finished, 0));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn spare_worker_is_started_after_a_worker_has_ended() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage.clone()).await;
    let run = hub.train(small(1, 2_000)).await;
    drop(hub.join_as(next(&mut tokens).await).await);
    hub.notice("another one takes its place").await;
    let (second, spare) = (next(&mut tokens).await, next(&mut tokens).await);
    let mut second = hub.join_as(second).await;
    second.wait_for(|message| matches!(message, Message::RunStart(_)).then_some(())).await;
    let mut spare = hub.join_as(spare).await;
    // It is there, but not visible.
    let mut operator = hub.operator().await;
    let remove = |request| Message::RemoveWorker(WorkerRequest { request, worker: 3 });
    assert_eq!(operator.ask(remove).await, "there is no worker 3");
    drop(second);
    let heard_first = spare.receive().await;
    assert!(matches!(heard_first, Some(Message::RunStart(_))), "{heard_first:?}");
    // There is another one, until the run is over; all of them were started once.
    let mut spare = hub.join_as(next(&mut tokens).await).await;
    assert_eq!(stage.orders.load(Ordering::Relaxed), 4);
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    while spare.receive().await.is_some() {}
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_spare_worker_is_the_next_one_also_where_more_are_wanted_and_does_not_stand_still() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage.clone()).await;
    let _run = hub.train(small(1, 2_000)).await;
    drop(hub.join_as(next(&mut tokens).await).await);
    hub.notice("another one takes its place").await;
    let (second, spare) = (next(&mut tokens).await, next(&mut tokens).await);
    let _second = hub.join_as(second).await;
    let mut spare = hub.join_as(spare).await;
    let mut operator = hub.operator().await;
    operator.ask(|request| Message::AddWorker(Request { request })).await;
    assert!(matches!(spare.receive().await, Some(Message::RunStart(_))));
    assert_eq!(stage.orders.load(Ordering::Relaxed), 3);
    // A spare that has lost its connection and does not reconnect cannot replace a worker.
    drop(spare);
    hub.notice("another one takes its place").await;
    let (_third, spare) = (next(&mut tokens).await, next(&mut tokens).await);
    drop(hub.join_as(spare).await);
    hub.notice("local worker 5 has lost its connection and does not come back: it is ended").await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn first_iteration_waits_until_local_workers_have_answered() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let hub = TestHub::on_stage(stage).await;
    let _run = hub.train(small(2, 2_000)).await;
    let mut first = hub.join_as(next(&mut tokens).await).await;
    let mut second = hub.join_as(next(&mut tokens).await).await;
    first.answer_able().await;
    second.answer_able().await;
    let slots = first.wait_for(|message| match message {
        Message::LeaseGrant(grant) => Some(grant.slots.len()),
        _ => None,
    });
    assert_eq!(slots.await, 6, "half of them");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_hangs_for_too_long_is_replaced() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage).await;
    let _run = hub.train_with(small(1, 2_000), |config| config.hung_worker_timeout_s = 0.1).await;
    let mut hangs = hub.join_as(next(&mut tokens).await).await;
    hangs.answer_able().await;
    hangs.wait_for(|message| matches!(message, Message::LeaseGrant(_)).then_some(())).await;
    hub.notice("it is ended").await;
    next(&mut tokens).await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn replacement_that_does_not_start_is_retried() {
    let (stage, mut tokens) = Stage::new(1, 2);
    let mut hub = TestHub::on_stage(stage.clone()).await;
    let mut operator = hub.operator().await;
    assert_eq!(operator.ask(|request| Message::Scale(Scale { request, num_workers: 1 })).await, "");
    drop(hub.join_as(next(&mut tokens).await).await);
    hub.notice("could not be started: not now; trying again in ").await;
    hub.notice("could not be started: not now; trying again in ").await;
    next(&mut tokens).await;
    assert_eq!(stage.orders.load(Ordering::Relaxed), 4);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_replacement_needs_what_its_predecessor_needed() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let mut hub = TestHub::on_stage(stage.clone()).await;
    let spec = |cpus| WorkerSpec { cpus, ..WorkerSpec::default() };
    let first = hub.train_with(small(1, 2_000), |config| config.host.worker = Some(spec(1))).await;
    let token = next(&mut tokens).await;
    hub.hub.stop_run().await;
    assert_eq!(end(first).await.end, RunEnd::Stopped);
    // The next run still has it, and one of its own.
    let _second = hub.train_with(small(2, 2_000), |config| config.host.worker = Some(spec(2))).await;
    next(&mut tokens).await;
    drop(hub.join_as(token).await);
    hub.notice("another one takes its place").await;
    next(&mut tokens).await;
    // And so does the worker that replaces the next one.
    next(&mut tokens).await;
    assert_eq!(*stage.specs.lock().unwrap(), [spec(1), spec(2), spec(1), spec(1)]);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn workers_with_other_environment_variables_are_replaced_by_those_of_the_next_run() {
    let (stage, mut tokens) = Stage::new(u32::MAX, 0);
    let hub = TestHub::on_stage(stage).await;
    let first = hub.train(small(1, 2_000)).await;
    next(&mut tokens).await;
    hub.hub.stop_run().await;
    assert_eq!(end(first).await.end, RunEnd::Stopped);
    // There is one worker already, and one is wanted.
    let limited = |config: &mut RunConfig| config.rollout.remote_env_memory_mb = 100;
    let second = hub.train_with(small(1, 2_000), limited).await;
    next(&mut tokens).await;
    hub.hub.stop_run().await;
    assert_eq!(end(second).await.end, RunEnd::Stopped);
    let _third = hub.train_with(small(1, 2_000), limited).await;
    assert!(tokens.try_recv().is_err(), "it is kept");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_run_whose_workers_never_start_fails() {
    let (stage, _tokens) = Stage::new(0, u32::MAX);
    let mut hub = TestHub::on_stage(stage).await;
    let run = hub.train(small(2, 2_000)).await;
    hub.notice("no more attempts").await;
    assert!(matches!(end(run).await.end, RunEnd::Failed(why) if why.contains("not now")));
    // The next run has attempts of its own.
    let _next = hub.train(small(2, 2_000)).await;
    hub.notice("could not be started: not now; trying again in ").await;
    hub.hub.shutdown().await;
}

//! A group's dashboard: its contents, and the commands of operators.

use std::net::TcpListener;

use rollmesh::{
    WorkerGroup,
    control::{Control, ControlConfig, ControlError, USUAL_PATIENCE},
    worker_group::{Fetch, ForEachWorker, ParallelSample, Placement},
};
use rollmesh_core::{
    protocol::{
        Message, Phase, Role, Token, WorkerState,
        message::{WorkerRequest, WorkerRow},
    },
    worker::WorkerCommand,
};

use serde_json::{Value, json};

use super::rig::{builder, cart_pole, processes, waiting_at};
use crate::support::client::Client;

/// Returns the hub's URL and the operator's token.
fn dashboard(group: &WorkerGroup) -> (String, Token) {
    let url = group.dashboard_url().expect("it has a dashboard");
    let (hub, token) = url.split_once("/#token=").unwrap();
    (hub.into(), Token::from_hex(token).unwrap())
}

/// Connects as an operator.
async fn connect(group: &WorkerGroup) -> Control {
    let (hub, token) = dashboard(group);
    let (role, trust, patience) = (Role::Operator, Default::default(), USUAL_PATIENCE);
    Control::connect(&ControlConfig { hub: hub.parse().unwrap(), token, role, trust, patience }).await.unwrap()
}

/// Returns the schema that a dashboard is sent.
async fn schema(group: &WorkerGroup) -> Value {
    let (hub, token) = dashboard(group);
    let mut page = Client::join(hub.trim_start_matches("http://"), Role::Operator, token).await;
    let schema = page.wait_for(|message| match message {
        Message::RunSchema(schema) => Some(schema.schema.clone()),
        _ => None,
    });
    serde_json::from_str(&schema.await).unwrap()
}

fn of_kind<'a>(hub: &'a Control, kind: &str) -> Option<&'a WorkerRow> {
    hub.workers().values().find(|row| row.kind == kind)
}

fn is(row: Option<&WorkerRow>, state: WorkerState, reason: &str) -> bool {
    row.is_some_and(|row| (row.state, &*row.reason) == (state.to_wire(), reason))
}

/// Shows a group of which one worker is a process, the other one a thread.
pub(crate) fn dashboards_show_the_workers_of_a_group_with_their_calls() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut group = builder(cart_pole(), &processes(), 1).dashboard(true).build().unwrap();
    group.add_workers_at(&Placement::Threads, 1, true).unwrap();
    let mut hub = runtime.block_on(connect(&group));
    group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let [process, thread] = ["native", "thread"];
    let idle = |hub: &Control, kind, worker: u32| {
        let reason = format!("worker {worker} of the group: no call is under way");
        is(of_kind(hub, kind), WorkerState::Idle, &reason) && of_kind(hub, kind).is_some_and(|row| row.env_steps == 20)
    };
    let are_idle = |hub: &Control| idle(hub, process, 1) && idle(hub, thread, 2) && hub.workers().len() == 2;
    runtime.block_on(hub.until("two idle workers", are_idle)).unwrap();
    assert_eq!(hub.phase(), Phase::Idle);

    let gate = TcpListener::bind("127.0.0.1:0").unwrap();
    group.foreach_worker_async(&ForEachWorker::remote(), waiting_at(&gate), None).unwrap();
    let works = |hub: &Control, kind, worker: u32| {
        let reason = format!("worker {worker} of the group: 1 call is under way");
        is(of_kind(hub, kind), WorkerState::Sampling, &reason)
    };
    let work = |hub: &Control| works(hub, process, 1) && works(hub, thread, 2);
    runtime.block_on(hub.until("two calls", work)).unwrap();
    // Both calls end with their connections.
    [gate.accept().unwrap(), gate.accept().unwrap()].into_iter().for_each(drop);
    group.fetch_ready_async_reqs(&Fetch { timeout: USUAL_PATIENCE, ..Fetch::default() }).unwrap();
    runtime.block_on(hub.until("two idle workers", are_idle)).unwrap();
    runtime.block_on(hub.leave());
}

pub(crate) fn operators_of_a_group_can_only_restart_its_processes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut group = builder(cart_pole(), &processes(), 1).dashboard(true).build().unwrap();
    let mut hub = runtime.block_on(connect(&group));
    let schema = runtime.block_on(schema(&group));
    assert_eq!(
        schema["not"],
        json!({}),
        "no settings of a run are valid, by which the page knows what it cannot ask for"
    );
    assert!(schema["properties"]["env"].is_object(), "the environments are there for evaluation workers");
    let before = group.worker_pids();
    let is_there = |hub: &Control| of_kind(hub, "native").is_some_and(|row| row.local);
    runtime.block_on(hub.until("a worker", is_there)).unwrap();
    let worker = of_kind(&hub, "native").unwrap().worker;
    runtime.block_on(async {
        for refused in [hub.scale(2).await, hub.remove_worker(worker).await, hub.start_run("{}".into()).await.map(drop)]
        {
            let Err(ControlError::Declined(reason)) = refused else { panic!("{refused:?}") };
            assert!(reason.contains("program"), "{reason}");
        }
        hub.ask(|request| Message::RestartWorker(WorkerRequest { request, worker })).await.unwrap();
    });
    while group.num_healthy_remote_workers() == 1 {
        group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap();
    }
    while group.probe_unhealthy_workers().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_ne!(group.worker_pids(), before);
    assert_eq!(group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap().len(), 1);
    let is_another = |hub: &Control| of_kind(hub, "native").is_some_and(|row| row.worker != worker);
    runtime.block_on(hub.until("another worker", is_another)).unwrap();
    runtime.block_on(hub.leave());
    group.stop();
    assert_eq!(group.dashboard_url(), None);
}

//! Runs without local workers: the hub's own process samples while no other worker can.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rollmesh::{
    hub::Hub,
    train::{RunEnd, RunRequest},
};
use rollmesh_core::protocol::{
    Message, WorkerState,
    message::{Scale, WorkerRequest},
};

use super::{
    TestHub,
    divergence_at_the_end::counting,
    end,
    hand_made::HandMade,
    small,
    workers::{row_of, status_of},
};
use crate::support::json;

const JOINED: &str = "joined: in-process (local, cpu)";
const LEFT: &str = "worker 1 left: it was asked to leave";

/// Returns a run that begins without workers, with time for some to come.
fn alone(max_env_steps: u64) -> RunRequest {
    RunRequest { remote_only: false, throttle: Duration::from_millis(20), ..small(0, max_env_steps) }
}

#[tokio::test]
async fn process_resumes_sampling_when_the_worker_of_all_slots_is_lost() {
    const ENV_STEPS: u64 = 20_000;
    let mut hub = TestHub::start().await;
    let run = hub.train(alone(ENV_STEPS)).await;
    hub.notice(JOINED).await;
    hub.status("the process samples", |status| status.iteration > 0).await;
    let mut worker = HandMade::join(&hub).await;
    loop {
        let upload = worker.next_upload().await.unwrap();
        if worker.num_slots() == 12 {
            break;
        }
        worker.client.say(&Message::FragmentUpload(upload)).await;
    }
    hub.notice(LEFT).await;
    // Its connection breaks with a lease of all slots.
    drop(worker);
    hub.notice(JOINED).await;
    let summary = end(run).await;
    assert_eq!(summary.end, RunEnd::Finished);
    let ledger = &json(&status_of(&hub, &["--json"]).await)["ledger"];
    let expired = ledger["expired"].as_object().unwrap().values().filter_map(|steps| steps.as_u64()).sum::<u64>();
    assert!(expired >= 12 * 16 && ledger["balances"] == true, "{ledger}");
    let undisturbed = end(hub.train(small(1, ENV_STEPS)).await).await;
    assert_eq!(summary.weights_hash, undisturbed.weights_hash);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn in_process_worker_is_shown_as_local_and_counts_as_no_local_worker() {
    let mut hub = TestHub::start().await;
    let run = hub.train(alone(u64::MAX)).await;
    hub.notice(JOINED).await;
    let mut viewer = hub.viewer().await;
    let row = row_of(&mut viewer, 1, |row| row.state == WorkerState::Sampling.to_wire()).await;
    assert_eq!((&*row.kind, &*row.name, row.local), ("local", "in-process", false));
    let status = json(&status_of(&hub, &["--json"]).await);
    assert_eq!((&status["num_workers"], &status["num_local_workers"]), (&0.into(), &0.into()));
    // Local workers take its place, and it takes theirs.
    let mut operator = hub.operator().await;
    assert_eq!(operator.ask(|request| Message::Scale(Scale { request, num_workers: 1 })).await, "");
    hub.notice(LEFT).await;
    assert_eq!(operator.ask(|request| Message::Scale(Scale { request, num_workers: 0 })).await, "");
    let joined = hub.notice(JOINED).await;
    let worker = joined.split(' ').nth(1).unwrap().parse().unwrap();
    // A successor takes the place of one that an operator removes: the run has no other worker.
    assert_eq!(operator.ask(|request| Message::RemoveWorker(WorkerRequest { request, worker })).await, "");
    hub.notice(JOINED).await;
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    hub.notice(" left: it was asked to leave").await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn panic_in_process_is_a_failure_and_the_run_finishes() {
    let has_panicked = AtomicBool::new(false);
    let registry = counting("Fragile-v0", move || {
        if thread::current().name() == Some("rollout") && !has_panicked.swap(true, Ordering::Relaxed) {
            panic!("out of luck");
        }
    });
    let mut hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(config, &registry).await }).await;
    let mut request = RunRequest { throttle: Duration::ZERO, ..alone(2_000) };
    request.config.rollout.env = Some("Fragile-v0".into());
    let disturbed = hub.train(request.clone()).await;
    hub.notice("a fragment failed on worker 1: ").await;
    let disturbed = end(disturbed).await;
    let calm = end(hub.train(request).await).await;
    assert_eq!((&disturbed.end, disturbed.weights_hash), (&RunEnd::Finished, calm.weights_hash));
    assert_eq!((disturbed.failures.count, disturbed.failures.latest[0].kind), (1, "panic"));
    hub.hub.shutdown().await;
}

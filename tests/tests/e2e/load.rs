//! The page with a hub of 200 workers that sends 1,000 updates per second, and then as many as the page can handle.

use std::{
    env,
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message, Phase, WorkerState,
    message::{Iteration, RunStatus, WorkerLocation, WorkerRow},
};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval},
};

use super::{
    browser::DESKTOP,
    dashboard::Dashboard,
    made_hub::{MadeHub, bind, open},
};

const WORKERS: u32 = 200;
/// The number of updates of workers in a tenth of a second, with one iteration of the run.
const UPDATES_PER_TICK: u64 = 100;
/// The time for which frames are measured.
const MEASURED: Duration = Duration::from_secs(20);
/// The number of updates that are sent as fast as the page handles them.
const UPDATES: u64 = 200_000;
/// The number for long tests, which is that of an hour.
const LONG_UPDATES: u64 = 3_600_000;
/// The number of iterations before them, so that the page's curves have their largest length.
const ITERATIONS: u64 = 36_000;
/// The bytes that the second half of them may add to the page's memory; its size after a garbage collection varies by
/// some megabytes.
const MAX_GROWTH: u64 = 8 << 20;
/// The minimum number of measured frames, half of those of an idle page.
const MIN_FRAMES: usize = 30 * MEASURED.as_secs() as usize;
/// The limit of the frames' 95th percentile on the main thread, which is checked only in long tests, on an idle
/// machine.
const MAX_P95_MS: f64 = 8.0;

/// A script that measures the time from the beginning of each frame to the next task, with everything that the page
/// does in between.
const PROBE: &str = "window.frames_ms = []; window.long_tasks = [];
    const channel = new MessageChannel();
    let began = 0;
    channel.port1.onmessage = () => window.frames_ms.push(performance.now() - began);
    const frame = () => {
        requestAnimationFrame(frame);
        began = performance.now();
        channel.port2.postMessage(0);
    };
    requestAnimationFrame(frame);
    new PerformanceObserver(list => list.getEntries().forEach(entry => window.long_tasks.push(entry.duration)))
        .observe({ type: 'longtask' })";

/// A burst of updates of the hub.
struct Burst {
    /// The number of updates, which are sent without a pause.
    updates: u64,
    /// The number of updates per iteration.
    per_iteration: u64,
    /// The channel that is notified when they are sent.
    done: oneshot::Sender<()>,
}

#[tokio::test(flavor = "multi_thread")]
async fn page_stays_fast_and_small_with_a_large_hub() {
    let page = Dashboard::start().await;
    let (listener, address) = bind().await;
    let (bursts, queue) = mpsc::channel(1);
    let hub = tokio::spawn(serve(listener, queue));
    let _front = open(&page, address).await;
    page.wait("all workers are shown", async || page.workers().await.len() == WORKERS as usize).await;

    page.run(PROBE, vec![]).await;
    tokio::time::sleep(MEASURED).await;
    let numbers = async |name: &str| {
        let all = page.run(&format!("return window.{name}"), vec![]).await;
        all.as_array().expect("a list").iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let (mut frames, long) = (numbers("frames_ms").await, numbers("long_tasks").await);
    frames.sort_by(f64::total_cmp);
    let p95 = frames[frames.len() * 95 / 100];
    println!(
        "{} frames, p50 {:.1} ms, p95 {p95:.1} ms; tasks over 50 ms: {long:?}",
        frames.len(),
        frames[frames.len() / 2]
    );
    page.browser.screenshot("load", DESKTOP).await;

    let is_long = env::var_os("ROLLMESH_LONG").is_some();
    if is_long {
        assert!(frames.len() >= MIN_FRAMES, "{} frames in {MEASURED:?}", frames.len());
        assert!(p95 <= MAX_P95_MS, "95 of 100 frames take up to {p95:.1} ms");
        assert!(long.is_empty(), "tasks over 50 ms: {long:?}");
    }
    let send = async |updates: u64, per_iteration: u64| {
        let (done, sent) = oneshot::channel();
        bursts.send(Burst { updates, per_iteration, done }).await.expect("the hub is there");
        sent.await.expect("they are sent");
        let last = page.number("kpi-iteration").await;
        page.wait_for_more("kpi-iteration", last).await;
    };
    let updates = if is_long { LONG_UPDATES } else { UPDATES };
    // The page reduces curves of 32,768 and more points.
    send(ITERATIONS, 1).await;
    let began = Instant::now();
    send(updates / 2, UPDATES_PER_TICK).await;
    let middle = memory(&page).await;
    send(updates / 2, UPDATES_PER_TICK).await;
    let end = memory(&page).await;
    let rate = updates as f64 / began.elapsed().as_secs_f64();
    println!("{updates} updates, {rate:.0} a second: {middle} bytes in the middle, {end} at the end");
    assert!(end <= middle + MAX_GROWTH, "the page grows from {middle} to {end} bytes");
    page.assert_quiet_console().await;
    hub.abort();
}

/// Returns the bytes that the page uses: JavaScript objects, and the memory of its wasm module.
async fn memory(page: &Dashboard) -> u64 {
    // The module is initialised already, so this only returns its exports.
    let script = "const [done] = arguments;
        import(document.getElementById('boot').dataset.js)
            .then(({ default: init }) => init())
            .then(({ memory }) => done(memory.buffer.byteLength))";
    let wasm = page.browser.client.execute_async(script, vec![]).await.expect("the page's module");
    page.browser.script_heap().await + wasm.as_u64().expect("bytes")
}

/// Serves one page as its hub.
async fn serve(listener: TcpListener, mut bursts: mpsc::Receiver<Burst>) {
    let mut hub = MadeHub::accept(listener).await;
    for worker in 1..=WORKERS {
        let place = WorkerLocation { worker, host: format!("node-{}", worker % 20), launcher: "slurm".into() };
        hub.send(&Message::WorkerLocation(place)).await;
    }
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut update, mut iteration) = (0, 0);
    loop {
        let (updates, per_iteration, done) = tokio::select! {
            _ = ticks.tick() => (if update == 0 { u64::from(WORKERS) } else { UPDATES_PER_TICK }, UPDATES_PER_TICK, None),
            Some(Burst { updates, per_iteration, done }) = bursts.recv() => (updates, per_iteration, Some(done)),
        };
        for _ in 0..updates {
            update += 1;
            hub.send(&Message::WorkerRow(row(update))).await;
            if update % per_iteration == 0 {
                iteration += 1;
                for message in progress(iteration) {
                    hub.send(&message).await;
                }
            }
        }
        done.map(|done| done.send(()).ok());
    }
}

fn row(update: u64) -> WorkerRow {
    WorkerRow {
        worker: (update % u64::from(WORKERS)) as u32 + 1,
        kind: "native".into(),
        name: format!("worker-{}", update % u64::from(WORKERS)),
        device: "cpu".into(),
        state: WorkerState::Sampling.to_wire(),
        slots: 4,
        env_steps: update * 100,
        steps_per_s: 1_000.0 + (update % 97) as f32,
        weights_lag: update % 3,
        ..WorkerRow::default()
    }
}

fn progress(iteration: u64) -> [Message; 2] {
    let (env_steps, wall_ms, steps_per_s) = (iteration * 10_000, iteration * 100, 100_000.0);
    let episode_return_mean = 100.0 + (iteration % 50) as f32;
    let status = RunStatus {
        run: 1,
        phase: Phase::Running.to_wire(),
        env: "CartPole-v1".into(),
        num_slots: 800,
        iteration,
        env_steps,
        wall_ms,
        steps_per_s,
        episode_return_mean,
        ..RunStatus::default()
    };
    let point =
        Iteration { run: 1, iteration, env_steps, wall_ms, steps_per_s, episode_return_mean, ..Iteration::default() };
    [Message::RunStatus(status), Message::Iteration(point)]
}

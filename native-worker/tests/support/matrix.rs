//! Environments and policies of every kind over leases: one weights hash for any number of workers, those that come, go and
//! are killed included.

use std::time::Duration;

use rollmesh::{
    Registry,
    hub::Hub,
    train::{RunConfig, RunEnd, RunRequest, Summary},
};
use rollmesh_core::{
    config::Config,
    hash::run_weights_hash,
    ids::{PolicyId, WeightsVersion},
    protocol::{
        Message,
        message::{Request, Scale},
    },
    weights::Weights,
    worker::RolloutWorkerBuilder,
};

use super::{
    Process,
    hub::TestHub,
    is_long,
    process::{Signal, kill, send},
};

/// Returns the updates of a run, and the env steps of each fragment. The long form is for a release build: its
/// fragments take long enough to be lost in the middle.
fn size() -> (u64, u32) {
    if is_long() { (100, 256) } else { (21, 32) }
}
const SLOTS: u32 = 6;

fn run(env: &str, settings: &str, seed: u64, num_workers: u32) -> RunConfig {
    let (updates, length) = size();
    let usual = RunConfig::new(env).seed(seed).num_workers(num_workers).slots(SLOTS).num_envs(3);
    let steps = updates * u64::from(SLOTS * length);
    let run = usual.fcnet_hiddens(&[16, 16]).rollout_fragment_length(length).stop_after(steps);
    let settings: Config = settings.parse().unwrap();
    run.merged(&settings).unwrap_or_else(|error| panic!("{env}: {error}"))
}

/// The disturbance of a run's workers.
#[derive(Clone, Copy, PartialEq)]
enum Disturbance {
    None,
    /// The operator alternately removes and adds a worker.
    Rescaled,
    /// Kills one of two workers repeatedly, until this number of them died while they held a lease.
    Killed(u32),
}

/// Updates between two disturbances.
const PAUSE: u64 = 3;
/// The least time of an update in a run that is disturbed: one that learns without delay would be over before its first disturbance.
const THROTTLE: Duration = Duration::from_millis(50);

/// Returns the result of a run, and the number of workers that were killed while they held a lease: after their death
/// env steps of leases had expired.
async fn train(registry: &Registry, config: RunConfig, disturbance: Disturbance) -> (Summary, u32) {
    let mut hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(config, registry).await }).await;
    let has_equal_fragments = config.rollout.has_equal_fragments();
    let mut num_workers = config.num_workers;
    let throttle = if disturbance == Disturbance::None { Duration::ZERO } else { THROTTLE };
    let mut summary = hub.train(RunRequest { throttle, ..config.into() }).await;
    let mut status = hub.hub.status();
    let (mut expired, mut lost, mut next) = (0, 0, PAUSE);
    // A stopped worker that is to be killed with a lease, whether the last kill is not yet in the ledger, and the
    // number of kills.
    let (mut victim, mut is_killed, mut kills) = (None, false, 0);
    let ended = loop {
        let now = tokio::select! {
            biased;
            ended = &mut summary => break ended.unwrap(),
            Ok(now) = status.changed() => now,
        };
        if now.expired > expired {
            expired = now.expired;
            lost += u32::from(std::mem::take(&mut is_killed));
        }
        if let Some(pid) = victim.take_if(|_| now.outstanding > 0) {
            kill(pid);
            (is_killed, kills, next) = (true, kills + 1, now.iteration + PAUSE);
        }
        if now.iteration < next || victim.is_some() {
            continue;
        }
        match disturbance {
            Disturbance::Rescaled => {
                num_workers = if num_workers == 3 { 2 } else { 3 };
                hub.operator().await.ask(|request| Message::Scale(Scale { request, num_workers })).await;
            }
            Disturbance::Killed(most) if lost < most => {
                // A connection of its own each time: the hub closes one that reads nothing between two commands.
                let mut operator = hub.operator().await;
                // The older worker is stopped before slots are leased again, and killed when they are: it cannot be done.
                if !operator.ask(|request| Message::Pause(Request { request })).await.is_empty() {
                    // The run has ended meanwhile.
                    continue;
                }
                if kills == 0 {
                    hub.notice(" joined: ").await;
                }
                hub.notice(" joined: ").await;
                let pid = hub.hub.traffic().await.worker_pids[0];
                send(pid, Signal::STOP);
                victim = Some(pid);
                assert_eq!(operator.ask(|request| Message::Resume(Request { request })).await, "");
            }
            _ => continue,
        }
        next = now.iteration + PAUSE;
    };
    let (updates, length) = size();
    let (steps, asked) = (ended.env_steps, updates * u64::from(SLOTS * length));
    assert_eq!(ended.end, RunEnd::Finished);
    assert!(if has_equal_fragments { steps == asked } else { steps >= asked }, "{steps} env steps");
    hub.hub.shutdown().await;
    (ended, lost)
}

/// Returns the hash of the weights that the program learns.
async fn train_by_program(run: &RunConfig) -> String {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("run.json");
    std::fs::write(&settings, run.to_wire()).unwrap();
    let (settings, run_dir) = (settings.display().to_string(), directory.path().join("run").display().to_string());
    let args = ["train", "--workers", "0", "--json", "--no-dashboard", "--config", &settings, "--run-dir", &run_dir];
    let end = Process::start(args).finish_with(0).await;
    super::json(&end.stdout)["weights_hash"].as_str().unwrap().into()
}

/// Trains a run with 0, 1, 2 and 3 workers, of which some come, go and are killed, and compares the weights.
pub(crate) async fn has_one_result(registry: &Registry, env: &str, settings: &str) {
    // This test's program cannot be started again as the process of an environment, but the command line can.
    let in_processes = settings.contains("remote_worker_envs");
    let expected = match in_processes {
        true => train_by_program(&run(env, settings, 1, 0)).await,
        false => train(registry, run(env, settings, 1, 0), Disturbance::None).await.0.weights_hash.to_string(),
    };
    let (one, _) = train(registry, run(env, settings, 1, 1), Disturbance::None).await;
    assert_eq!((one.weights_hash.to_string(), one.moved_slots), (expected.clone(), 0), "{env} with one worker");
    let (rescaled, _) = train(registry, run(env, settings, 1, 3), Disturbance::Rescaled).await;
    assert_eq!(rescaled.weights_hash.to_string(), expected, "{env} with three workers, of which one comes and goes");
    // Fragments of whole episodes end with one.
    let moves = !settings.contains("complete_episodes");
    assert_eq!(
        rescaled.moved_slots > 0,
        moves,
        "{env} with three workers: slots that moved in the middle of an episode"
    );
    let (fewest_lost, most_lost) = if is_long() { (10, 12) } else { (1, 3) };
    let (killed, lost) = train(registry, run(env, settings, 1, 2), Disturbance::Killed(most_lost)).await;
    println!(
        "{env} {settings}: {lost} workers killed while they held a lease; slots that moved in the middle of an episode: \
         {} of them, {} with three workers",
        killed.moved_slots, rescaled.moved_slots
    );
    assert_eq!(killed.weights_hash.to_string(), expected, "{env} with workers that are killed");
    assert!(lost >= fewest_lost, "{env}: only {lost} workers were killed while they held a lease");
    assert_eq!(
        killed.moved_slots > 0,
        moves,
        "{env} with killed workers: slots that moved in the middle of an episode"
    );
    let (other, _) = train(registry, run(env, settings, 2, u32::from(in_processes)), Disturbance::None).await;
    assert_ne!(other.weights_hash.to_string(), expected, "{env} with another seed");
    let parts = RolloutWorkerBuilder::new(rollmesh::native(registry.clone()))
        .learning_parts(&run(env, settings, 1, 1))
        .unwrap();
    let ids: Vec<PolicyId> = parts.policies.keys().cloned().collect();
    let policies = parts.policies.iter().map(|(id, policy)| (id, policy.weights()));
    let first = Weights::of_run(WeightsVersion(0), policies).unwrap();
    assert_ne!(run_weights_hash(&first, &ids).unwrap().to_string(), expected, "{env} has not learned");
}

//! Runs without a learner: rows through the hub, their cost on the socket, and weights that are set from outside.

use std::collections::BTreeMap;

use rollmesh::{
    hub::{Sampling, SyncError},
    train::{RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::{
    batch::SlotFragment,
    env::EnvRegistry,
    group::SamplingMode,
    hash::{Hash128, RolloutHasher},
    ids::{FragmentNo, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec},
    protocol::{Message, message::LeaseRefused},
    time::Micros,
    weights::Weights,
    worker::{Registry, RolloutConfig, RolloutWorker},
};

use super::{TestHub, end};
use crate::support::{
    process::{children_of, kill},
    soon,
};

const NUM_ENVS: u32 = 12;
const LENGTH: u32 = 20;
const BATCHES: u32 = 30;

fn config(num_workers: u32) -> RunConfig {
    let run = RunConfig::sampling("CartPole-v1", NUM_ENVS).num_workers(num_workers).seed(3).fcnet_hiddens(&[16, 16]);
    run.rollout_fragment_length(LENGTH).stop_after(u64::from(NUM_ENVS * LENGTH * BATCHES))
}

/// Returns the hash of the same rows, made in this process.
fn expected() -> Hash128 {
    let config = RolloutConfig::new("CartPole-v1").num_envs(NUM_ENVS).seed(3).fcnet_hiddens(&[16, 16]);
    let mut worker = RolloutWorker::new(config, &Registry::builtin(), Kernels::PORTABLE).unwrap();
    let mut hasher = RolloutHasher::new();
    for fragment in worker.sample_fragments(LENGTH * BATCHES).unwrap() {
        hasher.add(&fragment).unwrap();
    }
    hasher.finish()
}

fn weights(hidden: &[u32], seed: u64) -> Weights {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    ModelSpec::for_spaces(&spaces, &ModelConfig::of_widths(hidden)).unwrap().init_weights(seed).unwrap()
}

async fn next(sampling: &mut Sampling) -> Option<Vec<SlotFragment>> {
    soon("a batch", sampling.next_batch()).await
}

#[tokio::test]
async fn neither_workers_nor_their_death_show_in_the_rows() {
    let expected = expected();
    for (workers, kills) in [(1, false), (2, false), (3, false), (2, true)] {
        let hub = TestHub::start().await;
        let mut sampling = hub.hub.sample(config(workers)).await.unwrap();
        let mut hasher = RolloutHasher::new();
        let mut batches = 0;
        while let Some(fragments) = next(&mut sampling).await {
            batches += 1;
            assert!(fragments.iter().map(|fragment| fragment.slot.0).eq(0..NUM_ENVS), "slot order");
            fragments.iter().for_each(|fragment| hasher.add(fragment).unwrap());
            if kills && batches % 10 == 5 {
                let victim = hub.hub.traffic().await.worker_pids[0];
                assert!(children_of(std::process::id()).contains(&victim));
                kill(victim);
            }
        }
        assert_eq!((batches, hasher.finish()), (BATCHES, expected), "{workers} workers, kills: {kills}");
        let summary = end(sampling.end()).await;
        assert_eq!((summary.end, summary.algo.as_str()), (RunEnd::Finished, "sample"));
        hub.hub.shutdown().await;
    }
}

#[tokio::test]
async fn in_every_mode_a_slot_makes_the_same_rows_in_order() {
    let hub = TestHub::start().await;
    let mut sampling = hub.hub.sample(config(1)).await.unwrap();
    let mut expected = BTreeMap::new();
    while let Some(fragments) = next(&mut sampling).await {
        expected.extend(fragments.into_iter().map(|fragment| ((fragment.slot, fragment.fragment), fragment)));
    }
    hub.hub.shutdown().await;
    let batch_env_steps = 5 * u64::from(LENGTH) - 1;
    let asynchronous = SamplingMode::Asynchronous { batch_env_steps, max_staleness: 0 };
    let deadline = SamplingMode::Deadline { after: Micros::from_millis(3), max_staleness: 0 };
    for mode in [asynchronous, deadline] {
        let hub = TestHub::start().await;
        let mut sampling = hub.hub.sample(RunConfig { mode, ..config(3) }).await.unwrap();
        let (mut rows, mut made) = (0, BTreeMap::<SlotId, u64>::new());
        while let Some(fragments) = next(&mut sampling).await {
            assert!(mode == deadline || fragments.len() == 5, "{} fragments", fragments.len());
            for fragment in fragments {
                rows += fragment.env_steps();
                let next = made.entry(fragment.slot).or_default();
                assert_eq!(fragment.fragment, FragmentNo(*next), "no gap, nothing twice");
                *next += 1;
                // One slot may get further than all did.
                let same = expected.get(&(fragment.slot, fragment.fragment));
                assert!(same.is_none_or(|expected| *expected == fragment), "{:?}", fragment.slot);
            }
        }
        assert!(rows >= config(3).stop.env_steps, "{rows} rows");
        assert_eq!(end(sampling.end()).await.env_steps, rows);
        hub.hub.shutdown().await;
    }
}

#[tokio::test]
async fn weights_that_are_set_act_in_every_mode_and_nothing_is_older_than_allowed() {
    let batch_env_steps = u64::from(NUM_ENVS * LENGTH);
    for max_staleness in [0, 1] {
        let hub = TestHub::start().await;
        let mode = SamplingMode::Asynchronous { batch_env_steps, max_staleness };
        let endless = RunConfig { mode, ..config(2).stop_after(u64::MAX) };
        let mut sampling = hub.hub.sample(endless).await.unwrap();
        let mut newest = 0;
        while newest < 5 {
            let set = hub.hub.sync_weights(weights(&[16, 16], 10 + newest));
            let mut set = std::pin::pin!(set);
            // They go out when the next iteration begins, so batches must be taken meanwhile.
            let version = loop {
                tokio::select! {
                    version = &mut set => break version.unwrap(),
                    batch = next(&mut sampling) => {
                        let oldest = batch.unwrap().iter().map(|fragment| fragment.weights_version.0).min().unwrap();
                        assert!(oldest + max_staleness >= newest, "{oldest} after {newest}");
                    }
                }
            };
            newest += 1;
            assert_eq!(version, WeightsVersion(newest));
        }
        assert_eq!(end(sampling.end()).await.end, RunEnd::Stopped);
        hub.hub.shutdown().await;
    }
}

#[tokio::test]
async fn a_cart_pole_row_costs_at_most_40_bytes_on_the_socket() {
    // Fragments as `sample` makes them, as `train` does, and far smaller ones.
    for (length, at_most) in [(200, 30.0), (64, 31.0), (8, 40.0)] {
        let hub = TestHub::start().await;
        let batches = 400_u32.div_ceil(length);
        let env_steps = u64::from(64 * length * batches);
        // A single worker: on a busy machine others would do overdue leases a second time.
        let config = RunConfig::sampling("CartPole-v1", 64).num_workers(1);
        let config = config.rollout_fragment_length(length).stop_after(env_steps);
        let mut sampling = hub.hub.sample(config).await.unwrap();
        let mut rows = 0;
        while let Some(fragments) = next(&mut sampling).await {
            rows += fragments.iter().map(SlotFragment::env_steps).sum::<u64>();
        }
        assert_eq!(rows, env_steps);
        let bytes = hub.hub.traffic().await.received_bytes as f64 / rows as f64;
        assert!(bytes <= at_most, "{bytes} bytes a row in fragments of {length}");
        assert!(bytes > 20.0, "{bytes}: too few for any encoding");
        hub.hub.shutdown().await;
    }
}

#[tokio::test]
async fn weights_act_everywhere_when_their_sync_is_done() {
    let hub = TestHub::start().await;
    let early = hub.hub.sync_weights(weights(&[16, 16], 1)).await;
    assert_eq!(early, Err(SyncError::NoRun));
    let endless = config(2).stop_after(u64::MAX);
    let mut sampling = hub.hub.sample(endless).await.unwrap();
    let first = next(&mut sampling).await.unwrap();
    assert!(first.iter().all(|fragment| fragment.weights_version == WeightsVersion(0)));

    let odd = hub.hub.sync_weights(weights(&[16, 8], 1)).await.unwrap_err();
    let words = "the run's policy has other tensors: tensor 'policy.1.bias' has shape [8]; the policy's has shape [16]";
    assert_eq!(odd.to_string(), words);
    for version in 1..=3 {
        let applied = soon("weights", hub.hub.sync_weights(weights(&[16, 16], 10 + version))).await;
        assert_eq!(applied, Ok(WeightsVersion(version)));
    }
    // Batches that were made before are returned first.
    let mut newest = 0;
    while newest < 3 {
        let batch = next(&mut sampling).await.unwrap();
        let versions: Vec<u64> = batch.iter().map(|fragment| fragment.weights_version.0).collect();
        assert!(versions.iter().all(|version| *version == versions[0]), "one version in a batch: {versions:?}");
        assert!(versions[0] >= newest, "{versions:?} after {newest}");
        newest = versions[0];
    }
    // No further batch is taken: the run ends.
    assert_eq!(end(sampling.end()).await.end, RunEnd::Stopped);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn quarantined_worker_delays_no_weights() {
    let mut hub = TestHub::start().await;
    let mut failing = hub.hand_made_worker().await;
    let sampling = hub.hub.sample(config(1).stop_after(u64::MAX)).await.unwrap();
    // It refuses every lease, is notified of new weights like all, does not acknowledge them, and stays connected.
    let stays = tokio::spawn(async move {
        failing.answer_able().await;
        while let Some(message) = failing.receive().await {
            if let Message::LeaseGrant(grant) = message {
                let refused = LeaseRefused { lease: grant.lease, reason: "cannot".into(), failed: None };
                failing.say(&Message::LeaseRefused(refused)).await;
            }
        }
    });
    hub.notice("lease 1 was refused by worker 1: cannot").await;
    hub.notice("it failed three times in a row").await;
    let applied = soon("weights", hub.hub.sync_weights(weights(&[16, 16], 1))).await;
    assert_eq!(applied, Ok(WeightsVersion(1)));
    drop(sampling);
    hub.hub.shutdown().await;
    stays.await.unwrap();
}

#[tokio::test]
async fn run_ends_when_its_consumer_leaves_even_before_the_first_rows() {
    let hub = TestHub::start().await;
    // No worker makes rows.
    let sampling = hub.hub.sample(RunRequest { remote_only: true, ..config(0).into() }).await.unwrap();
    assert_eq!(end(sampling.end()).await.end, RunEnd::Stopped);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn weights_of_a_learner_cannot_be_set() {
    let hub = TestHub::start().await;
    let run = hub.train(super::small(1, 200)).await;
    assert_eq!(hub.hub.sync_weights(weights(&[16, 16], 1)).await, Err(SyncError::NoRun));
    assert_eq!(end(run).await.end, RunEnd::Finished);
    hub.hub.shutdown().await;
}

//! Samples of groups.

use std::{collections::BTreeMap, net::TcpListener, time::Duration};

use rollmesh::{
    WorkerGroup,
    worker_group::{FailureSettings, ForEachWorker, GroupError, ParallelSample, Placement, SyncWeights},
};
use rollmesh_core::{
    batch::{AnyBatch, VF_PREDS, codec},
    group::SamplingMode,
    ids::{PolicyId, WorkerId},
    time::Micros,
    weights::{Tensor, Weights},
    worker::RolloutConfig,
};

use super::rig::{builder, cart_pole, connected, everywhere, group, kill, placements, processes, waiting_at};

pub(crate) fn a_group_of_processes_samples_the_bits_of_one_of_threads() {
    let mut threads = group(cart_pole(), &Placement::Threads, 3);
    let mut abroad = group(cart_pole(), &processes(), 3);
    for _ in 0..3 {
        let here = threads.synchronous_parallel_sample(ParallelSample::env_steps(100)).unwrap();
        let there = abroad.synchronous_parallel_sample(ParallelSample::env_steps(100)).unwrap();
        assert_eq!(here.len(), 6);
        assert!(here == there);
        assert_eq!(AnyBatch::concat(&there).unwrap().env_steps(), 120);
    }
    // Too large for one frame.
    let sample = |config: RolloutConfig, placement: &Placement| {
        group(config, placement, 1).synchronous_parallel_sample(ParallelSample::default()).unwrap()
    };
    let long = cart_pole().rollout_fragment_length(5_000);
    assert!(sample(long.clone(), &Placement::Threads) == sample(long, &processes()));
    // Larger than any other message.
    let pictures =
        RolloutConfig::new("PixelBreakout-v0").single_policy("random").num_envs(2).rollout_fragment_length(45_000);
    let pictures = sample(pictures, &processes());
    let bytes: usize = pictures.iter().map(|batch| codec::encode_any(batch).len()).sum();
    assert!(bytes > 64 << 20, "{bytes}");
}

pub(crate) fn rounds_repeat_until_there_are_enough_steps() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let steps = |batches: Vec<AnyBatch>| batches.iter().map(AnyBatch::env_steps).sum::<usize>();
        assert_eq!(steps(group.synchronous_parallel_sample(ParallelSample::default()).unwrap()), 40);
        assert_eq!(steps(group.synchronous_parallel_sample(ParallelSample::env_steps(41)).unwrap()), 80);
        assert_eq!(steps(group.synchronous_parallel_sample(ParallelSample::agent_steps(80)).unwrap()), 80);
        let both = ParallelSample { max_agent_steps: Some(1), ..ParallelSample::env_steps(1) };
        assert!(matches!(group.synchronous_parallel_sample(both), Err(GroupError::BothLimits)));
    }
    // Alone, the local worker samples.
    let mut alone = group(cart_pole(), &Placement::Threads, 0);
    assert_eq!(alone.synchronous_parallel_sample(ParallelSample::env_steps(50)).unwrap().len(), 3);
}

/// Lets a worker wait before its next call, until the gate is opened.
struct Gate(TcpListener);

impl Gate {
    fn close(group: &mut WorkerGroup, worker: WorkerId) -> Self {
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = waiting_at(&gate);
        group.foreach_worker_async(&ForEachWorker::remote().remote_workers([worker]), closed, None).unwrap();
        Self(gate)
    }

    fn open(self) {
        drop(self.0.accept().unwrap());
    }
}

pub(crate) fn late_fragment_is_part_of_the_next_sample() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let gate = Gate::close(&mut group, WorkerId(1));
        let soon = ParallelSample { timeout: Some(Duration::from_millis(50)), ..ParallelSample::env_steps(60) };
        let batches = group.synchronous_parallel_sample(soon).unwrap();
        assert_eq!((batches.len(), group.sample_counters().carried), (3, 0));
        gate.open();
        let late = group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        assert_eq!((late.len(), group.sample_counters().carried, group.sample_counters().lost), (2, 1, 0));
        assert_eq!(group.num_healthy_remote_workers(), 2);
    }
}

fn with_mode(mode: SamplingMode, placement: &Placement) -> WorkerGroup {
    connected(builder(cart_pole(), placement, 2).sampling_mode(mode), placement, 2)
}

fn zeros(weights: BTreeMap<PolicyId, Weights>) -> BTreeMap<PolicyId, Weights> {
    let zero = |tensor: &Tensor| Tensor { values: vec![0.0; tensor.values.len()], ..tensor.clone() };
    let zero =
        |weights: Weights| Weights::new(weights.version(), weights.tensors().iter().map(zero).collect()).unwrap();
    weights.into_iter().map(|(id, weights)| (id, zero(weights))).collect()
}

/// Returns whether a batch was made with weights that are all zero.
fn is_of_zeros(batch: &AnyBatch) -> bool {
    batch.single().unwrap().get(VF_PREDS).unwrap().iter().all(|value| *value == 0.0)
}

pub(crate) fn batches_do_not_wait_for_stragglers_and_staleness_is_bounded() {
    for placement in everywhere() {
        let mode = SamplingMode::Asynchronous { batch_env_steps: 20, max_staleness: 1 };
        let mut group = with_mode(mode, &placement);
        let zeros = zeros(group.weights(None).unwrap());
        let gate = Gate::close(&mut group, WorkerId(1));
        let first = group.sample().unwrap();
        assert!(first.len() == 1 && !is_of_zeros(&first[0]));
        // By then, the sample that worker 2 has begun before this is one version old, and that of worker 1 two.
        group.sync_weights(SyncWeights::from_weights(&zeros)).unwrap();
        let second = group.sample().unwrap();
        assert!(second.len() == 1 && !is_of_zeros(&second[0]));
        group.sync_weights(SyncWeights::from_weights(&zeros)).unwrap();
        gate.open();
        while group.sample_counters().dropped_stale == 0 {
            assert!(group.sample().unwrap().iter().all(is_of_zeros));
        }
        let counters = group.sample_counters();
        assert!(counters.balances() && counters.lost == 0 && counters.dropped_stale == 1, "{counters:?}");
    }
    let empty = SamplingMode::Asynchronous { batch_env_steps: 0, max_staleness: 1 };
    let error = builder(cart_pole(), &Placement::Threads, 1).sampling_mode(empty).build().unwrap_err();
    assert!(error.to_string().contains("batch_env_steps is 0"), "{error}");
}

pub(crate) fn deadline_returns_ready_fragments_and_keeps_late_ones_for_the_next_call() {
    let mut calm = group(cart_pole(), &Placement::Threads, 2);
    // Alternately of worker 1 and of worker 2.
    let calm = calm.synchronous_parallel_sample(ParallelSample::env_steps(160)).unwrap();
    for placement in everywhere() {
        let mode = SamplingMode::Deadline { after: Micros::from_millis(20), max_staleness: 0 };
        let mut group = with_mode(mode, &placement);
        let gate = Gate::close(&mut group, WorkerId(1));
        assert!(group.sample().unwrap() == calm[1..2]);
        assert!(group.sample().unwrap() == calm[3..4]);
        gate.open();
        // Late samples are returned with the others that are ready, and none is lost.
        let mut batches = Vec::new();
        while !batches.contains(&calm[0]) || !batches.contains(&calm[5]) {
            batches.extend(group.sample().unwrap());
        }
        let mut first = batches.iter().filter(|batch| calm.iter().step_by(2).any(|one| one == *batch));
        assert!(first.next() == Some(&calm[0]));
        let counters = group.sample_counters();
        assert!(counters.balances() && counters.carried >= 1, "{counters:?}");
        assert_eq!((counters.lost, counters.dropped_stale, counters.consumed), (0, 0, batches.len() as u64 + 2));
    }
}

pub(crate) fn samples_of_workers_that_die_or_fail_are_counted() {
    let mode = SamplingMode::Asynchronous { batch_env_steps: 20, max_staleness: 1 };
    let failures = FailureSettings { ignore_worker_failures: true, ..FailureSettings::default() };
    let mut group = builder(cart_pole(), &processes(), 2).failures(failures).sampling_mode(mode).build().unwrap();
    let _gate = Gate::close(&mut group, WorkerId(1));
    group.sample().unwrap();
    let [first, second] = group.worker_pids()[..] else { panic!("two processes") };
    // It was asked for a sample, and never makes it.
    kill(first);
    while group.sample_counters().lost == 0 {
        group.sample().unwrap();
    }
    let counters = group.sample_counters();
    assert!(counters.balances() && counters.lost == 1, "{counters:?}");
    // Without workers there is nothing to wait for.
    kill(second);
    let error = loop {
        if let Err(error) = group.sample() {
            break error;
        }
    };
    assert!(matches!(error, GroupError::NoHealthyWorkers { workers: 2, .. }), "{error}");
    assert!(group.sample_counters().balances());
}

pub(crate) fn every_mode_has_batches_without_workers() {
    let (batch_env_steps, max_staleness) = (50, 0);
    for (mode, batches) in [
        (SamplingMode::Synchronous, 1),
        (SamplingMode::Asynchronous { batch_env_steps, max_staleness }, 3),
        (SamplingMode::Deadline { after: Micros(0), max_staleness }, 1),
    ] {
        let mut alone = builder(cart_pole(), &Placement::Threads, 0).sampling_mode(mode).build().unwrap();
        assert_eq!(alone.sample().unwrap().len(), batches);
    }
}

//! What groups sample.

use std::{net::TcpListener, time::Duration};

use rollmesh::worker_group::{ForEachWorker, GroupError, ParallelSample, Placement};
use rollmesh_core::{batch::AnyBatch, ids::WorkerId};

use super::rig::{cart_pole, group, placements, processes, waiting_at};

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
}

pub(crate) fn rounds_go_on_until_there_is_enough() {
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

pub(crate) fn what_is_late_is_carried_over() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = waiting_at(&gate);
        let first = ForEachWorker::remote().remote_workers([WorkerId(1)]);
        // What it is asked next has to wait behind this.
        group.foreach_worker_async(&first, closed, None).unwrap();
        let soon = ParallelSample { timeout: Some(Duration::from_millis(50)), ..ParallelSample::env_steps(60) };
        let batches = group.synchronous_parallel_sample(soon).unwrap();
        assert_eq!((batches.len(), group.sample_counters().carried), (3, 0));
        drop(gate.accept().unwrap());
        let late = group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        assert_eq!((late.len(), group.sample_counters().carried, group.sample_counters().lost), (2, 1, 0));
        assert_eq!(group.num_healthy_remote_workers(), 2);
    }
}

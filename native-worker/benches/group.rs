//! Worker processes on this machine's sockets: rows without learning, and new weights for all of them.
//!
//! `cargo bench -p rollmesh --bench group`; figures and comparisons are in `docs/performance.md`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, Sampling},
    kernels::AUTO,
    train::RunConfig,
};
use rollmesh_core::{
    env::EnvRegistry,
    policy::{ModelConfig, ModelSpec},
    weights::Weights,
    worker::{RolloutConfig, RolloutWorker},
};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NUM_ENVS: u32 = 64;

/// A hub with a run and its worker processes.
struct Group {
    runtime: Runtime,
    hub: Hub,
    sampling: Sampling,
}

impl Group {
    fn start(config: RunConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let hub = HubConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            dashboard: false,
            assets: None,
            runs_dir: None,
            worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
            kernels: AUTO,
            external: None,
            allow_origins: Vec::new(),
            security: rollmesh::hub::SecurityConfig::default(),
        };
        let (hub, sampling) = runtime.block_on(async {
            let hub = Hub::start(hub, &Registry::builtin()).await.unwrap();
            let mut sampling = hub.sample(config).await.unwrap();
            sampling.next_batch().await.expect("the first batch");
            (hub, sampling)
        });
        Self { runtime, hub, sampling }
    }

    /// Returns the time for the given number of batches.
    fn sample(&mut self, batches: u64) -> Duration {
        let begun = Instant::now();
        self.runtime.block_on(async {
            for _ in 0..batches {
                black_box(self.sampling.next_batch().await).expect("a batch");
            }
        });
        begun.elapsed()
    }

    /// Returns the time for the given number of new weights, each until the hub is notified that all workers act with
    /// them.
    fn sync(&mut self, weights: &Weights, times: u64) -> Duration {
        let begun = Instant::now();
        self.runtime.block_on(async {
            for _ in 0..times {
                self.hub.sync_weights(weights.clone()).await.unwrap();
            }
        });
        begun.elapsed()
    }

    fn stop(self) {
        self.runtime.block_on(self.hub.shutdown());
    }
}

fn endless(num_workers: u32, hidden: &[u32], length: u32) -> RunConfig {
    let run = RunConfig::sampling("CartPole-v1", NUM_ENVS).num_workers(num_workers).fcnet_hiddens(hidden);
    run.rollout_fragment_length(length).stop_after(u64::MAX)
}

fn rows(c: &mut Criterion) {
    // As `rollmesh sample` does.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let mut cases = c.benchmark_group("rows");
    for length in [200, 1_000] {
        cases.throughput(Throughput::Elements(u64::from(NUM_ENVS) * u64::from(length)));
        let config = RolloutConfig::new("CartPole-v1").num_envs(NUM_ENVS);
        let mut worker = RolloutWorker::new(config, &Registry::builtin(), AUTO).unwrap();
        cases.bench_function(format!("in_process/{length}"), |b| {
            b.iter(|| black_box(worker.sample_fragments(length).unwrap()));
        });
        let mut group = Group::start(endless(2, &[64, 64], length));
        cases.bench_function(format!("two_workers/{length}"), |b| b.iter_custom(|batches| group.sample(batches)));
        group.stop();
    }
}

/// Measures new weights. No batch is taken meanwhile, so that workers have no other work.
fn weights(c: &mut Criterion) {
    let mut cases = c.benchmark_group("weights_to_two_workers");
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    for (name, hidden) in [("64x64", vec![64; 2]), ("10_MB", vec![256; 20])] {
        let weights =
            ModelSpec::for_spaces(&spaces, &ModelConfig::of_widths(&hidden)).unwrap().init_weights(1).unwrap();
        let bytes = weights.tensors().iter().map(|tensor| 4 * tensor.values.len() as u64).sum();
        cases.throughput(Throughput::Bytes(bytes));
        let mut group = Group::start(endless(2, &hidden, 1));
        cases.bench_function(name, |b| b.iter_custom(|times| group.sync(&weights, times)));
        group.stop();
    }
}

criterion_group!(benches, weights, rows);
criterion_main!(benches);

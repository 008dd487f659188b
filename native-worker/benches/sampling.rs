//! How fast environments, policy and both together are, for every instantiation of the hot loops.
//!
//! `cargo bench -p rollmesh`; compare figures of one run only, machines are noisy.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rollmesh::kernels::AUTO;
use rollmesh_core::{
    env::{CartPole, Moment, Moments, RowsMut, RowsRef, StepOut, VectorEnv as _},
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, MlpPolicy, MlpPolicySpec, Policy as _, init_weights},
    rng::{Purpose, Streams},
    worker::{Registry, RolloutConfig, RolloutWorker},
};

const ENVS: usize = 64;
const TABLES: [Kernels; 2] = [Kernels::PORTABLE, AUTO];

/// Whole fragments of 64 CartPoles, 200 steps each.
fn sample(c: &mut Criterion) {
    let mut group = c.benchmark_group("sample");
    group.throughput(Throughput::Elements(ENVS as u64 * 200));
    for kernels in TABLES {
        for (name, policy) in [("random", "random"), ("mlp 64x64", "net")] {
            let config = RolloutConfig::new("CartPole-v1").num_envs(ENVS as u32).single_policy(policy);
            let mut worker =
                RolloutWorker::new(config, &Registry::builtin(), kernels).expect("the configuration is sound");
            group.bench_function(BenchmarkId::new(name, kernels.name), |b| {
                b.iter(|| black_box(worker.sample_fragments(200)));
            });
        }
    }
}

/// One forward pass of both networks and the choice of actions.
fn act(c: &mut Criterion) {
    let mut group = c.benchmark_group("act");
    group.throughput(Throughput::Elements(ENVS as u64));
    let spec = MlpPolicySpec { obs_len: 4, num_actions: 2, hidden: vec![64, 64] };
    let moments = [Moment::default(); ENVS];
    let obs = [0.1f32; 4 * ENVS];
    for kernels in TABLES {
        let weights = init_weights(&spec, 1).expect("the layers are the policy's");
        let mut policy = MlpPolicy::new(spec.clone(), weights, 1, kernels).expect("the weights are the policy's");
        let (mut actions, mut logp, mut vf_preds) = ([0i64; ENVS], [0f32; ENVS], [0f32; ENVS]);
        group.bench_function(kernels.name, |b| {
            b.iter(|| {
                let output = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut vf_preds);
                policy.compute_actions(ActionInput::new(RowsRef::F32(black_box(&obs)), &moments), output)
            });
        });
    }
}

/// One step of all CartPoles.
fn cartpole(c: &mut Criterion) {
    let mut group = c.benchmark_group("cartpole");
    group.throughput(Throughput::Elements(ENVS as u64));
    let actions = [1i64; ENVS];
    let lanes = [Moment::default(); ENVS];
    let streams = Streams::new(0, Purpose::EnvStep);
    for kernels in TABLES {
        let mut env = CartPole::new(ENVS, kernels);
        let mut obs = [0f32; 4 * ENVS];
        let (mut rewards, mut terminateds, mut truncateds) = ([0f64; ENVS], [false; ENVS], [false; ENVS]);
        group.bench_function(kernels.name, |b| {
            b.iter(|| {
                // From one state, since a cart left to itself runs away.
                (0..ENVS).for_each(|lane| env.set_state(lane, [0.01; 4]).expect("a lane"));
                let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
                env.step(black_box(&actions), Moments { streams, lanes: &lanes }, &mut obs, out)
            });
        });
    }
}

criterion_group!(benches, sample, act, cartpole);
criterion_main!(benches);

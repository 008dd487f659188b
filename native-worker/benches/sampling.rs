//! The throughput of environments, of the policy and of both together.
//!
//! `cargo bench -p rollmesh --bench sampling`; compare figures of one run only, machines are noisy. Comparisons and
//! results are in `docs/performance.md`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rollmesh::kernels::AUTO;
use rollmesh_core::{
    env::{
        CartPole, Env, EnvError, EnvRegistry, EnvState, Moment, Moments, Rng, RowsMut, RowsRef, SnapshotReader, Step,
        StepOut, VectorEnv, Vectorized, put_rows,
    },
    ids::SlotId,
    kernels::Kernels,
    math,
    policy::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, Policy as _},
    postprocess::{AdvantageConfig, Finisher},
    rng::{Purpose, Streams},
    space::Space,
    worker::{Registry, RolloutConfig, RolloutWorker},
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TABLES: [Kernels; 2] = [Kernels::PORTABLE, AUTO];
const FRAGMENT: u32 = 200;

/// A cart with a pole as a user writes it, in the simplest way.
#[derive(Clone, Default)]
struct PlainCartPole {
    state: [f64; 4],
}

impl Env for PlainCartPole {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[f32::NEG_INFINITY; 4], &[f32::INFINITY; 4])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.state = std::array::from_fn(|_| rng.uniform_in(-0.05, 0.05));
        obs.copy_from_slice(&self.state.map(|x| x as f32));
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let [x, x_dot, theta, theta_dot] = self.state;
        let force = if action[0] == 1 { 10.0 } else { -10.0 };
        let (sin, cos) = math::sin_cos(theta);
        let temp = (force + 0.05 * theta_dot * theta_dot * sin) / 1.1;
        let theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
        let x_acc = temp - 0.05 * theta_acc * cos / 1.1;
        let tau = 0.02;
        self.state = [x + tau * x_dot, x_dot + tau * x_acc, theta + tau * theta_dot, theta_dot + tau * theta_acc];
        obs.copy_from_slice(&self.state.map(|x| x as f32));
        let terminated = self.state[0].abs() > 2.4 || self.state[2].abs() > 12f64.to_radians();
        Ok(Step { reward: 1.0, terminated, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        put_rows(out, RowsRef::F64(&self.state));
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let mut state = [0.0; 4];
        for value in &mut state {
            *value = reader.finite()?;
        }
        reader.finish()?;
        self.state = state;
        obs.copy_from_slice(&self.state.map(|x| x as f32));
        Ok(())
    }
}

/// Steps environments under random actions that were drawn before, resets those whose episode ended, and nothing else.
struct Stepper<E> {
    env: E,
    actions: Vec<i64>,
    moments: Vec<Moment>,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
    /// Steps of the episode.
    ts: Vec<u32>,
}

impl<E: VectorEnv<Obs = f32, Act = i64>> Stepper<E> {
    /// Rows of actions that are taken cyclically.
    const ROWS: usize = 50;
    const LIMIT: u32 = 500;
    /// Number of lanes whose flags are checked together.
    const GROUP: usize = 64;

    fn new(env: E) -> Self {
        let n = env.num_envs();
        let mut rng = Streams::new(1, Purpose::Action).at(SlotId(0), 0, 0, 0);
        let moments: Vec<Moment> =
            (0..n as u32).map(|slot| Moment { slot: SlotId(slot), ..Moment::default() }).collect();
        let mut stepper = Self {
            env,
            actions: (0..n * Self::ROWS).map(|_| i64::from(rng.below(2))).collect(),
            moments,
            obs: vec![0.0; 4 * n],
            rewards: vec![0.0; n],
            terminateds: vec![false; n],
            truncateds: vec![false; n],
            ts: vec![0; n],
        };
        (0..n).for_each(|lane| stepper.reset(lane));
        stepper
    }

    fn reset(&mut self, lane: usize) {
        let moment = &mut self.moments[lane];
        moment.episode += 1;
        self.ts[lane] = 0;
        let mut rng = Streams::new(1, Purpose::Reset).at(moment.slot, moment.episode, 0, 0);
        self.env.reset_at(lane, &mut rng, &mut self.obs[4 * lane..][..4]).expect("a lane");
    }

    /// Takes [`ROWS`](Self::ROWS) steps of every lane.
    fn run(&mut self) {
        let n = self.ts.len();
        for row in 0..Self::ROWS {
            let out = StepOut {
                rewards: &mut self.rewards,
                terminateds: &mut self.terminateds,
                truncateds: &mut self.truncateds,
            };
            let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &self.moments, mark: None };
            self.env.step(&self.actions[row * n..][..n], moments, &mut self.obs, out).expect("sound actions");
            for first in (0..n).step_by(Self::GROUP) {
                let lanes = first..(first + Self::GROUP).min(n);
                let mut over = [false; 64];
                let flags = self.terminateds[lanes.clone()].iter().zip(&self.truncateds[lanes.clone()]);
                for ((over, t), (terminated, truncated)) in over.iter_mut().zip(&mut self.ts[lanes.clone()]).zip(flags)
                {
                    *t += 1;
                    *over = *terminated | *truncated | (*t >= Self::LIMIT);
                }
                if over.iter().fold(false, |any, over| any | over) {
                    lanes.zip(over).filter(|(_, over)| *over).for_each(|(lane, _)| self.reset(lane));
                }
            }
        }
    }
}

/// Measures CartPole alone, resets of ended episodes included.
fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for lanes in [64, 1024, 4096] {
        group.throughput(Throughput::Elements((lanes * Stepper::<CartPole>::ROWS) as u64));
        for kernels in TABLES {
            let mut stepper = Stepper::new(CartPole::new(lanes, kernels));
            group.bench_function(BenchmarkId::new(kernels.name, lanes), |b| b.iter(|| stepper.run()));
        }
    }
    for lanes in [64, 1024] {
        group.throughput(Throughput::Elements((lanes * Stepper::<CartPole>::ROWS) as u64));
        let mut stepper = Stepper::new(Vectorized::new(vec![PlainCartPole::default(); lanes]));
        group.bench_function(BenchmarkId::new("a user's", lanes), |b| b.iter(|| stepper.run()));
    }
}

/// Measures whole samples with every column and advantages.
fn sample(c: &mut Criterion) {
    let mut group = c.benchmark_group("sample");
    let advantages = AdvantageConfig { gamma: 0.99, lambda: 0.95, use_gae: true, use_critic: true };
    for lanes in [1, 64, 1024] {
        group.throughput(Throughput::Elements(u64::from(lanes * FRAGMENT)));
        for kernels in TABLES {
            let config = RolloutConfig::new("CartPole-v1").num_envs(lanes);
            let mut worker =
                RolloutWorker::new(config, &Registry::builtin(), kernels).expect("the configuration is sound");
            let mut finisher = Finisher::default();
            group.bench_function(BenchmarkId::new(kernels.name, lanes), |b| {
                b.iter(|| {
                    let fragments = worker.sample_fragments(FRAGMENT).expect("CartPole does not fail");
                    finisher.finish(black_box(&fragments), Some(&advantages))
                });
            });
        }
    }
    // Actions that are numbers, memory, pictures and one-hot vectors.
    group.throughput(Throughput::Elements(u64::from(64 * FRAGMENT)));
    let lstm = r#"{"use_lstm": true}"#;
    let cnn = r#"{"conv_filters": "auto", "fcnet_hiddens": [128], "vf_share_layers": true}"#;
    let cases = [
        ("CartPole-v1", lstm, " with an LSTM"),
        ("Pendulum-v1", "{}", ""),
        ("PixelBreakout-v0", "{}", ""),
        ("PixelBreakout-v0", cnn, " with a convolution"),
        ("Taxi-v4", "{}", ""),
    ];
    for (env, model, with) in cases {
        for kernels in TABLES {
            let config = RolloutConfig::new(env).num_envs(64).rollout_fragment_length(FRAGMENT);
            let config = RolloutConfig { model_config: model.parse().expect("an object"), ..config };
            let mut worker =
                RolloutWorker::new(config, &Registry::builtin(), kernels).expect("the configuration is sound");
            let name = format!("{}/{env}{with}", kernels.name);
            group.bench_function(name, |b| b.iter(|| worker.sample().expect("environments do not fail")));
        }
    }
}

/// Measures one forward pass of both networks and the choice of actions.
fn act(c: &mut Criterion) {
    let mut group = c.benchmark_group("act");
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").expect("CartPole").spaces().expect("its spaces");
    for (width, rows) in [(64, 1), (64, 64), (256, 64), (512, 64), (1024, 64)] {
        group.throughput(Throughput::Elements(rows as u64));
        let moments = vec![Moment::default(); rows];
        let obs = vec![0.1f32; 4 * rows];
        let model = ModelConfig::of_widths(&[width; 2]);
        for kernels in TABLES {
            let weights = ModelSpec::for_spaces(&spaces, &model).and_then(|spec| spec.init_weights(1));
            let weights = weights.expect("CartPole has a model");
            let mut policy =
                NetPolicy::new(&spaces, &model, weights, 1, kernels).expect("the weights are the policy's");
            let (mut actions, mut logp, mut vf_preds) = (vec![0i64; rows], vec![0f32; rows], vec![0f32; rows]);
            group.bench_function(format!("{}/{width}x{width}/{rows}", kernels.name), |b| {
                b.iter(|| {
                    let output = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut vf_preds);
                    policy.compute_actions(ActionInput::new(RowsRef::F32(black_box(&obs)), &moments), output)
                });
            });
        }
    }
}

criterion_group!(benches, step, sample, act);
criterion_main!(benches);

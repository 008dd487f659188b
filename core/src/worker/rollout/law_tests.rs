//! Both samplers make the same batches and metrics of everything that both can sample.

use core::marker::PhantomData;

use proptest::{option, prelude::*, sample::select};

use super::{RolloutWorker, test_support::*};
use crate::{
    batch::{AnyBatch, SampleBatch},
    column::{DType, Element, RowShape},
    config::Config,
    env::{Env, EnvError, EnvSpec, EnvState, Rng, SnapshotReader, Step, Vectorized},
    filter::FilterKind,
    ids::PolicyId,
    prelude::*,
    sampler::{Horizon, RewardClipping},
    space::Space,
    time::Micros,
    worker::{NewPolicy, Registry, RolloutConfig, RolloutWorkerBuilder, SamplerChoice},
};

fn both(build: impl Fn() -> RolloutWorkerBuilder) -> [RolloutWorker; 2] {
    [SamplerChoice::Lockstep, SamplerChoice::Episodic].map(|sampler| build().sampler(sampler).build().unwrap())
}

/// Returns the metrics without durations.
fn metrics(worker: &mut RolloutWorker) -> Vec<(i64, usize, u32, f64)> {
    let episodes = worker.metrics().episodes;
    episodes.into_iter().map(|m| (m.episode_id, m.env, m.length, m.episode_return)).collect()
}

fn single(batch: AnyBatch) -> SampleBatch {
    let AnyBatch::Single(batch) = batch else { panic!("single batches") };
    batch
}

fn assert_equal(name: &str, a: &SampleBatch, b: &SampleBatch) {
    let names = |batch: &SampleBatch| batch.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(a), names(b), "{name}");
    assert_eq!(a.seq_lens(), b.seq_lens(), "{name}");
    for (column, values) in a.iter() {
        let other = b.column(column).unwrap();
        assert!(values.same_bits(other), "{name}, column {column}: {values:?} and {other:?}");
    }
    assert!(a.same_bits(b) && a.is_training() == b.is_training(), "{name}");
}

/// Returns the filter of the only policy, as bytes.
fn filter(worker: &mut RolloutWorker) -> Vec<u8> {
    worker.filters(false).unwrap()[&PolicyId::DEFAULT].encode()
}

fn assert_same(name: &str, build: impl Fn() -> RolloutWorkerBuilder, samples: usize) {
    let [mut lockstep, mut episodic] = both(&build);
    assert!(lockstep.is_lockstep() && !episodic.is_lockstep());
    let mut resumed = build().build().unwrap();
    for sample in 0..samples {
        let name = format!("{name}, sample {sample}");
        // A sample is the same in one call or in many, and after a restore.
        resumed.restore(&lockstep.save().unwrap()).unwrap();
        let a = single(lockstep.sample().unwrap());
        let b = single(episodic.sample().unwrap());
        let c = loop {
            if let Some(batch) = resumed.sample_within(Micros(0)).unwrap() {
                break single(batch);
            }
        };
        assert_equal(&name, &a, &b);
        assert_equal(&format!("{name} in many pieces"), &a, &c);
        assert_eq!(metrics(&mut lockstep), metrics(&mut episodic), "{name}");
        assert_eq!(filter(&mut lockstep), filter(&mut episodic), "{name}");
        // Weights that are set between two samples take effect with the first row after that.
        let weights = other_weights(&mut lockstep);
        lockstep.set_weights(&weights, None, None).unwrap();
        episodic.set_weights(&weights, None, None).unwrap();
    }
}

#[test]
fn both_samplers_make_the_same_of_every_built_in_environment() {
    let registry = Registry::builtin();
    for spec in registry.envs.iter() {
        for policy in ["random", "net"] {
            let config = RolloutConfig::new(spec.name.as_str()).num_envs(3).rollout_fragment_length(70).seed(9).raw();
            let config = config.single_policy(policy).fcnet_hiddens(&[8]);
            if RolloutWorkerBuilder::new(registry.clone()).config(config.clone()).build().is_err() {
                // The policy does not support these spaces.
                continue;
            }
            assert_same(
                &format!("{} under {policy}", spec.name),
                || RolloutWorkerBuilder::new(registry.clone()).config(config.clone()),
                3,
            );
        }
    }
}

const ENVS: [&str; 6] =
    ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v3", "PixelBreakout-v0"];

fn settings() -> impl Strategy<Value = RolloutConfig> {
    let flags = || prop::array::uniform5(any::<bool>());
    let horizon = (option::of(1u32..30), select(&[Horizon::Truncated, Horizon::LegacyHard][..]));
    let clipping = select(&[RewardClipping::Off, RewardClipping::Sign, RewardClipping::Limit(0.25)][..]);
    let sizes = (1u32..4, 1u32..40, any::<u64>());
    let policy = (select(&["net", "net", "random"][..]), option::of(1u32..7));
    (select(&ENVS[..]), flags(), horizon, clipping, sizes, policy).prop_map(
        |(env, flags, (horizon, horizon_means), clip_rewards, (num_envs, steps, seed), (kind, lstm))| {
            let [raw, no_done_at_end, clip_actions, normalize_actions, explore] = flags;
            let mut config = RolloutConfig::new(env).num_envs(num_envs).rollout_fragment_length(steps).seed(seed);
            if raw {
                config = config.raw();
            }
            let model = Config::new().with("fcnet_hiddens", [4]).unwrap();
            let model = match lstm {
                None => model,
                Some(length) => {
                    let model = model.with("use_lstm", true).and_then(|model| model.with("lstm_cell_size", 3));
                    model
                        .and_then(|model| model.with("max_seq_len", length))
                        .and_then(|model| model.with("lstm_use_prev_action", raw))
                        .and_then(|model| model.with("lstm_use_prev_reward", explore))
                        .unwrap()
                }
            };
            RolloutConfig {
                horizon,
                horizon_means,
                no_done_at_end,
                clip_rewards,
                clip_actions,
                normalize_actions,
                explore,
                model_config: model,
                ..config.single_policy(kind)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn both_samplers_make_the_same_under_any_settings(config in settings(), filtered in any::<bool>()) {
        let build = |config: &RolloutConfig| RolloutWorker::builder().config(config.clone());
        let filter = if filtered { FilterKind::MeanStdFilter } else { FilterKind::NoFilter };
        let config = RolloutConfig { observation_filter: filter, ..config };
        // A filter may not fit the observations, or a policy not the spaces.
        if build(&config).build().is_ok() {
            assert_same(&format!("{config:?}"), || build(&config), 3);
        }
    }
}

/// Observes its steps and the actions it receives, in any spaces. An episode has five steps.
struct Echo<O, A> {
    spaces: (Space, Space),
    shown: u32,
    t: u32,
    types: PhantomData<(O, A)>,
}

impl<O: Element, A: Element> Echo<O, A> {
    fn spec(observation: Space, action: Space) -> EnvSpec {
        let spaces = (observation, action);
        EnvSpec::new("Echo", move |contexts, _| {
            let env = || Self { spaces: spaces.clone(), shown: 0, t: 0, types: PhantomData };
            Box::new(Vectorized::new(contexts.iter().map(|_| env()).collect()))
        })
    }

    fn show(&self, obs: &mut [O]) {
        for (i, x) in obs.iter_mut().enumerate() {
            *x = O::from_f64(f64::from((self.shown + self.t + i as u32) % 2));
        }
    }
}

impl<O: Element, A: Element> Env for Echo<O, A> {
    type Obs = O;
    type Act = A;

    fn observation_space(&self) -> Space {
        self.spaces.0.clone()
    }
    fn action_space(&self) -> Space {
        self.spaces.1.clone()
    }
    fn reset(&mut self, _: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        (self.shown, self.t) = (0, 0);
        self.show(obs);
        Ok(())
    }
    fn step(&mut self, action: &[A], _: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        let reward: f64 = action.iter().map(|x| x.to_f64()).sum();
        self.shown = reward.abs() as u32;
        self.t += 1;
        self.show(obs);
        Ok(Step { reward, terminated: self.t == 5, truncated: false })
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend([self.shown.to_le_bytes(), self.t.to_le_bytes()].concat());
        EnvState::Snapshot
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [O]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        (self.shown, self.t) = (reader.u32()?, reader.u32()?);
        reader.finish()?;
        self.show(obs);
        Ok(())
    }
}

#[test]
fn both_samplers_make_the_same_of_rows_of_every_type() {
    let pair = |dtype, low, high| Space::uniform(dtype, RowShape::vector(2), low, high);
    let (many, bits) = (Space::MultiDiscrete { nvec: vec![3, 4] }, Space::MultiBinary { n: 3 });
    let specs = [
        Echo::<f64, f64>::spec(pair(DType::F64, -1.0, 2.0), pair(DType::F64, -3.0, 3.0)),
        Echo::<u8, f32>::spec(pair(DType::U8, 0.0, 9.0), pair(DType::F32, 0.0, 5.0)),
        Echo::<f32, i32>::spec(pair(DType::F32, 0.0, 9.0), pair(DType::I32, -4.0, 3.0)),
        Echo::<i64, u8>::spec(many.clone(), pair(DType::U8, 2.0, 7.0)),
        Echo::<i32, i64>::spec(Space::Discrete { n: 4 }, many.clone()),
        Echo::<bool, bool>::spec(bits.clone(), bits.clone()),
        Echo::<u8, i32>::spec(bits, many),
    ];
    for (spec, raw) in specs.iter().flat_map(|spec| [(spec, false), (spec, true)]) {
        for (policy, clip_actions, lstm) in [("random", true, false), ("net", false, false), ("net", true, true)] {
            let model_config = Config::new().with("use_lstm", lstm).unwrap();
            let config = RolloutConfig { clip_actions, normalize_actions: raw, model_config, ..Default::default() };
            let config = config.num_envs(2).rollout_fragment_length(7);
            let config = if raw { config.raw() } else { config };
            let build = || {
                let builder = RolloutWorker::builder().config(config.clone()).env_spec(spec.clone());
                builder.policy(PolicyId::DEFAULT, NewPolicy::named(policy))
            };
            assert_same(&format!("{:?} under {policy}, raw: {raw}", spec.spaces()), build, 3);
        }
    }
}

#[test]
fn ends_at_cuts_and_in_the_middle_are_the_same() {
    for length in [1, 4, 6] {
        let config = RolloutConfig::default().num_envs(2).rollout_fragment_length(6);
        assert_same(&format!("length {length}"), || counting(length, config.clone()), 4);
    }
}

/// An environment with infos.
struct Telling(Counter);

impl Env for Telling {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }
    fn action_space(&self) -> Space {
        self.0.action_space()
    }
    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.reset(rng, obs)
    }
    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0.step(action, rng, obs)
    }
    fn info(&self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(b"{}");
        true
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        self.0.snapshot(out)
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.restore(snapshot, obs)
    }
}

#[test]
fn lockstep_sampler_is_chosen_wherever_possible() {
    let fast = |config: RolloutConfig| counting(4, config).build().unwrap().is_lockstep();
    let plain = RolloutConfig::default();
    assert!(fast(plain.clone()));
    let limited = RolloutConfig { horizon: Some(2), ..plain.clone() };
    assert!(fast(limited.clone()));
    assert!(!fast(RolloutConfig { horizon_means: Horizon::LegacySoft, ..limited }));
    assert!(!fast(RolloutConfig { restart_failed_sub_environments: true, ..plain.clone() }));
    assert!(fast(RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..plain.clone() }));
    let random = || NewPolicy::named("random");
    let lake = |config: RolloutConfig| {
        let lake = Registry::builtin().envs.spec("FrozenLake-v1").unwrap();
        RolloutWorker::builder().config(config).env_spec(lake).policy(PolicyId::DEFAULT, random()).build().unwrap()
    };
    // An environment with infos needs the episodic sampler.
    let telling = EnvSpec::new("Telling", |contexts, _| {
        let counter = || Telling(Counter { length: 4, reward: 1.0, t: 0 });
        Box::new(Vectorized::new(contexts.iter().map(|_| counter()).collect()))
    });
    let telling = || {
        let builder = RolloutWorker::builder().config(plain.clone()).env_spec(telling.clone());
        builder.policy(PolicyId::DEFAULT, random())
    };
    assert!(!telling().build().unwrap().is_lockstep());
    assert!(telling().sampler(SamplerChoice::Lockstep).build().is_err());
    // Discrete observations, one-hot encoded or raw.
    assert!(lake(plain.clone()).is_lockstep() && lake(plain.raw()).is_lockstep());
}

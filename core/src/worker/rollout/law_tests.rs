//! Both samplers make the same batches and metrics of whatever both can sample.

use super::{RolloutWorker, test_support::*};
use crate::{
    batch::AnyBatch,
    env::{Env, EnvError, EnvSpec, Rng, Step, Vectorized},
    ids::PolicyId,
    prelude::*,
    space::Space,
    worker::{NewPolicy, Registry, RolloutConfig, RolloutWorkerBuilder, SamplerChoice},
};

fn both(build: impl Fn() -> RolloutWorkerBuilder) -> [RolloutWorker; 2] {
    [SamplerChoice::Lockstep, SamplerChoice::Episodic].map(|sampler| build().sampler(sampler).build().unwrap())
}

/// Metrics without times.
fn metrics(worker: &mut RolloutWorker) -> Vec<(i64, usize, u32, f64)> {
    let episodes = worker.metrics().episodes;
    episodes.into_iter().map(|m| (m.episode_id, m.env, m.length, m.episode_return)).collect()
}

fn assert_same(name: &str, build: impl Fn() -> RolloutWorkerBuilder, samples: usize) {
    let [mut lockstep, mut episodic] = both(build);
    assert!(lockstep.is_lockstep() && !episodic.is_lockstep());
    for sample in 0..samples {
        let (a, b) = (lockstep.sample().unwrap(), episodic.sample().unwrap());
        let (AnyBatch::Single(a), AnyBatch::Single(b)) = (a, b) else { panic!("single batches") };
        let names =
            |batch: &crate::batch::SampleBatch| batch.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&a), names(&b), "{name}, sample {sample}");
        for (column, values) in a.iter() {
            assert!(values.same_bits(b.column(column).unwrap()), "{name}, sample {sample}, column {column}");
        }
        assert!(a.same_bits(&b) && a.is_training() == b.is_training(), "{name}, sample {sample}");
        assert_eq!(metrics(&mut lockstep), metrics(&mut episodic), "{name}, sample {sample}");
        // Whatever is set between two samples acts from the first row after.
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
                // A policy does not take these spaces.
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

#[test]
fn ends_at_cuts_and_in_the_middle_are_the_same() {
    for length in [1, 4, 6] {
        let config = RolloutConfig::default().num_envs(2).rollout_fragment_length(6);
        assert_same(&format!("length {length}"), || counting(length, config.clone()), 4);
    }
}

/// Has infos.
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
    fn snapshot(&self, out: &mut Vec<u8>) {
        self.0.snapshot(out);
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.restore(snapshot, obs)
    }
}

#[test]
fn the_fast_sampler_is_taken_wherever_it_can_be() {
    let fast = |config: RolloutConfig| counting(4, config).build().unwrap().is_lockstep();
    let plain = RolloutConfig::default();
    assert!(fast(plain.clone()));
    assert!(!fast(RolloutConfig { horizon: Some(2), ..plain.clone() }));
    assert!(!fast(RolloutConfig { restart_failed_sub_environments: true, ..plain.clone() }));
    assert!(!fast(RolloutConfig { observation_filter: crate::filter::FilterKind::MeanStdFilter, ..plain.clone() }));
    let random = || NewPolicy::named("random");
    let lake = |config: RolloutConfig| {
        let lake = Registry::builtin().envs.spec("FrozenLake-v1").unwrap().clone();
        RolloutWorker::builder().config(config).env_spec(lake).policy(PolicyId::DEFAULT, random()).build().unwrap()
    };
    // Who has something to say besides is heard.
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
    // Numbered observations are preprocessed to one-hot rows unless nobody wants that.
    assert!(!lake(plain.clone()).is_lockstep() && lake(plain.raw()).is_lockstep());
}

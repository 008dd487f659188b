//! A sample that fails is retried from where it began.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::test_support::*;
use crate::{
    batch::AnyBatch,
    env::{Env, EnvError, EnvSpec, Rng, Step, Vectorized},
    ids::PolicyId,
    prelude::*,
    sampler::BatchMode,
    space::Space,
    time::Micros,
    worker::{Registry, Retries, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, SamplerChoice},
};

/// A worker of three counters to 4, of which the `wrong`-th step fails, or panics; and the number of the other steps.
fn worker(config: RolloutConfig, sampler: SamplerChoice, wrong: u32, panics: bool) -> (RolloutWorker, Arc<AtomicU32>) {
    let (steps, taken) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let counted = taken.clone();
    let fails = move |_, _| {
        let is_wrong = steps.fetch_add(1, Relaxed) + 1 == wrong;
        assert!(!is_wrong || !panics, "a wheel came off");
        counted.fetch_add(u32::from(!is_wrong), Relaxed);
        is_wrong
    };
    let registry = Registry::builtin().with_env(faulty(4, Arc::new(fails))).with_policy(mock());
    let config = RolloutConfig { env: Some("Failing".into()), num_envs: 3, ..config }.single_policy("mock");
    (RolloutWorkerBuilder::new(registry).config(config).sampler(sampler).build().unwrap(), taken)
}

fn retries() -> Retries {
    Retries::new(|work| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| "panicked".into()))
}

/// Samples of several lanes' episodes leave batches of the same round for the next sample.
#[test]
fn retry_keeps_batches_that_were_ready_and_counts_only_lost_steps() {
    let run = |wrong, panics| {
        let config = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..RolloutConfig::default() };
        let (mut worker, taken) = worker(config.rollout_fragment_length(5), SamplerChoice::Auto, wrong, panics);
        let (mut retries, mut failures) = (retries(), 0);
        let mut sample = || {
            let sampled = retries.sample(&mut worker, |worker| worker.sample().map(Some), |_| failures += 1);
            sampled.unwrap().unwrap()
        };
        let samples: Vec<AnyBatch> = (0..6).map(|_| sample()).collect();
        let metrics = worker.metrics();
        let lengths: Vec<u32> = metrics.episodes.iter().map(|episode| episode.length).collect();
        (samples, lengths, u64::from(taken.load(Relaxed)) - metrics.discarded_env_steps, failures)
    };
    let (samples, lengths, kept, none) = run(u32::MAX, false);
    assert_eq!(none, 0);
    for wrong in 1..=kept as u32 {
        assert_eq!(run(wrong, false), (samples.clone(), lengths.clone(), kept, 1), "step {wrong}");
        let (again, lengths_again, _, failures) = run(wrong, true);
        assert_eq!((again, lengths_again, failures), (samples.clone(), lengths.clone(), 1), "step {wrong}");
    }
}

#[test]
fn panic_in_a_sample_keeps_weights_that_were_set_meanwhile() {
    for sampler in [SamplerChoice::Lockstep, SamplerChoice::Episodic] {
        let config = RolloutConfig::default().rollout_fragment_length(20);
        let (mut worker, _) = worker(config, sampler, 31, true);
        let mut retries = retries();
        let mut part = |worker: &mut RolloutWorker| {
            retries.sample(worker, |worker| worker.sample_within(Micros(0)), |_| {}).unwrap()
        };
        assert_eq!(part(&mut worker), None);
        worker.set_weights(&by_id(&weight(7.0)), None, None).unwrap();
        while part(&mut worker).is_none() {}
        assert_eq!(value_of(&worker.weights(None).unwrap()[&PolicyId::DEFAULT]), 7.0, "{sampler:?}");
    }
}

/// A counter to 4 without a snapshot, of which the 32nd step fails, and then the reset after it, counted over all of them.
struct Opaque(Counter, Arc<[AtomicU32; 2]>);

impl Env for Opaque {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> Space {
        self.0.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        match self.1[0].fetch_add(1, Relaxed) {
            9 => Err(EnvError::Failed("no wheels".into())),
            _ => self.0.reset(rng, obs),
        }
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        match self.1[1].fetch_add(1, Relaxed) {
            31 => Err(EnvError::Failed("a wheel came off".into())),
            _ => self.0.step(action, rng, obs),
        }
    }
}

/// In the eleventh round: two episodes of each lane have ended, and the third one is open.
#[test]
fn abandoned_episodes_are_counted_once() {
    let calls: Arc<[AtomicU32; 2]> = Arc::default();
    let counted = calls.clone();
    let env = EnvSpec::new("Opaque", move |contexts, _| {
        let counter = |_: &_| Opaque(Counter { length: 4, reward: 1.0, t: 0 }, counted.clone());
        Box::new(Vectorized::new(contexts.iter().map(counter).collect()))
    });
    let registry = Registry::builtin().with_env(env).with_policy(mock());
    let config = RolloutConfig { env: Some("Opaque".into()), num_envs: 3, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(20).single_policy("mock");
    let builder = RolloutWorkerBuilder::new(registry).config(config).sampler(SamplerChoice::Lockstep);
    let (mut worker, mut retries, mut failures) = (builder.build().unwrap(), retries(), Vec::new());
    calls.iter().for_each(|calls| calls.store(0, Relaxed));
    let sampled =
        retries.sample(&mut worker, |worker| worker.sample().map(Some), |failure| failures.push(failure.message().to_owned()));
    assert_eq!(sampled.unwrap().unwrap().env_steps(), 60);
    assert!(failures.len() == 2 && failures[1].contains("no wheels"), "{failures:?}");
    assert_eq!((retries.take_abandoned(), worker.metrics().episodes.len()), (9, 15));
}

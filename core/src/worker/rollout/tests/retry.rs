//! A sample that fails is retried from where it began.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::test_support::*;
use crate::{
    batch::AnyBatch,
    env::{Env, EnvError, EnvSpec, EnvState, Rng, Step, Vectorized},
    ids::PolicyId,
    prelude::*,
    protocol::FragmentFailure,
    sampler::BatchMode,
    space::Space,
    time::Micros,
    worker::{Registry, Retries, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, SamplerChoice},
};

/// Creates a worker of three counters to 4, of which the `wrong`-th step fails, or panics; and the number of the other
/// steps.
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

/// An opaque counter to 4, of which the 32nd step fails, counted over all of them, and a reset.
struct Opaque {
    counter: Counter,
    steps: Arc<AtomicU32>,
    /// Number of resets until one fails.
    resets: Arc<AtomicU32>,
}

impl Env for Opaque {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        self.counter.observation_space()
    }

    fn action_space(&self) -> Space {
        self.counter.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        match self.resets.fetch_sub(1, Relaxed) {
            1 => Err(EnvError::Failed("no wheels".into())),
            _ => self.counter.reset(rng, obs),
        }
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        match self.steps.fetch_add(1, Relaxed) {
            31 => Err(EnvError::Failed("a wheel came off".into())),
            _ => self.counter.step(action, rng, obs),
        }
    }

    fn snapshot(&self, _: &mut Vec<u8>) -> EnvState {
        EnvState::Opaque
    }
}

/// In the eleventh round two episodes of each lane have ended, and the third one is open. A reset fails before the next ones
/// have begun, or at their end.
#[test]
fn abandoned_episodes_are_counted_once() {
    for (failing_reset, abandoned) in [(3 + 6 + 1, 9), (3 + 6 + 3 + 1, 9 + 3)] {
        let (steps, resets) = (Arc::default(), Arc::new(AtomicU32::new(failing_reset)));
        let env = EnvSpec::new("Opaque", move |contexts, _| {
            let counter = Counter { length: 4, reward: 1.0, t: 0 };
            let env = |_: &_| Opaque { counter: counter.clone(), steps: Arc::clone(&steps), resets: resets.clone() };
            Box::new(Vectorized::new(contexts.iter().map(env).collect()))
        });
        let registry = Registry::builtin().with_env(env).with_policy(mock());
        let config = RolloutConfig { env: Some("Opaque".into()), num_envs: 3, ..RolloutConfig::default() };
        let config = config.rollout_fragment_length(20).single_policy("mock");
        let builder = RolloutWorkerBuilder::new(registry).config(config).sampler(SamplerChoice::Lockstep);
        let (mut worker, mut retries, mut failures) = (builder.build().unwrap(), retries(), Vec::new());
        let record = |failure: &FragmentFailure| failures.push(failure.message().to_owned());
        let sampled = retries.sample(&mut worker, |worker| worker.sample().map(Some), record);
        assert_eq!(sampled.unwrap().unwrap().env_steps(), 60);
        assert!(failures.len() == 2 && failures[1].contains("no wheels"), "{failures:?}");
        assert_eq!((retries.take_abandoned(), worker.metrics().episodes.len()), (abandoned, 15));
    }
}

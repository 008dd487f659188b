//! Policies by name that learn within a worker, from environments.

use rollmesh_core::{
    batch::AnyBatch,
    env::{Env, EnvError, EnvSpec, EnvState, Rng, SnapshotReader, Step, Vectorized},
    ids::PolicyId,
    policy::Gradients,
    space::Space,
    worker::{PolicyConfig, RolloutConfig, RolloutWorker, SgdOptions, WorkerPlace},
};

use super::super::test_support::{bits, registry};

/// An environment whose last step rewards the action that the first observation showed.
#[derive(Clone, Default)]
struct Recall {
    bit: bool,
    t: u32,
}

/// Steps of an episode.
const EPISODE: u32 = 4;

impl Recall {
    fn observe(&self, obs: &mut [f32]) {
        let signal = if self.bit { 1.0 } else { -1.0 };
        obs.copy_from_slice(&[if self.t == 0 { signal } else { 0.0 }, f32::from(u8::from(self.t + 1 == EPISODE))]);
    }
}

impl Env for Recall {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[-1.0, 0.0], &[1.0, 1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        *self = Self { bit: rng.below(2) == 1, t: 0 };
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.t += 1;
        self.observe(obs);
        let terminated = self.t == EPISODE;
        let right = terminated && action == [i64::from(self.bit)];
        Ok(Step { reward: f64::from(u8::from(right)), terminated, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.bit.into());
        out.extend(self.t.to_le_bytes());
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let (bit, rest) = snapshot.split_first().ok_or_else(|| EnvError::Failed("no snapshot".into()))?;
        let mut reader = SnapshotReader::new(rest);
        *self = Self { bit: *bit == 1, t: reader.u32()? };
        reader.finish()?;
        self.observe(obs);
        Ok(())
    }
}

fn worker(env: &str, steps: u32, kind: &str, config: &str) -> RolloutWorker {
    let recall =
        EnvSpec::new("Recall", |contexts, _| Box::new(Vectorized::new(vec![Recall::default(); contexts.len()])));
    let registry = registry().with_env(recall);
    let policy = PolicyConfig::new(kind).with_config(config.parse().unwrap());
    let config = RolloutConfig::new(env).num_envs(16).rollout_fragment_length(steps).seed(5);
    RolloutWorker::from_config(config.policy(PolicyId::DEFAULT, policy), &registry, WorkerPlace::default()).unwrap()
}

/// A way to learn from a sample.
type Learn = fn(&mut RolloutWorker, &AnyBatch);

fn on_batch(worker: &mut RolloutWorker, batch: &AnyBatch) {
    worker.learn_on_batch(batch).unwrap();
}

fn by_gradients(worker: &mut RolloutWorker, batch: &AnyBatch) {
    let gradients = worker.compute_gradients(batch).unwrap().into_iter();
    let gradients = gradients.map(|(id, (own, _))| (id, own)).collect::<std::collections::BTreeMap<_, Gradients>>();
    worker.apply_gradients(&gradients).unwrap();
}

/// Returns the mean return of the episodes that end in the last tenth of the given number of updates.
fn return_after(mut worker: RolloutWorker, updates: usize, learn: Learn) -> f64 {
    for update in 0..updates {
        if update == updates - updates.div_ceil(10) {
            worker.metrics();
        }
        let batch = worker.sample().unwrap();
        learn(&mut worker, &batch);
    }
    let episodes = worker.metrics().episodes;
    episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / episodes.len() as f64
}

/// Random actions give 22.
#[test]
fn every_kind_balances_the_pole() {
    let fast = r#"{"lr": 0.01, "lambda": 0.95}"#;
    for (kind, config, steps, updates, learn) in [
        ("ppo", "{}", 64, 15, on_batch as Learn),
        ("a2c", fast, 32, 60, on_batch),
        ("pg", r#"{"lr": 0.01}"#, 64, 80, by_gradients),
    ] {
        let found = return_after(worker("CartPole-v1", steps, kind, config), updates, learn);
        assert!(found > 50.0, "{kind} reaches {found}");
    }
}

/// Random actions give about -1200.
#[test]
fn ppo_swings_the_pendulum() {
    let config = r#"{"gamma": 0.9, "lambda": 0.95, "lr": 0.003, "num_sgd_iter": 10, "sgd_minibatch_size": 400,
        "model": {"fcnet_hiddens": [32]}, "anneal_over_env_steps": null}"#;
    let found = return_after(worker("Pendulum-v1", 200, "ppo", config), 20, on_batch);
    assert!(found > -900.0, "{found}");
}

#[test]
fn a_policy_with_memory_recalls() {
    let config = |memory: bool| {
        format!(
            r#"{{"lr": 0.005, "anneal_over_env_steps": null,
            "model": {{"fcnet_hiddens": [16], "use_lstm": {memory}, "lstm_cell_size": 16, "max_seq_len": 8}}}}"#
        )
    };
    let [with, without] =
        [true, false].map(|memory| return_after(worker("Recall", 32, "ppo", &config(memory)), 20, on_batch));
    assert!(with > 0.95, "{with}");
    assert!(without < 0.65, "{without}");
}

#[test]
fn restored_worker_resumes_learning_bit_identically() {
    let memory = r#"{"model": {"fcnet_hiddens": [8], "use_lstm": true, "lstm_cell_size": 8, "max_seq_len": 5}}"#;
    let small = r#"{"model": {"fcnet_hiddens": [8]}}"#;
    let learn = |worker: &mut RolloutWorker| {
        let batch = worker.sample().unwrap();
        on_batch(worker, &batch);
        by_gradients(worker, &batch);
        let options = SgdOptions { num_sgd_iter: 2, minibatch_size: 30, ..SgdOptions::default() };
        let expected = batch.env_steps();
        worker.sample_and_learn(expected, &options).unwrap();
    };
    for (env, kind, config) in [
        ("CartPole-v1", "ppo", small),
        ("CartPole-v1", "pg", small),
        ("Pendulum-v1", "a2c", small),
        ("Recall", "ppo", memory),
        ("Pendulum-v1", "ppo", memory),
    ] {
        let new = || worker(env, 7, kind, config);
        let mut whole = new();
        (0..2).for_each(|_| learn(&mut whole));
        let state = whole.save().unwrap();
        if env != "CartPole-v1" {
            // Only in lockstep do episodes continue that have begun.
            whole.restore(&state).unwrap();
        }
        (0..2).for_each(|_| learn(&mut whole));
        let mut restored = new();
        restored.restore(&state).unwrap();
        (0..2).for_each(|_| learn(&mut restored));
        let [whole, restored] = [whole, restored].map(|mut worker| {
            let state = worker.save().unwrap();
            let weights = worker.weights(None).unwrap();
            (weights.values().map(bits).collect::<Vec<_>>(), state)
        });
        assert_eq!(whole.0, restored.0, "{env} {kind}");
        assert!(whole.1 == restored.1, "{env} {kind}");
    }
}

#[test]
fn passes_over_a_sample_anneal_by_its_env_steps_and_their_steps_are_counted() {
    let config =
        r#"{"lr": 0.01, "anneal_over_env_steps": 320, "anneal_to": 0, "num_sgd_iter": 1, "sgd_minibatch_size": 64}"#;
    let mut worker = worker("CartPole-v1", 4, "ppo", config);
    let options = SgdOptions { num_sgd_iter: 3, minibatch_size: 16, ..SgdOptions::default() };
    for rate in [0.01, 0.008, 0.006] {
        let (infos, env_steps) = worker.sample_and_learn(64, &options).unwrap();
        let info = &infos[&PolicyId::DEFAULT];
        assert!((info["cur_lr"] - rate).abs() < 1e-9, "{}, not {rate}", info["cur_lr"]);
        assert_eq!((env_steps, info["gradient_steps"], info["skipped_steps"]), (64, 12.0, 0.0));
    }
    assert_eq!(worker.global_vars().timestep, 192);
}

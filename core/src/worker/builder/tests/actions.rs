//! The actions that environments receive for those that policies choose.

use crate::{
    batch::{ACTION_LOGP, ACTIONS, NEW_OBS, OBS, SampleBatch},
    column::{ColumnKey, DType, Element, RowShape},
    env::{Env, EnvError, EnvSpec, EnvState, Rng, Step, Vectorized},
    prelude::*,
    space::Space,
    worker::{Registry, RolloutConfig, RolloutWorker, SetupError, WorkerPlace},
};

/// Observes the actions.
struct Echo<T> {
    space: Space,
    action: Vec<T>,
}

impl<T: Element> Env for Echo<T> {
    type Obs = f32;
    type Act = T;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, self.space.shape(), f64::NEG_INFINITY, f64::INFINITY)
    }

    fn action_space(&self) -> Space {
        self.space.clone()
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        obs.fill(0.0);
        Ok(())
    }

    fn step(&mut self, action: &[T], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.action = action.to_vec();
        obs.iter_mut().zip(action).for_each(|(x, action)| *x = action.to_f64() as f32);
        Ok(Step { reward: 0.0, terminated: false, truncated: false })
    }

    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        EnvState::Snapshot
    }

    fn restore(&mut self, _snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        obs.iter_mut().zip(&self.action).for_each(|(x, action)| *x = action.to_f64() as f32);
        Ok(())
    }
}

fn echo<T: Element>(space: Space) -> Registry {
    let env = move |space: &Space| Echo::<T> { space: space.clone(), action: Vec::new() };
    Registry::builtin().with_env(EnvSpec::new("Echo", move |contexts, _| {
        Box::new(Vectorized::new(contexts.iter().map(|_| env(&space)).collect()))
    }))
}

fn sample(registry: &Registry, config: RolloutConfig, kind: &str) -> SampleBatch {
    let config = config.rollout_fragment_length(800).seed(3).single_policy(kind);
    let mut worker = RolloutWorker::from_config(config, registry, WorkerPlace::default()).unwrap();
    worker.sample().unwrap().as_multi_agent().policy_batches.into_values().next().unwrap()
}

/// Returns the share of the values in each of `pieces` intervals between bounds; panics for values outside.
fn shares(values: impl IntoIterator<Item = f32>, low: f32, high: f32, pieces: usize) -> Vec<f32> {
    let values: Vec<f32> = values.into_iter().collect();
    let mut shares = vec![0.0; pieces];
    for value in &values {
        assert!((low..=high).contains(value), "{value} is outside {low} to {high}");
        let piece = (value - low) / (high - low) * pieces as f32;
        shares[(piece as usize).min(pieces - 1)] += 1.0 / values.len() as f32;
    }
    shares
}

#[track_caller]
fn even(shares: &[f32]) {
    let want = 1.0 / shares.len() as f32;
    assert!(shares.iter().all(|share| (share - want).abs() < 0.3 * want), "{shares:?}");
}

fn settings() -> [RolloutConfig; 2] {
    let config = RolloutConfig::new("Echo");
    [config.clone(), config.raw()]
}

#[test]
fn random_floats_are_even_over_the_space_of_the_environment() {
    let registry = echo::<f32>(Space::vector(&[-3.0, 0.0], &[5.0, 10.0]));
    for (config, density) in settings().into_iter().zip([4.0f32, 80.0]) {
        let batch = sample(&registry, config, "random");
        let taken = batch.get(NEW_OBS).unwrap();
        even(&shares(taken.iter().step_by(2).copied(), -3.0, 5.0, 4));
        even(&shares(taken.iter().skip(1).step_by(2).copied(), 0.0, 10.0, 4));
        assert!(batch.get(ACTION_LOGP).unwrap().iter().all(|logp| (logp + density.ln()).abs() < 1e-5));
    }
}

/// Untrained nets choose almost uniformly.
#[test]
fn integers_are_even_over_the_space_of_the_environment() {
    let space = Space::uniform(DType::I32, RowShape::vector(2), 3.0, 7.0);
    let registry = echo::<i32>(space.clone());
    for kind in ["random", "net"] {
        for (config, first) in settings().into_iter().zip([0, 3]) {
            let batch = sample(&registry, config, kind);
            even(&shares(batch.get(NEW_OBS).unwrap().iter().map(|x| x - 3.0), -0.5, 4.5, 5));
            let chosen = batch.get(ColumnKey::<i32>::new(ACTIONS.name())).unwrap();
            assert_eq!((chosen.iter().min(), chosen.iter().max()), (Some(&first), Some(&(first + 4))));
        }
    }
}

#[test]
fn nets_stay_in_boxes_of_floats() {
    let registry = echo::<f32>(Space::vector(&[4.0], &[5.0]));
    let clipped = RolloutConfig { clip_actions: true, ..RolloutConfig::new("Echo").raw() };
    for config in [RolloutConfig::new("Echo"), clipped] {
        let batch = sample(&registry, config, "net");
        shares(batch.get(NEW_OBS).unwrap().iter().copied(), 4.0, 5.0, 1);
        assert!(batch.get(ACTIONS).is_err());
    }
}

/// The torque follows from two observations, unless the speed reached its limit.
#[test]
fn random_torques_of_a_pendulum_are_even() {
    let config = RolloutConfig::new("Pendulum-v1");
    for config in [config.clone(), config.raw()] {
        let batch = sample(&Registry::builtin(), config, "random");
        let (before, after) = (batch.get(OBS).unwrap(), batch.get(NEW_OBS).unwrap());
        let torques = before.chunks(3).zip(after.chunks(3)).filter(|(_, after)| after[2].abs() < 7.99);
        let torques = torques.map(|(before, after)| ((after[2] - before[2]) / 0.05 - 15.0 * before[1]) / 3.0);
        even(&shares(torques.map(|torque| torque.clamp(-2.001, 2.001)), -2.002, 2.002, 4));
    }
}

#[test]
fn integers_that_cannot_be_counted_from_0_are_named() {
    let wide = Space::uniform(DType::I32, RowShape::SCALAR, f64::from(i32::MIN), f64::from(i32::MAX));
    let registry = echo::<i32>(wide);
    let [normalised, raw] = settings().map(|config| {
        let config = config.single_policy("random");
        RolloutWorker::from_config(config, &registry, WorkerPlace::default()).map(drop)
    });
    assert!(matches!(&normalised, Err(SetupError::Space { .. })), "{normalised:?}");
    raw.unwrap();
}

//! Small environments and policies with known results.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{
    batch::{AnyBatch, SampleBatch},
    callbacks::{CallbackError, Callbacks, WorkerInfo},
    column::{DType, RowShape},
    env::{Env, EnvContext, EnvError, EnvSpec, EnvState, Rng, RowsRef, SnapshotReader, Step, Vectorized},
    episode::GlobalVars,
    ids::{PolicyId, WeightsVersion},
    policy::{
        ActionInput, ActionOutput, AllReduce, Gradients, LearnInfo, Policy, PolicyError, PolicySpec, RandomPolicy,
    },
    prelude::*,
    space::Space,
    weights::{Tensor, Weights},
    worker::{Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};

/// Observes the step's number; the episode terminates after `length` steps. The reward is constant.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) length: u32,
    pub(super) reward: f64,
    pub(super) t: u32,
}

impl Env for Counter {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, RowShape::vector(1), 0.0, 1e6)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.t = 0;
        obs.fill(0.0);
        Ok(())
    }

    fn step(&mut self, _action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.t += 1;
        obs.fill(self.t as f32);
        Ok(Step { reward: self.reward, terminated: self.t == self.length, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend(self.t.to_le_bytes());
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.t = reader.u32()?;
        reader.finish()?;
        obs.fill(self.t as f32);
        Ok(())
    }
}

/// Returns counters of which the `step`-th step, counted over all of them, fails, once.
pub(super) fn failing(length: u32, step: u32) -> EnvSpec {
    let steps = AtomicU32::new(0);
    let fails: Arc<Fails> = Arc::new(move |_, _| steps.fetch_add(1, Ordering::Relaxed) + 1 == step);
    faulty(length, fails)
}

/// Returns counters to 4 of which the one with this index fails in its second step while `broken` is set.
pub(super) fn fragile(broken: Arc<AtomicBool>, index: u32) -> EnvSpec {
    faulty(4, Arc::new(move |env, t| (env, t) == (index, 1) && broken.load(Ordering::Relaxed)))
}

/// Returns whether a step fails, given the environment's index and the number of the step in its episode.
pub(super) type Fails = dyn Fn(u32, u32) -> bool + Send + Sync;

pub(super) fn faulty(length: u32, fails: Arc<Fails>) -> EnvSpec {
    EnvSpec::new("Failing", move |contexts, _| {
        let counter = |context: &EnvContext| Failing {
            counter: Counter { length, reward: 100.0, t: 0 },
            index: context.home.vector_index,
            fails: fails.clone(),
        };
        Box::new(Vectorized::new(contexts.iter().map(counter).collect()))
    })
}

struct Failing {
    counter: Counter,
    index: u32,
    fails: Arc<Fails>,
}

impl Env for Failing {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        self.counter.observation_space()
    }

    fn action_space(&self) -> Space {
        self.counter.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.counter.reset(rng, obs)
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        if (self.fails)(self.index, self.counter.t) {
            return Err(EnvError::Failed("a wheel came off".into()));
        }
        self.counter.step(action, rng, obs)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        self.counter.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        self.counter.restore(snapshot, obs)
    }
}

/// Returns counters of this length, with a reward of 100.
pub(super) fn counter(length: u32) -> EnvSpec {
    rewarding(length, 100.0)
}

pub(super) fn rewarding(length: u32, reward: f64) -> EnvSpec {
    EnvSpec::new("Counter", move |contexts, _| {
        Box::new(Vectorized::new(vec![Counter { length, reward, t: 0 }; contexts.len()]))
    })
}

/// Returns counters with the policy `mock`, and everything that this crate registers.
pub(super) fn registry(length: u32) -> Registry {
    Registry::builtin().with_env(counter(length)).with_policy(mock())
}

/// Creates a worker with counters of this length.
pub(super) fn counting(length: u32, config: RolloutConfig) -> RolloutWorkerBuilder {
    let config = RolloutConfig { env: Some("Counter".into()), ..config }.single_policy("mock");
    RolloutWorkerBuilder::new(registry(length)).config(config)
}

/// A policy with one weight, to which learning adds the number of rows.
#[derive(Clone)]
pub(super) struct Mock {
    inner: RandomPolicy,
    weights: Weights,
    pub(super) timestep: u64,
    /// Whether it supports data parallelism.
    joins: bool,
}

pub(super) fn mock() -> PolicySpec {
    PolicySpec::new("mock", |context| {
        Ok(Box::new(Mock {
            inner: RandomPolicy::for_space(&context.spaces.action, context.seed)?,
            weights: weight(0.0),
            timestep: 0,
            joins: context.config.get("joins")?.unwrap_or(false),
        }))
    })
}

/// Returns weights with one value.
pub(super) fn weight(value: f32) -> Weights {
    let tensor = Tensor { name: "w".into(), shape: vec![1], values: vec![value] };
    Weights::new(WeightsVersion(0), vec![tensor]).unwrap()
}

pub(super) fn value_of(weights: &Weights) -> f32 {
    weights.tensor("w").map_or(f32::NAN, |tensor| tensor.values[0])
}

pub(super) fn by_id(weights: &Weights) -> BTreeMap<PolicyId, Weights> {
    [(PolicyId::DEFAULT, weights.clone())].into()
}

impl Policy for Mock {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        self.inner.compute_actions(input, out)
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let missing = || PolicyError::Failed("no tensor 'w'".into());
        weights.tensor("w").ok_or_else(missing)?;
        self.weights = weights.clone();
        Ok(())
    }

    fn on_global_var_update(&mut self, vars: &GlobalVars) {
        self.timestep = vars.timestep;
    }

    fn learn_on_batch(&mut self, batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        self.weights = weight(value_of(&self.weights) + batch.len() as f32);
        Ok([("rows".into(), batch.len() as f64)].into())
    }

    fn compute_gradients(&mut self, batch: &SampleBatch) -> Result<(Gradients, LearnInfo), PolicyError> {
        Ok((Gradients(weight(batch.len() as f32)), LearnInfo::new()))
    }

    fn apply_gradients(&mut self, gradients: &Gradients) -> Result<LearnInfo, PolicyError> {
        self.weights = weight(value_of(&self.weights) - value_of(&gradients.0));
        Ok(LearnInfo::new())
    }

    fn data_parallel(&self) -> Option<String> {
        self.joins.then(String::new)
    }

    fn learn_on_batch_with(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<LearnInfo, PolicyError> {
        let mut mean = [batch.len() as f32];
        ranks.all_reduce("rows", &mut mean, 1.0)?;
        self.weights = weight(value_of(&self.weights) + mean[0] * ranks.world_size() as f32);
        Ok([("rows".into(), batch.len() as f64)].into())
    }

    fn compute_gradients_with(
        &mut self,
        _batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<(Gradients, LearnInfo), PolicyError> {
        ranks.all_gather("gradients", &[], 0)?;
        Ok((Gradients(weight(7.0)), LearnInfo::new()))
    }

    fn extra_state(&self) -> Vec<u8> {
        self.timestep.to_le_bytes().to_vec()
    }

    fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
        let bad = |_| PolicyError::Failed("not a number".into());
        self.timestep = u64::from_le_bytes(bytes.try_into().map_err(bad)?);
        Ok(())
    }
}

/// Counts the samples that end.
pub(super) struct CountSamples(pub(super) Arc<AtomicU32>);

impl Callbacks for CountSamples {
    fn on_sample_end(&mut self, _worker: &WorkerInfo, _samples: &mut AnyBatch) -> Result<(), CallbackError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the policies' weights with other values.
pub(super) fn other_weights(worker: &mut RolloutWorker) -> BTreeMap<PolicyId, Weights> {
    let other = |weights: Weights| {
        let tensors = weights.tensors().iter().map(|tensor| Tensor {
            values: tensor.values.iter().map(|value| 0.3 - 3.0 * value).collect(),
            ..tensor.clone()
        });
        Weights::new(WeightsVersion(weights.version().0 + 1), tensors.collect()).unwrap()
    };
    worker.weights(None).unwrap().into_iter().map(|(id, weights)| (id, other(weights))).collect()
}

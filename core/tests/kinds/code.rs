//! Code of a user: what programs find by the names in settings.

use std::cell::Cell;

use rollmesh_core::{
    batch::{AnyBatch, REWARDS, SampleBatch},
    callbacks::{CallbackError, Callbacks, EpisodeHook, TrajectoryHook},
    column::ColumnData,
    env::{RowsMut, RowsRef},
    episode::{Episode, OtherAgent, RolloutMetrics},
    ids::{PolicyId, WeightsVersion},
    policy::{ActionInput, ActionOutput, LearnInfo, ModelDescription, Policy, PolicyError, PolicySpec, Postprocessing},
    sampler::{InputReader, OutputWriter, SampleError, SamplerHost},
    view::{ViewRequirement, ViewRequirements},
    weights::{Tensor, Weights},
    worker::Registry,
};

/// Adds environments, policies and functions that no program has built in.
pub(crate) fn register(registry: Registry) -> Registry {
    let mut registry = super::envs::register(registry)
        .with_policy(PolicySpec::new("backward", |_| Ok(Box::new(Backward::new(0.0)?))))
        .with_observation_fn("tilted", |obs, _| {
            let tilted = |row: RowsRef<'_>| match row {
                RowsRef::F32(row) => row.iter().rev().copied().collect::<Vec<f32>>(),
                _ => Vec::new(),
            };
            let rows: Vec<_> = obs.iter().map(|(agent, row)| (agent.clone(), tilted(row))).collect();
            rows.iter().for_each(|(agent, row)| obs.set(agent, RowsRef::F32(row)));
            Ok(())
        })
        .with_callbacks("counting", |_| Ok(Box::new(Counting)))
        .with_policy_mapping_fn("cars_and_lights", |agent, _, _, _| {
            PolicyId::new(if agent.starts_with("car") { "car" } else { "light" })
        })
        .with_input("after_writer", |context| {
            let sampler = context.default_sampler_input();
            let sampler = sampler.ok_or_else(|| SampleError::Input("there is nothing to sample".into()))?;
            WRITTEN.set(0);
            Ok(Box::new(AfterWriter(sampler)))
        })
        .with_output("counted", |_| Ok(Box::new(Counted)));
    let tower =
        r#"{"policy": [{"layer": "dense", "outputs": 7, "activation": "relu"}], "value": [{"layer": "layer_norm"}]}"#;
    registry.policies.register_model("tower", serde_json::from_str::<ModelDescription>(tower).expect("layers"));
    registry
}

/// Doubles the rewards of trajectories in a column of their own, and counts the steps of the episode in its metrics.
struct Counting;

impl Callbacks for Counting {
    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        *hook.episode.custom_metrics.entry("steps".into()).or_default() += 1.0;
        Ok(())
    }

    fn on_postprocess_trajectory(&mut self, hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        let failed = |error: rollmesh_core::batch::BatchError| CallbackError::new("counting", error.to_string());
        let doubled = doubled(hook.trajectory).map_err(failed)?;
        hook.trajectory.insert("doubled", doubled).map_err(failed)
    }
}

fn doubled(rows: &SampleBatch) -> Result<ColumnData<f32>, rollmesh_core::batch::BatchError> {
    Ok(ColumnData::scalars(rows.get(REWARDS)?.iter().map(|reward| 2.0 * reward).collect()))
}

/// Chooses by the sum of its last two observations, doubles the rewards of its trajectories, and learns their sum.
struct Backward(Weights);

impl Backward {
    fn new(rewards: f32) -> Result<Self, PolicyError> {
        let tensor = Tensor { name: "rewards".into(), shape: vec![1], values: vec![rewards] };
        Ok(Self(Weights::new(WeightsVersion(0), vec![tensor])?))
    }
}

impl Policy for Backward {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let (RowsRef::F32(obs), RowsMut::I64(actions)) = (input.obs, &mut out.actions) else {
            return Err(PolicyError::Failed("not a walk of floats".into()));
        };
        let width = obs.len() / actions.len();
        for (action, obs) in actions.iter_mut().zip(obs.chunks_exact(width)) {
            *action = i64::from(obs.iter().sum::<f32>() > 0.0);
        }
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn view_requirements(&self) -> ViewRequirements {
        [("obs".to_string(), ViewRequirement::shifted("obs", "-1:0".parse().expect("two rows")))].into()
    }

    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::Custom
    }

    fn postprocess_trajectory(
        &mut self,
        mut trajectory: SampleBatch,
        _: &[OtherAgent<'_>],
        _: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        let doubled = doubled(&trajectory)?;
        trajectory.insert(REWARDS.name(), doubled)?;
        Ok(trajectory)
    }

    fn learn_on_batch(&mut self, batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        let rewards: f32 = batch.get(REWARDS)?.iter().sum();
        let known = self.0.tensor("rewards").map_or(0.0, |tensor| tensor.values[0]);
        self.0 = Self::new(known + rewards)?.0;
        Ok(LearnInfo::new())
    }

    fn weights(&self) -> &Weights {
        &self.0
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0 = weights.clone();
        Ok(())
    }
}

thread_local! {
    /// Env steps that the worker of this thread has written.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Adds to the sampler's rows the number of env steps that were written before.
struct AfterWriter(Box<dyn InputReader>);

impl InputReader for AfterWriter {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let mut batch = self.0.next(host)?;
        if let AnyBatch::Single(rows) = &mut batch {
            let written = ColumnData::scalars(vec![WRITTEN.get() as i64; rows.len()]);
            rows.insert("written", written).map_err(|error| SampleError::Input(error.to_string()))?;
        }
        Ok(batch)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.0.metrics()
    }
}

/// Counts what it is given.
struct Counted;

impl OutputWriter for Counted {
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError> {
        WRITTEN.set(WRITTEN.get() + batch.env_steps());
        Ok(())
    }
}

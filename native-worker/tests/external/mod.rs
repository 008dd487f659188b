//! Environments that are driven from outside: the same rows as in process, and the consequences when drivers or workers
//! end.

#[path = "../support/cart_pole.rs"]
mod cart_pole;
mod cases;
mod ends;
mod laws;

use std::{sync::mpsc::channel, thread, time::Duration};

use rollmesh::{
    NativeWorker as _,
    external::{ExternalEnv, ExternalEnvError, ExternalMultiAgentEnv},
};
use rollmesh_core::{
    batch::{ACTIONS, AGENT_INDEX, AnyBatch, EPS_ID, OBS, REWARDS, SampleBatch, T, TERMINATEDS},
    column::{DType, RowShape},
    env::{
        EnvSpaces, ExternalError, RowsRef,
        multi_agent::{AgentRows, Outcome},
    },
    episode::{RolloutMetrics, SamplerPerf},
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    policy::{ActionInput, ActionOutput, Policy, PolicyError, PolicySpec, RandomPolicy},
    sampler::BatchMode,
    space::Space,
    weights::Weights,
    worker::{
        NewPolicy, Registry, Retries, RolloutConfig, RolloutError, RolloutWorker, WorkerPlace, config::FragmentLength,
    },
};

fn episodes(worker: &mut RolloutWorker) -> Vec<RolloutMetrics> {
    let episodes = worker.metrics().episodes.into_iter();
    episodes.map(|episode| RolloutMetrics { perf: SamplerPerf::default(), ..episode }).collect()
}

fn counted() -> EnvSpaces {
    EnvSpaces {
        observation: Space::uniform(DType::F32, RowShape::vector(1), 0.0, 1e6),
        observation_type: DType::F32,
        action: Space::Discrete { n: 50 },
        action_type: DType::I64,
    }
}

/// Counts its steps, 100 for each, in episodes of 25. Every `every` steps its action is 42, whatever the policy's
/// action is.
fn count(env: &ExternalEnv, every: u32) -> Result<(), ExternalEnvError> {
    loop {
        let episode = env.start_episode(true)?;
        for t in 0..25_u32 {
            if t % every == 0 {
                env.log_action(episode, &[t as f32], &[42_i64])?;
            } else {
                let action: Vec<i64> = env.action(episode, &[t as f32])?;
                assert_eq!(action, [7]);
            }
            env.log_returns(episode, 40.0, None)?;
            env.log_returns(episode, 60.0, Some(b"twice"))?;
        }
        env.end_episode(episode, &[25.0_f32])?;
    }
}

/// Always does the same.
struct Stubborn(i64, Weights);

impl Stubborn {
    /// Returns a kind of policy, since a sampler on a thread needs a second policy of the same kind.
    fn kind(action: i64) -> NewPolicy {
        let weights = RandomPolicy::new(50, 0).weights().clone();
        NewPolicy::of(PolicySpec::new("stubborn", move |_| Ok(Box::new(Self(action, weights.clone())))))
    }
}

impl Policy for Stubborn {
    fn compute_actions(&mut self, _: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let rollmesh_core::env::RowsMut::I64(actions) = out.actions else {
            return Err(PolicyError::Failed("not int64".into()));
        };
        actions.fill(self.0);
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.1
    }

    fn set_weights(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

fn config(batch_mode: BatchMode) -> RolloutConfig {
    RolloutConfig::default().rollout_fragment_length(40).batch_mode(batch_mode)
}

fn worker(env: &ExternalEnv, config: RolloutConfig) -> RolloutWorker {
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::kind(7));
    builder.base_env_creator(env.creator()).build().unwrap()
}

fn single(worker: &mut RolloutWorker) -> SampleBatch {
    worker.sample().unwrap().single().unwrap().clone()
}

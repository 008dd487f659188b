use super::super::test_support::*;
use crate::{
    batch::{ACTIONS, SampleBatch, T},
    column::{DType, RowShape},
    env::{
        BaseEnv, EnvActions, EnvContext, EnvError, EnvSpaces, EnvUpdates, Reset, RowsRef, SubEnv, multi_agent::Turn,
    },
    ids::{AgentId, PolicyId},
    kernels::Kernels,
    policy::RandomPolicy,
    prelude::*,
    sampler::BatchMode,
    space::Space,
    worker::{NewPolicy, RolloutConfig, RolloutWorker, SetupError},
};

/// An external counter: it begins its episodes itself, and always takes action 42.
struct External {
    length: u32,
    t: u32,
}

impl BaseEnv for External {
    fn num_envs(&self) -> usize {
        1
    }

    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::SINGLE]
    }

    fn spaces(&self, _agent: &AgentId) -> Option<EnvSpaces> {
        Some(EnvSpaces {
            observation: Space::uniform(DType::F32, RowShape::vector(1), 0.0, 1e6),
            observation_type: DType::F32,
            action: Space::Discrete { n: 50 },
            action_type: DType::I64,
        })
    }

    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        let entry = updates.add(0);
        entry.turn.observe(&AgentId::SINGLE, RowsRef::F32(&[self.t as f32]));
        if self.t > 0 {
            entry.turn.reward(&AgentId::SINGLE, 100.0);
        }
        if self.t == self.length {
            entry.turn.terminate_all();
            self.t = 0;
        } else {
            entry.off_policy_actions.set(&AgentId::SINGLE, RowsRef::I64(&[42]));
            self.t += 1;
        }
        Ok(())
    }

    fn send_actions(&mut self, _actions: &[EnvActions]) -> Result<(), EnvError> {
        Ok(())
    }

    fn try_reset(&mut self, _env: usize, _turn: &mut Turn) -> Result<Reset, EnvError> {
        Ok(Reset::Unsupported)
    }

    fn try_restart(&mut self, _env: usize) -> Result<(), EnvError> {
        Ok(())
    }
}

fn external(_contexts: &[EnvContext], _kernels: Kernels) -> Result<Box<dyn BaseEnv>, EnvError> {
    Ok(Box::new(External { length: 25, t: 0 }))
}

fn worker(mode: BatchMode) -> RolloutWorker {
    let config = RolloutConfig::default().rollout_fragment_length(40).batch_mode(mode);
    let random = NewPolicy::object(Box::new(RandomPolicy::new(50, 0)));
    let builder = RolloutWorker::builder().config(config).base_env_creator(external);
    builder.policy(PolicyId::DEFAULT, random).build().unwrap()
}

fn single(worker: &mut RolloutWorker) -> SampleBatch {
    worker.sample().unwrap().single().unwrap().clone()
}

/// RLlib 2.9.3 returns as many rows.
#[test]
fn environments_that_are_elsewhere_are_sampled_in_both_modes() {
    for (mode, rows) in [(BatchMode::TruncateEpisodes, 40), (BatchMode::CompleteEpisodes, 50)] {
        let mut worker = worker(mode);
        for sample in 0..3 {
            let batch = single(&mut worker);
            assert_eq!(batch.len(), rows, "{mode:?}");
            let actions = batch.get(ACTIONS).unwrap().to_vec();
            assert!(actions.iter().all(|action| *action == 42), "{mode:?}: {actions:?}");
            let first = if mode == BatchMode::TruncateEpisodes { sample * 40 % 25 } else { 0 };
            assert_eq!(batch.get(T).unwrap()[0], first);
        }
        let episodes = worker.metrics().episodes;
        assert!(episodes.iter().all(|episode| (episode.length, episode.episode_return) == (25, 2_500.0)));
    }
}

/// The same as in RLlib 2.9.3.
#[test]
fn environments_that_cannot_be_reached_one_by_one_are_shown_together() {
    let mut worker = worker(BatchMode::TruncateEpisodes);
    let seen = worker.foreach_env_with_context(|env, context| match env {
        SubEnv::Base(env) => (env.num_envs(), context.home.vector_index),
        SubEnv::Lane { .. } | SubEnv::MultiAgent(_) => (0, 0),
    });
    assert_eq!(seen, [(1, 0)]);
    let source = EnvError::Failed("out of reach".into());
    let refused = source.clone();
    let builder = counting(4, RolloutConfig::default()).base_env_creator(external).validate_env(move |env, _| {
        assert!(matches!(env, SubEnv::Base(_)));
        Err(refused.clone())
    });
    assert_eq!(builder.build().unwrap_err(), SetupError::InvalidEnv { env: 0, source });
}

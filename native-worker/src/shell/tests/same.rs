//! The results are the same with and without a thread.

use std::thread::{self, ThreadId};

use rollmesh_core::{
    batch::{ACTIONS, ADVANTAGES, OBS, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS},
    callbacks::{CallbackError, EpisodeHook},
    column::ColumnData,
    episode::SamplerPerf,
    sampler::{BatchMode, InputReader},
};

use super::*;

/// Makes two workers, the second of which has its sampler on a thread.
fn pair(config: RolloutConfig, equip: impl Fn(RolloutWorkerBuilder) -> RolloutWorkerBuilder) -> [RolloutWorker; 2] {
    [config.clone(), on_a_thread(config)].map(|config| equip(builder(config)).build().unwrap())
}

#[test]
fn batches_and_episodes_are_bit_identical() {
    let filtered = RolloutConfig { observation_filter: FilterKind::ConcurrentMeanStdFilter, ..cartpoles() };
    let complete = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..cartpoles() };
    let few = RolloutConfig { policy_map_capacity: 1, ..games() };
    for config in [cartpoles(), filtered, complete, games(), few] {
        let [mut here, mut there] = pair(config.clone(), |builder| {
            if config.policies.is_empty() { builder } else { builder.policy_mapping_fn(|id, _, _, _| by_parity(id)) }
        });
        assert!(!there.is_lockstep());
        let mut episodes = 0;
        for sample in 0..6 {
            assert_eq!(there.sample().unwrap(), here.sample().unwrap(), "{sample} {config:?}");
            // Timings are as of the query, so they are not compared.
            let [there, here] = [&mut there, &mut here].map(|worker| {
                let ended = worker.metrics().episodes.into_iter();
                ended.map(|episode| RolloutMetrics { perf: SamplerPerf::default(), ..episode }).collect::<Vec<_>>()
            });
            assert_eq!(there, here);
            episodes += there.len();
        }
        assert!(episodes > 0);
    }
}

#[test]
fn within_any_span_of_time_the_samples_are_the_same() {
    let [mut here, mut there] = pair(cartpoles(), |builder| builder.clock(|| Micros(0)));
    for sample in 0..6 {
        let batch = std::iter::repeat_with(|| there.sample_within(Micros(sample * 50)).unwrap()).flatten().next();
        assert_eq!(batch, here.sample().ok(), "{sample}");
    }
}

#[test]
fn a_batch_has_the_columns_that_learning_needs() {
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(50).seed(1);
    let mut worker = builder(on_a_thread(config)).build().unwrap();
    let batch = worker.sample().unwrap();
    let batch = batch.single().unwrap();
    assert_eq!(batch.get(OBS).unwrap().len(), 50 * 4);
    let lengths = [
        batch.get(ACTIONS).unwrap().len(),
        batch.get(REWARDS).unwrap().len(),
        batch.get(TERMINATEDS).unwrap().len(),
        batch.get(TRUNCATEDS).unwrap().len(),
        batch.get(ADVANTAGES).unwrap().len(),
    ];
    assert_eq!(lengths, [50; 5]);
    assert!(batch.get(REWARDS).unwrap().iter().all(|reward| *reward == 1.0));
}

#[test]
fn saved_state_resumes_with_the_next_batch() {
    let [mut here, mut there] = pair(cartpoles(), |builder| builder);
    for _ in 0..3 {
        there.sample().unwrap();
    }
    let state = there.save().unwrap();
    let after = [there.sample().unwrap(), there.sample().unwrap()];
    here.restore(&state).unwrap();
    assert_eq!([here.sample().unwrap(), here.sample().unwrap()], after);
    there.restore(&state).unwrap();
    assert_eq!([there.sample().unwrap(), there.sample().unwrap()], after);
}

#[test]
fn environments_can_be_looked_at() {
    let [mut here, mut there] = pair(cartpoles(), |builder| builder);
    for _ in 0..3 {
        assert_eq!(there.foreach_env_with_context(|_, context| context.home.vector_index), [0, 1]);
        assert_eq!(there.sample(), here.sample());
    }
    there.stop().unwrap();
    assert_eq!(there.foreach_env(|_| ()).len(), 0);
}

/// Batches of two rows.
struct Rows;

impl InputReader for Rows {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        Ok(SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![0.0; 2]))?.into())
    }
}

#[test]
fn a_simulation_keeps_metrics_and_no_rows() {
    let config = cartpoles().num_envs(1).rollout_fragment_length(40);
    let simulating = RolloutConfig { input_evaluation: [InputEvaluation::Simulation].into(), ..config.clone() };
    let mut simulating = builder(simulating).input_creator(|_| Ok(Box::new(Rows))).build().unwrap();
    let mut here = builder(config).build().unwrap();
    for _ in 0..5 {
        assert_eq!(simulating.sample().unwrap().single().unwrap().iter().count(), 1);
        here.sample().unwrap();
    }
    let WorkerMetrics { episodes, blackholed_env_steps, blackholed_agent_steps, .. } = simulating.metrics();
    assert!(!episodes.is_empty());
    assert_eq!(episodes, here.metrics().episodes);
    assert_eq!((blackholed_env_steps, blackholed_agent_steps), (200, 200));
    assert_eq!(simulating.metrics().blackholed_env_steps, 0);
    simulating.stop().unwrap();
}

/// Reports on which thread a hook was called.
struct Notes(Sender<(&'static str, ThreadId)>);

impl Callbacks for Notes {
    fn on_episode_step(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        let _ = self.0.send(("on_episode_step", thread::current().id()));
        Ok(())
    }

    fn on_sample_end(&mut self, _worker: &WorkerInfo, _samples: &mut AnyBatch) -> Result<(), CallbackError> {
        let _ = self.0.send(("on_sample_end", thread::current().id()));
        Ok(())
    }
}

#[test]
fn hooks_of_episodes_are_called_on_the_thread_and_others_here() {
    let (notes, called) = channel();
    let mut worker = builder(on_a_thread(cartpoles())).callbacks(Box::new(Notes(notes))).build().unwrap();
    for _ in 0..3 {
        worker.sample().unwrap();
    }
    drop(worker);
    let (steps, ends): (Vec<_>, Vec<_>) = called.iter().partition(|(hook, _)| *hook == "on_episode_step");
    let here = thread::current().id();
    assert!(steps.len() >= 3 * 2 * 40 && steps.iter().all(|(_, thread)| *thread != here));
    assert_eq!(ends, [("on_sample_end", here); 3]);
}

#[test]
#[cfg(unix)]
fn program_that_cannot_run_as_a_child_process_gets_a_fix() {
    // The test program takes the command for the name of a test.
    let error = builder(RolloutConfig { remote_worker_envs: true, ..cartpoles() }).build().unwrap_err().to_string();
    assert!(error.starts_with("environment ") && error.contains("rollmesh::child_process"), "{error}");
}

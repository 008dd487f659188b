use core::sync::atomic::{AtomicBool, Ordering};

use super::super::test_support::*;
use crate::{
    batch::AnyBatch,
    callbacks::{CallbackError, Callbacks, EpisodeHook, WorkerInfo},
    env::{EnvError, Health},
    episode::Quarantined,
    prelude::*,
    sampler::BatchMode,
    time::Micros,
    worker::{RolloutConfig, RolloutWorker, SamplerChoice, WorkerWarning},
};

/// Records something of every kind in an episode.
struct Traces;

impl Callbacks for Traces {
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, _fault: Option<&EnvError>) -> Result<(), CallbackError> {
        let length = f64::from(hook.episode.length());
        hook.episode.custom_metrics.insert("length".into(), length);
        hook.episode.hist_data.insert("steps".into(), (0..hook.episode.length()).map(f64::from).collect());
        hook.episode.media.insert("picture".into(), vec![1, 2, 3]);
        Ok(())
    }
}

/// The second episode is lost; RLlib 2.9.3 counts it, and omits it.
#[test]
fn custom_metrics_of_complete_episodes_reach_the_metrics() {
    let config = RolloutConfig { restart_failed_sub_environments: true, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(8).single_policy("random");
    let builder = RolloutWorker::builder().config(config).env_spec(failing(4, 6)).callbacks(Box::new(Traces));
    let mut worker = builder.build().unwrap();
    worker.sample().unwrap();
    let metrics = worker.metrics();
    let faults: Vec<bool> = metrics.episodes.iter().map(|episode| episode.faulty.is_some()).collect();
    assert_eq!(faults, [false, true, false]);
    for episode in metrics.episodes.iter().filter(|episode| episode.faulty.is_none()) {
        assert_eq!((episode.custom_metrics["length"], &episode.media["picture"][..]), (4.0, &[1, 2, 3][..]));
        assert_eq!(episode.hist_data["steps"], [0.0, 1.0, 2.0, 3.0]);
    }
    let summary = metrics.summary();
    assert_eq!((summary.episodes, summary.faulty_episodes), (2, 1));
    assert_eq!(summary.custom_metrics["length"].mean, 4.0);
    assert_eq!(summary.hist_data["steps"].len(), 8);
}

/// RLlib 2.9.3 warns once, at the same size.
#[test]
fn very_large_batches_are_mentioned_once() {
    let warned = |length, mode| {
        let config = RolloutConfig::default().rollout_fragment_length(10).batch_mode(mode);
        let mut worker = counting(length, config).build().unwrap();
        [(); 2].map(|()| {
            worker.sample().unwrap();
            worker.metrics().warnings
        })
    };
    let large = WorkerWarning::LargeBatch { rows: 5_001, threshold: 5_000 };
    assert_eq!(warned(5_001, BatchMode::CompleteEpisodes), [vec![large], vec![]]);
    assert_eq!(warned(5_000, BatchMode::CompleteEpisodes), [vec![], vec![]]);
    assert_eq!(warned(5_001, BatchMode::TruncateEpisodes), [vec![], vec![]]);
}

#[test]
fn lanes_in_lockstep_count_what_they_lose() {
    let config = RolloutConfig::default().num_envs(2).rollout_fragment_length(8).single_policy("random");
    let builder = RolloutWorker::builder().config(config).env_spec(failing(4, 7)).sampler(SamplerChoice::Lockstep);
    let mut worker = builder.build().unwrap();
    for _ in 0..3 {
        assert_eq!(worker.sample_within(Micros(0)), Ok(None));
    }
    worker.sample_within(Micros(0)).unwrap_err();
    let metrics = worker.metrics();
    assert_eq!((metrics.discarded_env_steps, metrics.discarded_agent_steps), (6, 6));
    assert_eq!(worker.sample().unwrap().env_steps(), 16);
}

/// Rejects the first sample.
struct Refuses(bool);

impl Callbacks for Refuses {
    fn on_sample_end(&mut self, _worker: &WorkerInfo, _batch: &mut AnyBatch) -> Result<(), CallbackError> {
        if core::mem::take(&mut self.0) { Err(CallbackError::new("on_sample_end", "not this one")) } else { Ok(()) }
    }
}

#[test]
fn a_sample_that_is_refused_is_discarded() {
    let config = RolloutConfig::default().num_envs(2).rollout_fragment_length(8).single_policy("random");
    let builder = RolloutWorker::builder().config(config).env_spec(counter(4)).callbacks(Box::new(Refuses(true)));
    let mut worker = builder.build().unwrap();
    worker.sample().unwrap_err();
    let metrics = worker.metrics();
    assert_eq!((metrics.discarded_env_steps, metrics.discarded_agent_steps), (16, 16));
    assert_eq!((worker.sample().unwrap().env_steps(), worker.metrics().discarded_env_steps), (16, 0));
}

#[test]
fn worker_reports_quarantined_environments_and_continues() {
    // One of two counters fails in its second step while it is broken.
    let config = RolloutConfig { restart_failed_sub_environments: true, ..RolloutConfig::default() };
    let config = config.num_envs(2).rollout_fragment_length(8).single_policy("random");
    let broken = Arc::new(AtomicBool::new(true));
    let env = fragile(broken.clone(), 1);
    let mut worker = RolloutWorker::builder().config(config).env_spec(env).build().unwrap();
    let state = worker.save().unwrap();
    assert_eq!(worker.foreach_env_with_context(|_, context| context.home.vector_index), [0, 1]);
    let batch = worker.sample().unwrap();
    assert_eq!(batch.env_steps(), 16);
    let metrics = worker.metrics();
    let reason = String::from("the environment failed: a wheel came off");
    let quarantined = vec![Quarantined { env: 1, reason: reason.clone() }];
    assert_eq!(metrics.warnings, [WorkerWarning::Quarantined { env: 1, reason }]);
    assert_eq!(
        (metrics.quarantined.clone(), metrics.discarded_env_steps),
        (quarantined, u64::from(Health::MAX_FAILURES))
    );
    assert_eq!(metrics.summary().faulty_episodes, Health::MAX_FAILURES as usize);
    worker.sample().unwrap();
    let later = worker.metrics();
    assert_eq!((later.quarantined, later.warnings, later.discarded_env_steps), (metrics.quarantined, vec![], 0));
    assert_eq!(worker.foreach_env_with_context(|_, context| context.home.vector_index), [0]);
    broken.store(false, Ordering::Relaxed);
    worker.restore(&state).unwrap();
    assert_eq!(worker.sample().unwrap().env_steps(), 16);
    assert_eq!(worker.metrics().quarantined, []);
    assert_eq!(worker.foreach_env_with_context(|_, context| context.home.vector_index), [0, 1]);
}

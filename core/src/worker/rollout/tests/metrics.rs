use super::super::test_support::*;
use crate::{
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::EnvError,
    prelude::*,
    sampler::BatchMode,
    worker::{RolloutConfig, RolloutWorker, WorkerWarning},
};

/// Leaves something of every kind behind.
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

/// The second episode is lost; RLlib 2.9.3 counts it, and leaves it out.
#[test]
fn what_callbacks_leave_in_an_episode_reaches_the_metrics() {
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

/// RLlib 2.9.3 warns once, of as many.
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

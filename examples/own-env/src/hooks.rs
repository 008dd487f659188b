//! Functions at fixed points of sampling and of a run, and one that can be sent to a worker by its name.

use std::collections::BTreeMap;

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks, EpisodeHook, WorkerInfo},
    config::Config,
    env::{EnvError, Rng, SubEnv},
    episode::{Episode, RolloutMetrics},
    ids::{AgentId, PolicyId},
    worker::RolloutWorker,
};

use crate::Hunt;

/// Returns the policy of an agent: one for hunters, another for the prey.
pub(crate) fn by_side(agent: &AgentId, _episode: &Episode, _worker: &WorkerInfo, _rng: &mut Rng) -> PolicyId {
    PolicyId::new(if agent.starts_with("hunter_") { "hunters" } else { "prey" })
}

/// A callback that records for every episode whether the prey was caught.
pub(crate) struct CountCatches;

impl Callbacks for CountCatches {
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        let caught =
            hook.episode.agents().iter().any(|record| record.policy.as_str() == "hunters" && record.reward > 0.0);
        if fault.is_none() {
            hook.episode.custom_metrics.insert("caught".into(), f64::from(u8::from(caught)));
        }
        Ok(())
    }
}

/// A callback that writes a line to standard error at each stage of a run.
pub(crate) struct LogStages;

impl Callbacks for LogStages {
    fn on_algorithm_init(&mut self, worker: &WorkerInfo) -> Result<(), CallbackError> {
        eprintln!("stage: worker {} is set up", worker.worker_index);
        Ok(())
    }

    fn on_workers_recreated(&mut self, worker_indices: &[u32]) -> Result<(), CallbackError> {
        eprintln!("stage: workers {worker_indices:?} replace others");
        Ok(())
    }

    fn on_checkpoint_loaded(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        eprintln!("stage: checkpoint loaded");
        Ok(())
    }

    fn on_train_result(&mut self, results: &mut BTreeMap<String, f64>) -> Result<(), CallbackError> {
        eprintln!("stage: trained, {} numbers", results.len());
        Ok(())
    }

    fn on_evaluate_start(&mut self, _worker: &WorkerInfo) -> Result<(), CallbackError> {
        eprintln!("stage: evaluation begins");
        Ok(())
    }

    fn on_evaluate_end(&mut self, _worker: &WorkerInfo, episodes: &[RolloutMetrics]) -> Result<(), CallbackError> {
        eprintln!("stage: evaluation of {} episodes ends", episodes.len());
        Ok(())
    }
}

/// Returns the number of hunters in a worker's environments, times the argument `factor`.
pub(crate) fn hunters(worker: &mut RolloutWorker, arguments: &Config) -> Result<Config, CallbackError> {
    let factor = arguments.get::<usize>("factor")?.unwrap_or(1);
    let counts = worker.foreach_env(|env| match env {
        SubEnv::MultiAgent(env) => env.as_any().downcast_ref::<Hunt>().map_or(0, Hunt::num_hunters),
        SubEnv::Lane { .. } | SubEnv::Base(_) => 0,
    });
    Ok(Config::new().with("hunters", factor * counts.into_iter().sum::<usize>())?)
}

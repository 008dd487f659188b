//! Functions at fixed points of sampling, and one that can be sent to a worker by its name.

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks, EpisodeHook, WorkerInfo},
    config::Config,
    env::{EnvError, Rng, SubEnv},
    episode::Episode,
    ids::{AgentId, PolicyId},
    worker::RolloutWorker,
};

use crate::Hunt;

/// Hunters act under one policy, the prey under another.
pub(crate) fn by_side(agent: &AgentId, _episode: &Episode, _worker: &WorkerInfo, _rng: &mut Rng) -> PolicyId {
    PolicyId::new(if agent.starts_with("hunter_") { "hunters" } else { "prey" })
}

/// Notes for every episode whether the prey was caught.
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

/// How many hunters there are in a worker's environments, times the argument `factor`.
pub(crate) fn hunters(worker: &mut RolloutWorker, arguments: &Config) -> Result<Config, CallbackError> {
    let factor = arguments.get::<usize>("factor")?.unwrap_or(1);
    let counts = worker.foreach_env(|env| match env {
        SubEnv::MultiAgent(env) => env.as_any().downcast_ref::<Hunt>().map_or(0, Hunt::num_hunters),
        SubEnv::Lane { .. } | SubEnv::Base(_) => 0,
    });
    Ok(Config::new().with("hunters", factor * counts.into_iter().sum::<usize>())?)
}

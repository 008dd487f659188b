//! Sub-environments that run in another process.

use serde::{Deserialize, Serialize};

use super::{RolloutWorkerBuilder, deepmind};
use crate::{
    config::Config,
    env::{BaseEnv as _, EnvContext, EnvStart, InProcess},
    ids::{AgentId, HomeIndex, SlotId},
    kernels::Kernels,
    prelude::*,
    worker::{RegisteredEnv, Registry, RolloutConfig, SetupError},
};

/// A sub-environment to run in another process of the same program: everything about it that can be serialised. Code is not
/// sent; the process finds it by its registered name.
///
/// ```
/// use rollmesh_core::{
///     env::{BaseEnv as _, EnvUpdates},
///     kernels::Kernels,
///     worker::{Registry, RemoteEnvSpec},
/// };
///
/// let text = r#"{"env": "CartPole-v1", "env_config": {}, "worker_index": 0, "vector_index": 2, "num_workers": 0,
///     "recreated_worker": false, "slot": 2, "seed": 7, "deepmind": null}"#;
/// let spec: RemoteEnvSpec = serde_json::from_str(text)?;
/// let (mut env, is_wrapped) = spec.make(&Registry::builtin(), Kernels::PORTABLE)?;
/// let mut updates = EnvUpdates::new();
/// env.poll(&mut updates)?; // the first observation of slot 2, as in any other process
/// assert!(!is_wrapped && updates.entries().len() == 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteEnvSpec {
    /// Registered name of the environment.
    pub env: String,
    /// Its settings.
    pub env_config: Config,
    /// Index of its worker.
    pub worker_index: u32,
    /// Its index within its worker.
    pub vector_index: u32,
    /// Number of the run's workers, without the local one.
    pub num_workers: u32,
    /// Whether its worker replaces one that was lost.
    pub recreated_worker: bool,
    /// The slot whose random streams it uses.
    pub slot: SlotId,
    /// The seed of its random streams.
    pub seed: u64,
    /// Settings of DeepMind's wrappers, in which it runs if it is a game; `None` if it runs unwrapped.
    pub deepmind: Option<Config>,
}

impl RemoteEnvSpec {
    /// Describes the environment that a configuration names, for this start.
    pub(super) fn of(config: &RolloutConfig, start: &EnvStart, seed: u64) -> Self {
        let EnvStart { slot, context, .. } = start;
        Self {
            env: config.env.clone().unwrap_or_default(),
            env_config: context.config.clone(),
            worker_index: context.home.worker_index,
            vector_index: context.home.vector_index,
            num_workers: context.num_workers,
            recreated_worker: context.recreated_worker,
            slot: *slot,
            seed,
            deepmind: config
                .preprocessor_pref
                .wraps(config.env.as_deref().unwrap_or_default())
                .then(|| config.model_config.clone()),
        }
    }

    /// Returns its position in its slot and its context.
    #[must_use]
    pub fn start(&self) -> EnvStart {
        let home = HomeIndex { worker_index: self.worker_index, vector_index: self.vector_index };
        let context = EnvContext {
            num_workers: self.num_workers,
            remote: true,
            recreated_worker: self.recreated_worker,
            ..EnvContext::new(home).with_config(self.env_config.clone())
        };
        EnvStart { slot: self.slot, episode: 0, context }
    }

    /// Makes it, as the only sub-environment, with index 0. Failures are not handled here, but by the process that started
    /// this one. Also returns whether it is a wrapped game.
    ///
    /// # Errors
    /// [`SetupError::Unknown`], [`SetupError::Config`], [`SetupError::Env`] with the environment's error,
    /// [`SetupError::Conflict`] for an environment of the user's own shape.
    pub fn make(&self, registry: &Registry, kernels: Kernels) -> Result<(InProcess, bool), SetupError> {
        let source = registry.env(&self.env)?;
        let env = self.make_one(&source, kernels)?;
        let (Some(model), Some(spaces)) = (&self.deepmind, env.spaces(&AgentId::SINGLE)) else {
            return Ok((env, false));
        };
        let RegisteredEnv::SingleAgent(spec) = &source else { return Ok((env, false)) };
        if !deepmind::is_game(&spaces) {
            return Ok((env, false));
        }
        // Never have two games in memory at the same time.
        drop(env);
        let wrapped = spec.wrapped(deepmind::options(model, &spec.name)?);
        Ok((self.make_one(&RegisteredEnv::SingleAgent(wrapped), kernels)?, true))
    }

    fn make_one(&self, source: &RegisteredEnv, kernels: Kernels) -> Result<InProcess, SetupError> {
        let maker = source.maker(kernels).map_err(|_| super::conflict(SetupError::OWN_SHAPE))?;
        let made = InProcess::new(maker, vec![self.start()], self.seed);
        made.map_err(|source| SetupError::Env { env: self.vector_index, source })
    }
}

impl RolloutWorkerBuilder {
    /// Returns what other processes need to make these sub-environments.
    pub(super) fn remote_specs(&self, contexts: &[EnvContext]) -> Vec<RemoteEnvSpec> {
        let spec = |context: &EnvContext| {
            let slot = self.place.slot(self.config.num_envs, context.home.vector_index)?;
            let start = EnvStart { slot, episode: 0, context: context.clone() };
            Some(RemoteEnvSpec::of(&self.config, &start, self.seed()))
        };
        contexts.iter().filter_map(spec).collect()
    }
}

//! Sources of environments, and their contexts.

use super::RolloutWorkerBuilder;
use crate::{
    callbacks::{PolicyMappingFn, WorkerInfo},
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvError, EnvSpaces, EnvStart, InProcess},
    episode::Episode,
    ids::{AgentId, PolicyId, SlotId},
    prelude::*,
    rng::{Purpose, Streams},
    worker::{RegisteredEnv, SetupError},
};

impl RolloutWorkerBuilder {
    /// Returns the source of environments, if a worker at this place has any.
    pub(super) fn env_source(&self) -> Result<Option<RegisteredEnv>, SetupError> {
        if !self.place.has_envs(self.config.create_env_on_local_worker) {
            return Ok(None);
        }
        if let Some(env) = &self.env {
            return Ok(Some(env.clone()));
        }
        Ok(self.config.env.as_ref().map(|name| self.registry.env(name)).transpose()?)
    }

    /// Returns the context of every sub-environment.
    pub(super) fn contexts(&self) -> Vec<EnvContext> {
        let context = EnvContext {
            num_workers: self.place.num_workers,
            remote: self.config.remote_worker_envs,
            recreated_worker: self.place.recreated_worker,
            limits: self.config.process_limits(),
            ..EnvContext::new(self.place.home(0)).with_config(self.config.env_config.clone())
        };
        (0..self.config.num_envs).map(|index| context.with_vector_index(index)).collect()
    }

    /// Makes all environments as one vector environment with a lane each.
    pub(super) fn make_lanes(
        &self,
        source: &RegisteredEnv,
        contexts: &[EnvContext],
    ) -> Result<Box<dyn AnyVectorEnv>, SetupError> {
        let RegisteredEnv::SingleAgent(spec) = source else {
            return Err(super::conflict("environments with several agents are not sampled in lockstep"));
        };
        spec.make(contexts, self.kernels).map_err(|source| SetupError::Env { env: 0, source })
    }

    /// Makes all environments separately.
    pub(super) fn make_base(
        &self,
        source: &RegisteredEnv,
        contexts: &[EnvContext],
    ) -> Result<Box<dyn BaseEnv>, SetupError> {
        let failed = |source: EnvError| SetupError::Env { env: 0, source };
        let maker = match source.maker(self.kernels) {
            Ok(maker) => maker,
            Err(factory) => return factory(contexts, self.kernels).map_err(failed),
        };
        let starts: Vec<EnvStart> = contexts
            .iter()
            .filter_map(|context| {
                let slot = self.place.slot(self.config.num_envs, context.home.vector_index)?;
                Some(EnvStart { slot, episode: 0, context: context.clone() })
            })
            .collect();
        let envs = InProcess::new(maker, starts, self.seed()).map_err(failed)?.recording();
        Ok(Box::new(envs.with_restarts(self.config.restart_failed_sub_environments)))
    }

    /// Returns the seed of this worker's random streams.
    pub(super) fn seed(&self) -> u64 {
        self.place.seed(self.config.seed)
    }
}

/// Returns the agents known beforehand that the mapping assigns to a policy in a first episode.
pub(super) fn agents_of_policy(
    env: &dyn BaseEnv,
    policy: &PolicyId,
    mapping: &PolicyMappingFn,
    info: &WorkerInfo,
    seed: u64,
) -> Vec<AgentId> {
    let streams = Streams::new(seed, Purpose::Mapping);
    let episode = Episode::new(0, SlotId(0), 0);
    let is_mapped = |index: usize, agent: &AgentId| {
        let mut rng = streams.at(SlotId(0), 0, 0, index as u16);
        mapping(agent, &episode, info, &mut rng) == *policy
    };
    let agents = env.agents().into_iter().enumerate();
    agents.filter(|(index, agent)| is_mapped(*index, agent)).map(|(_, agent)| agent).collect()
}

/// Returns the common spaces of the agents that the mapping assigns to a policy in a first episode, if there are any. If it
/// assigns none, by chance or since the policy's agents appear later, and all agents have the same spaces, returns these.
/// the same spaces, these are the policy's too.
pub(super) fn spaces_of_policy(
    env: &dyn BaseEnv,
    policy: &PolicyId,
    mapping: &PolicyMappingFn,
    info: &WorkerInfo,
    seed: u64,
) -> Result<Option<EnvSpaces>, SetupError> {
    let mut mapped = agents_of_policy(env, policy, mapping, info, seed);
    let has_no_agent = mapped.is_empty();
    if has_no_agent {
        mapped = env.agents();
    }
    let mut found: Option<(&AgentId, EnvSpaces)> = None;
    for agent in &mapped {
        match (&found, env.spaces(agent)) {
            (None, Some(spaces)) => found = Some((agent, spaces)),
            (Some((one, known)), Some(spaces)) if *known != spaces => {
                if has_no_agent {
                    return Ok(None);
                }
                let (one, other) = (one.to_string(), agent.to_string());
                return Err(SetupError::AmbiguousSpaces { policy: policy.clone(), one, other });
            }
            _ => {}
        }
    }
    Ok(found.map(|(_, spaces)| spaces))
}

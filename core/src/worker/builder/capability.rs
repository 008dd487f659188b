//! Limits of the lockstep sampler, with reasons: the only place that chooses between the samplers.

use super::RolloutWorkerBuilder;
use crate::{
    batch::state_in,
    env::{AnyVectorEnv, EnvSpaces},
    policy::{Policy, Postprocessing},
    prelude::*,
    sampler::{BatchMode, CountStepsBy, Horizon},
    space::Space,
    view::{ViewRequirement, ViewRequirements},
};

/// The reason why a worker has to sample with [`Episodic`](crate::sampler::Episodic) instead of
/// [`Lockstep`](crate::sampler::Lockstep).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NeedsEpisodic {
    /// Callbacks or an observation function run in every step.
    #[error("callbacks and observation functions take part in every step")]
    UserCode,
    /// A mapping function assigns the policies.
    #[error("a policy mapping function of its own assigns the policies")]
    Mapping,
    /// The environments have several agents, or are a `BaseEnv` of the user's.
    #[error("its environments have several agents, or are a BaseEnv")]
    SeveralAgents,
    /// The environments run in processes of their own.
    #[error("`remote_worker_envs` answer at different times")]
    RemoteEnvs,
    /// Batches are whole episodes.
    #[error("`complete_episodes` have different lengths")]
    CompleteEpisodes,
    /// Fragments are counted in agent steps.
    #[error("it counts `agent_steps`")]
    AgentSteps,
    /// A soft horizon ends episodes in the metrics while their environments continue.
    #[error("environments continue after a soft horizon")]
    SoftHorizon,
    /// Failed environments are restarted individually.
    #[error("`restart_failed_sub_environments` restarts them one by one")]
    Restarts,
    /// The environments have infos.
    #[error("the environment has infos")]
    Infos,
    /// Observations or actions are tuples or dicts.
    #[error("its observations or actions are tuples or dicts")]
    CompoundSpaces,
    /// The policy postprocesses trajectories itself.
    #[error("the policy postprocesses trajectories itself")]
    Postprocessing,
    /// The policy has view requirements in addition to its recurrent states.
    #[error("the policy has view requirements besides its recurrent states")]
    Views,
}

impl RolloutWorkerBuilder {
    /// Returns why the settings need the episodic sampler. `plain` is false with callbacks or an observation function.
    pub(super) fn settings_need_episodic(&self, plain: bool, single_agent: bool) -> Option<NeedsEpisodic> {
        let config = &self.config;
        let soft = config.horizon.is_some() && config.horizon_means == Horizon::LegacySoft;
        first_of([
            (!plain, NeedsEpisodic::UserCode),
            (!self.maps_to_default(), NeedsEpisodic::Mapping),
            (!single_agent, NeedsEpisodic::SeveralAgents),
            (config.remote_worker_envs, NeedsEpisodic::RemoteEnvs),
            (config.batch_mode != BatchMode::TruncateEpisodes, NeedsEpisodic::CompleteEpisodes),
            (config.count_steps_by != CountStepsBy::EnvSteps, NeedsEpisodic::AgentSteps),
            (soft, NeedsEpisodic::SoftHorizon),
            (config.restart_failed_sub_environments, NeedsEpisodic::Restarts),
        ])
    }
}

/// Returns why the environments or their policy need the episodic sampler.
pub(super) fn lanes_need_episodic(env: &dyn AnyVectorEnv, policy: &dyn Policy) -> Option<NeedsEpisodic> {
    let EnvSpaces { observation, action, .. } = EnvSpaces::of(env);
    let compound = |space: &Space| matches!(space, Space::Tuple(_) | Space::Dict(_));
    first_of([
        (compound(&observation) || compound(&action), NeedsEpisodic::CompoundSpaces),
        (policy.postprocessing() == Postprocessing::Custom, NeedsEpisodic::Postprocessing),
        (!views_only_states(policy), NeedsEpisodic::Views),
        // Last, since workers that record no infos ignore this reason.
        (env.info_at(0, &mut Vec::new()), NeedsEpisodic::Infos),
    ])
}

fn first_of<const N: usize>(reasons: [(bool, NeedsEpisodic); N]) -> Option<NeedsEpisodic> {
    reasons.into_iter().find_map(|(applies, reason)| applies.then_some(reason))
}

/// Returns whether the policy views nothing but the latest observation and its recurrent states, in sequences of one length.
pub(super) fn views_only_states(policy: &dyn Policy) -> bool {
    let views = policy.view_requirements();
    let Some(first) = views.get(state_in(0).as_str()) else { return views.is_empty() };
    let of = |index| (state_in(index).as_str().into(), ViewRequirement::state_in(index, first.batch_repeat_value));
    let states: ViewRequirements = (0..policy.state_lens().len()).map(of).collect_ordered();
    views.keys().eq(states.keys())
        && views
            .values()
            .zip(states.values())
            .all(|(view, state)| view.used_for_training && ViewRequirement { space: None, ..view.clone() } == *state)
}

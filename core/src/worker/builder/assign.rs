//! The policies that act in the environments of a run.

use super::{NewPolicy, RolloutWorkerBuilder, SamplerChoice, Workshop, envs::spaces_of_policy, sampler::WorkerEnvs};
use crate::{
    callbacks::{ObservationFn, PolicyMappingFn},
    env::{BaseEnv, EnvSpaces},
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    policy::PolicyMap,
    prelude::*,
    run::{RolloutConfig, RunConfig},
    worker::{SetupError, WorkerPlace, config::PreprocessorPref},
};

/// Policies, and the function that maps agents to them.
pub(super) struct Assignment {
    pub(super) policies: Vec<PolicyId>,
    pub(super) mapping: PolicyMappingFn,
}

impl RolloutWorkerBuilder {
    /// Returns the policies of the settings, or those that fit the agents of `env`, if that may have several agents.
    pub(super) fn assignment(&self, env: Option<&dyn BaseEnv>) -> Result<Assignment, SetupError> {
        let policies: Vec<PolicyId> = self.config.policies.keys().cloned().collect();
        match env {
            Some(env) if self.may_group() => Ok(by_spaces(env)),
            _ => {
                let policies = if policies.is_empty() { vec![PolicyId::DEFAULT] } else { policies };
                Ok(Assignment { policies, mapping: self.mapping()?.0 })
            }
        }
    }

    /// Returns whether the policies follow from the agents' spaces, since the settings name none.
    pub(super) fn may_group(&self) -> bool {
        let has_mapping = self.policy_mapping_fn.is_some() || self.config.policy_mapping_fn.is_some();
        self.config.policies.is_empty() && !has_mapping
    }

    /// Makes the environments in which a run's policies are evaluated, as its workers see them.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub(crate) fn evaluation_envs(mut self, run: &RunConfig, seed: u64) -> Result<Box<dyn BaseEnv>, SetupError> {
        let num_envs = run.evaluation.num_envs;
        self.config = RolloutConfig { num_envs, seed, remote_worker_envs: false, ..run.rollout.clone() };
        self.sampler = SamplerChoice::Episodic;
        let contexts = self.contexts();
        match self.make_envs(&contexts, false)?.envs {
            WorkerEnvs::Base(envs) => Ok(envs),
            WorkerEnvs::None | WorkerEnvs::Lanes(_) => Err(super::conflict("an evaluation needs an environment")),
        }
    }

    /// Returns the policies of a run, made to act for the agents of an environment, with their mapping and observation
    /// function. Filter statistics are among the policies' weights.
    ///
    /// # Errors
    /// [`SetupError`] for an unregistered name, and for a policy that does not fit.
    pub(crate) fn acting_policies(
        mut self,
        run: &RunConfig,
        env: &dyn BaseEnv,
        seed: u64,
    ) -> Result<(PolicyMap, PolicyMappingFn, Option<ObservationFn>), SetupError> {
        self.registry.policies = self.registry.policies.acting();
        self.config = RolloutConfig { observation_filter: FilterKind::NoFilter, ..run.rollout.clone() };
        // Use the place of a worker with leases, so that each policy gets the same spaces as there.
        self.place = WorkerPlace::remote(1, run.num_home_workers());
        let info = self.info();
        let Assignment { policies: ids, mapping } = self.assignment(Some(env))?;
        let usual = self.workshop(PreprocessorPref::None);
        let seed_of_spaces = usual.seed;
        let workshop = Workshop { seed, ..usual };
        let mut policies = PolicyMap::new();
        for id in ids {
            let known = spaces_of_policy(env, &id, &mapping, &info, seed_of_spaces)?;
            let (entry, _) = workshop.make(&id, NewPolicy::from(&run.policy(&id)), known)?;
            policies.insert(id, entry)?;
        }
        Ok((policies, mapping, self.observation_function()?))
    }
}

/// Assigns one policy to all agents if their spaces are equal, as RLlib does; else one to each group of equal spaces, named
/// after the common prefix of its agents' names. An agent that appears later gets the policy whose name is a prefix of its
/// own.
pub(super) fn by_spaces(env: &dyn BaseEnv) -> Assignment {
    let mut groups: Vec<(EnvSpaces, Vec<AgentId>)> = Vec::new();
    for agent in env.agents() {
        let Some(spaces) = env.spaces(&agent) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == spaces) {
            Some((_, agents)) => agents.push(agent),
            None => groups.push((spaces, vec![agent])),
        }
    }
    if groups.len() <= 1 {
        return Assignment { policies: vec![PolicyId::DEFAULT], mapping: Arc::new(|_, _, _, _| PolicyId::DEFAULT) };
    }
    let names: Vec<String> = groups.iter().map(|(_, agents)| common_name(agents)).collect();
    let is_taken = |name: &String| {
        name.is_empty() || name.contains('/') || names.iter().filter(|other| *other == name).count() > 1
    };
    let name = |(at, name): (usize, &String)| if is_taken(name) { format!("policy_{at}") } else { name.clone() };
    let policies: Vec<PolicyId> = names.iter().enumerate().map(name).map(PolicyId::new).collect();
    let known: BTreeMap<AgentId, PolicyId> = groups
        .into_iter()
        .zip(&policies)
        .flat_map(|((_, agents), policy)| agents.into_iter().map(|agent| (agent, policy.clone())))
        .collect_ordered();
    let names = policies.clone();
    let mapping = move |agent: &AgentId| {
        let of_name = || names.iter().find(|policy| agent.starts_with(policy.as_str())).or_else(|| names.first());
        known.get(agent).or_else(of_name).cloned().unwrap_or(PolicyId::DEFAULT)
    };
    Assignment { policies, mapping: Arc::new(move |agent, _, _, _| mapping(agent)) }
}

/// Returns the common prefix of all names, without trailing underscores and digits.
fn common_name(agents: &[AgentId]) -> String {
    let names: Vec<String> = agents.iter().map(AgentId::to_string).collect();
    let Some((first, others)) = names.split_first() else { return String::new() };
    let is_common = |end: usize| others.iter().all(|name| name.get(..end) == first.get(..end));
    let ends = (0..=first.len()).rev().filter(|end| first.is_char_boundary(*end));
    let end = ends.into_iter().find(|end| is_common(*end)).unwrap_or(0);
    let common = first.get(..end).unwrap_or_default();
    common.trim_end_matches(|c: char| c == '_' || c.is_ascii_digit()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(agents: &[&str]) -> String {
        common_name(&agents.iter().map(|agent| AgentId::name(agent)).collect::<Vec<_>>())
    }

    #[test]
    fn group_name_is_common_prefix_without_trailing_digits() {
        assert_eq!(name(&["car_0", "car_1", "car_10"]), "car");
        assert_eq!(name(&["car_12"]), "car");
        assert_eq!(name(&["left", "right"]), "");
        assert_eq!(name(&["äpfel_1", "äste_2"]), "ä");
        assert_eq!(common_name(&[AgentId::Index(1), AgentId::Index(12)]), "");
    }
}

//! The policies that act in the environments of a run.

use super::{NewPolicy, RolloutWorkerBuilder, Workshop, envs::spaces_of_policy};
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

/// Policies, and the function that gives them to agents.
pub(super) struct Assignment {
    pub(super) policies: Vec<PolicyId>,
    pub(super) mapping: PolicyMappingFn,
}

impl RolloutWorkerBuilder {
    /// Policies of the settings, or those that fit the agents of `env`, where there is one that may have several.
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

    /// Whether the settings leave it to the agents' spaces which policies there are.
    pub(super) fn may_group(&self) -> bool {
        let has_mapping = self.policy_mapping_fn.is_some() || self.config.policy_mapping_fn.is_some();
        self.config.policies.is_empty() && !has_mapping
    }

    /// The policies of a run, made to act for the agents of an environment, their mapping, and the function that
    /// observations go through. Statistics of observations are among the policies' weights.
    ///
    /// # Errors
    /// [`SetupError`] for a name that is not registered, and a policy that does not fit.
    pub(crate) fn acting_policies(
        mut self,
        run: &RunConfig,
        env: &dyn BaseEnv,
        seed: u64,
    ) -> Result<(PolicyMap, PolicyMappingFn, Option<ObservationFn>), SetupError> {
        self.registry.policies = self.registry.policies.acting();
        self.config = RolloutConfig { observation_filter: FilterKind::NoFilter, ..run.rollout.clone() };
        // As workers with leases do, so that each policy has the spaces that it has there.
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

/// One policy for all agents if their spaces are equal, as in RLlib; else one for each group of equal spaces, named after
/// what its agents' names begin with. An agent that appears later gets the policy whose name its own begins with.
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
        .collect();
    let names = policies.clone();
    let mapping = move |agent: &AgentId| {
        let of_name = || names.iter().find(|policy| agent.starts_with(policy.as_str())).or_else(|| names.first());
        known.get(agent).or_else(of_name).cloned().unwrap_or(PolicyId::DEFAULT)
    };
    Assignment { policies, mapping: Arc::new(move |agent, _, _, _| mapping(agent)) }
}

/// What all names begin with, without underscores and digits at its end.
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

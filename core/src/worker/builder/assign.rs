//! Which agents share a policy where the settings name none.

use crate::{
    callbacks::PolicyMappingFn,
    env::{BaseEnv, EnvSpaces},
    ids::{AgentId, PolicyId},
    prelude::*,
};

/// Policies, and the function that gives them to agents.
pub(super) struct Assignment {
    pub(super) policies: Vec<PolicyId>,
    pub(super) mapping: PolicyMappingFn,
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

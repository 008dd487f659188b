//! Layout of the rows of a run's fragments.

use super::RecurrentShape;
use crate::{
    column::{DType, RowShape},
    env::EnvSpaces,
    ids::PolicyId,
    prelude::*,
    view::ViewRequirements,
};

/// Layout of the rows of a run's fragments: observations as the environment returns them, actions as the policy chooses
/// them.
#[derive(Clone, Debug, PartialEq)]
pub enum FragmentLayout {
    /// One agent per slot, sampled in lockstep.
    Lane {
        /// Spaces of its rows.
        spaces: EnvSpaces,
        /// The recurrent states of its policy.
        recurrent: RecurrentShape,
    },
    /// Postprocessed rows by policy, of any number of agents.
    Agents(BTreeMap<PolicyId, AgentLayout>),
}

impl FragmentLayout {
    /// Returns the shapes of the observations that a filter normalises, by policy: those that are 32-bit floats.
    #[must_use]
    pub fn filtered(&self) -> BTreeMap<PolicyId, RowShape> {
        let policies: Vec<(&PolicyId, &EnvSpaces)> = match self {
            Self::Lane { spaces, .. } => vec![(&PolicyId::DEFAULT, spaces)],
            Self::Agents(policies) => policies.iter().map(|(id, layout)| (id, &layout.spaces)).collect(),
        };
        let floats = policies.into_iter().filter(|(_, spaces)| spaces.observation_type == DType::F32);
        floats.map(|(id, spaces)| (id.clone(), spaces.observation.shape())).collect_ordered()
    }
}

/// Layout of the rows of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentLayout {
    /// Spaces of its rows.
    pub spaces: EnvSpaces,
    /// The recurrent states of the policy.
    pub recurrent: RecurrentShape,
    /// The policy's view requirements: columns of these names are its views of their data, such as a window of
    /// observations.
    pub views: ViewRequirements,
    /// Whether rows have advantages and value targets.
    pub has_advantages: bool,
    /// Whether rows have no other columns than these: neither the policy nor callbacks add any.
    pub is_exact: bool,
    /// Number of agents of one environment under it, as far as that is known beforehand.
    pub agents: u32,
}

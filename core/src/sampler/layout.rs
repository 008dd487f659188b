//! What the rows of a run's fragments hold.

use super::RecurrentShape;
use crate::{
    column::{DType, RowShape},
    env::EnvSpaces,
    ids::PolicyId,
    prelude::*,
};

/// What the rows of a run's fragments hold: observations as the environment gives them, actions as the policy chooses them.
#[derive(Clone, Debug, PartialEq)]
pub enum FragmentLayout {
    /// One agent per slot, sampled in lockstep.
    Lane {
        /// Spaces of its rows.
        spaces: EnvSpaces,
        /// The recurrent states of its policy.
        recurrent: RecurrentShape,
    },
    /// Rows by policy, of any number of agents, postprocessed.
    Agents(BTreeMap<PolicyId, AgentLayout>),
}

impl FragmentLayout {
    /// Shapes of the observations that a filter takes, by policy: of those that are 32-bit floats.
    #[must_use]
    pub fn filtered(&self) -> BTreeMap<PolicyId, RowShape> {
        let policies: Vec<(&PolicyId, &EnvSpaces)> = match self {
            Self::Lane { spaces, .. } => vec![(&PolicyId::DEFAULT, spaces)],
            Self::Agents(policies) => policies.iter().map(|(id, layout)| (id, &layout.spaces)).collect(),
        };
        let floats = policies.into_iter().filter(|(_, spaces)| spaces.observation_type == DType::F32);
        floats.map(|(id, spaces)| (id.clone(), spaces.observation.shape())).collect()
    }
}

/// What the rows of a policy hold.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentLayout {
    /// Spaces of its rows.
    pub spaces: EnvSpaces,
    /// The recurrent states of the policy.
    pub recurrent: RecurrentShape,
    /// Whether rows have advantages and value targets.
    pub has_advantages: bool,
    /// Whether rows have no other columns than these: neither the policy nor callbacks add any.
    pub is_exact: bool,
    /// How many agents of one environment it acts for, as far as that is known beforehand.
    pub agents: u32,
}

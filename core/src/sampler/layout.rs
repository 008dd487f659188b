//! What the rows of a run's fragments hold.

use super::RecurrentShape;
use crate::{env::EnvSpaces, ids::PolicyId, prelude::*};

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

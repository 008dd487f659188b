//! Defines the ids of slots, workers and other numbered things: newtypes, so that they cannot be confused.
//!
//! ```
//! use rollmesh_core::ids::{SlotId, eps_id};
//!
//! // An episode's id contains its slot: the fourth episode of slot 2.
//! assert_eq!(eps_id(SlotId(2), 3), 2 << 32 | 3);
//! ```

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::prelude::*;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One sub-environment of a run. A run has a fixed number of slots, and a slot's rows do not depend on the worker that
    /// runs it.
    SlotId(u32)
}
id! {
    /// A worker of the hub. Never reused during the lifetime of a hub.
    WorkerId(u32)
}
id! {
    /// One grant of slots to a worker. Never reused during the lifetime of a hub.
    LeaseId(u64)
}
id! {
    /// Number of a fragment within its slot: 0, 1, 2, … without gaps.
    FragmentNo(u64)
}
id! {
    /// Version of a set of weights: the number of learner updates before it.
    WeightsVersion(u64)
}
id! {
    /// One call of a worker. Never reused during the lifetime of a call manager.
    CallId(u64)
}
id! {
    /// Calls that belong together: their results are delivered together.
    CallSetId(u64)
}

impl SlotId {
    /// Maximum number of slots of a run.
    pub const MAX_PER_RUN: u32 = 65_536;
}

/// The worker and vector index that an environment of a slot sees, whichever worker runs the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeIndex {
    /// Index of the home worker, from 1.
    pub worker_index: u32,
    /// Index within the home worker.
    pub vector_index: u32,
}

/// Returns the `eps_id` of an episode: unique within a run, and a function of slot and episode number alone.
#[must_use]
pub const fn eps_id(slot: SlotId, episode: u32) -> i64 {
    ((slot.0 as i64) << 32) | episode as i64
}

/// Returns the `unroll_id` of a part of an agent's trajectory that was postprocessed together: the end of the episode or of
/// the fragment ends it. `step` is the number of the slot's env steps before the part, `agent` the agent's number in the
/// episode.
///
/// The id consists of the step, 16 bits of the slot's number and the agent's number, from high to low: it is unique within a
/// run of up to 2^16 slots for 2^32 steps each, increases from part to part of a slot, and is a function of the slot alone.
#[must_use]
pub const fn unroll_id(slot: SlotId, step: u64, agent: u16) -> i64 {
    (step << 32) as i64 | ((slot.0 & 0xFFFF) as i64) << 16 | agent as i64
}

/// Name of an agent within an episode. Indices sort before names, and numerically: agent 10 follows agent 9.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AgentId {
    /// An agent identified by its index.
    Index(u32),
    /// An agent identified by its name, for example `car_3`.
    Name(Arc<str>),
}

impl AgentId {
    /// The agent of an environment with a single agent.
    #[doc(alias = "agent0")]
    pub const SINGLE: Self = Self::Index(0);

    /// Creates an agent's id from its name.
    #[must_use]
    pub fn name(name: &str) -> Self {
        Self::Name(name.into())
    }

    /// Returns true for a name with this prefix; false for an index.
    #[must_use]
    pub fn starts_with(&self, prefix: &str) -> bool {
        matches!(self, Self::Name(name) if name.starts_with(prefix))
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Name of a policy within a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyId(Cow<'static, str>);

impl PolicyId {
    /// The policy of environments with a single agent.
    pub const DEFAULT: Self = Self(Cow::Borrowed("default_policy"));

    /// Creates an id from a name.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self(name.into())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unroll_ids_differ_by_slot_step_and_agent() {
        let mut seen = BTreeSet::new();
        for step in [0, 1, u64::from(u32::MAX)] {
            for slot in [0, 1, 65_535] {
                for agent in [0, 1, u16::MAX] {
                    assert!(seen.insert(unroll_id(SlotId(slot), step, agent)));
                }
            }
        }
        assert_eq!(unroll_id(SlotId(3), 4, 5), 4 << 32 | 3 << 16 | 5);
    }
}

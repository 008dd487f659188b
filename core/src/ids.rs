//! Names for the things that are counted: newtypes, so that a slot is never mistaken for a worker.
//!
//! ```
//! use rollmesh_core::ids::{SlotId, eps_id};
//!
//! // Ids of episodes say whose they are: the fourth episode of slot 2.
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
    /// One sub-environment lane of a run. The unit of identity: how many slots there are is fixed
    /// when a run is created, and which worker runs a slot has no influence on its rows.
    SlotId(u32)
}
id! {
    /// A worker as the hub knows it. Never reused within the life of a hub.
    WorkerId(u32)
}
id! {
    /// One grant of slots to a worker. Never reused within the life of a hub.
    LeaseId(u64)
}
id! {
    /// Number of a fragment within its slot: 0, 1, 2, … without gaps.
    FragmentNo(u64)
}
id! {
    /// Version of a set of weights: the number of learner updates behind it.
    WeightsVersion(u64)
}
id! {
    /// One call of a worker. Never reused within the life of a manager of calls.
    CallId(u64)
}
id! {
    /// Calls that belong together: their results are handed over together.
    CallSetId(u64)
}

impl SlotId {
    /// The most slots of a run.
    pub const MAX_PER_RUN: u32 = 65_536;
}

/// The identity that an environment of a slot sees, wherever the slot runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeIndex {
    /// Index of the home worker, from 1.
    pub worker_index: u32,
    /// Index within the home worker.
    pub vector_index: u32,
}

/// `eps_id` of an episode: unique within a run, and a function of the slot alone.
#[must_use]
pub const fn eps_id(slot: SlotId, episode: u32) -> i64 {
    ((slot.0 as i64) << 32) | episode as i64
}

/// `unroll_id` of a piece of an agent's trajectory that was postprocessed together: an episode's end or a fragment's cut
/// ends it. `step` counts the env steps of the slot before the piece, `agent` is the number in the episode.
///
/// The step, 16 bits of the slot's number and the agent's, from high to low: unique within a run of up to 2^16 slots for
/// 2^32 steps each, increasing from piece to piece of a slot, and a function of the slot alone.
#[must_use]
pub const fn unroll_id(slot: SlotId, step: u64, agent: u16) -> i64 {
    (step << 32) as i64 | ((slot.0 & 0xFFFF) as i64) << 16 | agent as i64
}

/// Name of an agent within an episode. Numbers come before names, and count as numbers: agent 10 follows agent 9.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AgentId {
    /// One of many alike.
    Index(u32),
    /// One with a name of its own, for example `car_3`.
    Name(Arc<str>),
}

impl AgentId {
    /// The agent of an environment that has only one.
    #[doc(alias = "agent0")]
    pub const SINGLE: Self = Self::Index(0);

    /// An agent by name.
    #[must_use]
    pub fn name(name: &str) -> Self {
        Self::Name(name.into())
    }

    /// True for a name that begins so; false for a number.
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

    /// A name.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self(name.into())
    }

    /// The name as text.
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

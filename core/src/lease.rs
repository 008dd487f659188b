//! A grant of slots to a worker.
//!
//! ```
//! use rollmesh_core::{
//!     ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
//!     lease::{Lease, LeasedSlot, SlotSource},
//! };
//!
//! // The first fragment of two new slots.
//! let slots = [0, 1].map(|slot| LeasedSlot::new(SlotId(slot), SlotSource::New));
//! let lease = Lease {
//!     id: LeaseId(1),
//!     fragment: FragmentNo(0),
//!     weights_version: WeightsVersion(0),
//!     slots: slots.into(),
//! };
//! assert!(lease.slots.is_sorted_by_key(|leased| leased.slot));
//! ```

use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    prelude::*,
};

/// Work for one worker: one fragment of each of these slots, with one version of the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Unique within the lifetime of a hub.
    pub id: LeaseId,
    /// The fragment to sample, the same for all slots.
    pub fragment: FragmentNo,
    /// Version of the weights to use.
    pub weights_version: WeightsVersion,
    /// The slots, ascending, without repetition.
    pub slots: Vec<LeasedSlot>,
}

impl Lease {
    /// Returns true if this lease follows up on the lease `before`: it is for the next fragment of the same slots, with the
    /// same weights, from the states that the worker has at the end of `before`. A worker queues a follow-up instead of
    /// replacing the lease.
    ///
    /// ```
    /// use rollmesh_core::{
    ///     ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    ///     lease::{Lease, LeasedSlot, SlotSource},
    /// };
    ///
    /// let lease = |id, fragment, source| Lease {
    ///     id: LeaseId(id),
    ///     fragment: FragmentNo(fragment),
    ///     weights_version: WeightsVersion(0),
    ///     slots: vec![LeasedSlot::new(SlotId(4), source)],
    /// };
    /// let first = lease(1, 0, SlotSource::New);
    /// assert!(lease(2, 1, SlotSource::Held).is_follow_up_of(&first));
    /// assert!(!lease(2, 0, SlotSource::New).is_follow_up_of(&first));
    /// ```
    #[must_use]
    pub fn is_follow_up_of(&self, before: &Self) -> bool {
        before.fragment.0.checked_add(1) == Some(self.fragment.0)
            && before.weights_version == self.weights_version
            && self.slots.iter().all(|leased| leased.source == SlotSource::Held)
            && self.slots.iter().map(|leased| leased.slot).eq(before.slots.iter().map(|leased| leased.slot))
    }
}

/// A slot, the source of its state, and what is known about its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedSlot {
    /// The slot.
    pub slot: SlotId,
    /// The state to continue from.
    pub source: SlotSource,
    /// The steps at which the environment fails, ascending: its worker restarts it there, and nowhere else. Only in a run
    /// with `restart_failed_sub_environments`.
    pub restarts: Vec<FailedStep>,
}

impl LeasedSlot {
    /// Creates a slot of whose fragment no failure is known.
    #[must_use]
    pub fn new(slot: SlotId, source: SlotSource) -> Self {
        Self { slot, source, restarts: Vec::new() }
    }
}

/// A step of a slot's fragment at which its environment has failed twice in the same way, on different workers if there were
/// several: the cause is the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedStep {
    /// The episode's number within the slot.
    pub episode: u32,
    /// The step of the episode, counted from 0; 0 also for its reset.
    pub t: u32,
}

impl FailedStep {
    /// Most of them in one fragment.
    pub const MAX: usize = 1024;
}

/// The start of a fragment: all that it is made from, except for the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FragmentStart {
    /// The slot's encoded state; `None` if the fragment is the slot's first.
    pub state: Option<Vec<u8>>,
    /// The steps at which the environment was restarted, ascending.
    pub restarts: Vec<FailedStep>,
}

impl FragmentStart {
    /// Returns the slot as a lease names it that makes the fragment again.
    #[must_use]
    pub fn leased(&self, slot: SlotId) -> LeasedSlot {
        let source = self.state.clone().map_or(SlotSource::New, SlotSource::State);
        LeasedSlot { slot, source, restarts: self.restarts.clone() }
    }
}

/// The source of a leased slot's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotSource {
    /// The worker sampled the previous fragment in its latest lease and still holds the state, or samples it in the lease
    /// that this one follows: no state is sent. Workers do not hold states of earlier leases.
    Held,
    /// The slot is new: episode 0, t 0.
    New,
    /// Another worker had the slot before; this is its encoded state.
    State(Vec<u8>),
}

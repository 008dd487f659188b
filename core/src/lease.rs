//! A grant of slots to a worker.
//!
//! ```
//! use rollmesh_core::{
//!     ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
//!     lease::{Lease, LeasedSlot, SlotSource},
//! };
//!
//! // The first fragment of two new slots.
//! let slots = [0, 1].map(|slot| LeasedSlot { slot: SlotId(slot), source: SlotSource::New });
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
    /// Unique within the life of a hub.
    pub id: LeaseId,
    /// The fragment to make, the same for all slots.
    pub fragment: FragmentNo,
    /// The weights that must act.
    pub weights_version: WeightsVersion,
    /// The slots, ascending, without repetition.
    pub slots: Vec<LeasedSlot>,
}

/// A slot and where its state comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedSlot {
    /// The slot.
    pub slot: SlotId,
    /// Where to go on from.
    pub source: SlotSource,
}

/// Where the state of a leased slot comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotSource {
    /// The worker made the fragment before in its latest lease and still holds the state: nothing travels.
    /// States of earlier leases are not held.
    Held,
    /// The slot begins its life: episode 0, t 0.
    New,
    /// The slot was somewhere else before; this is its encoded state.
    State(Vec<u8>),
}

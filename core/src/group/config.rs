//! What a group is told when it is made, and when it refuses to begin.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{FragmentNo, LeaseId, WeightsVersion},
    time::Micros,
};

/// Which fragments make a batch, and how old their weights may be.
///
/// In every mode a fragment is made with one version of the weights, and a slot's fragments are committed in order,
/// without a gap. The *lag* of a fragment is the number of versions that its weights are behind the newest ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingMode {
    /// A batch is one fragment of every slot, all made with the same weights. Overdue slots are leased twice. The batches
    /// depend on the run's seed alone.
    #[default]
    Synchronous,
    /// Workers go on as soon as their lease is done, with the newest weights. A batch is what was committed first, as many
    /// fragments as it takes; what comes later is for the next one. Nobody waits for a straggler.
    ///
    /// Whenever a whole batch is waiting to be taken no lease begins, so that nothing gets older than it must.
    Asynchronous {
        /// Env steps of a batch, at least 1, rounded up to whole fragments.
        batch_env_steps: u64,
        /// The largest lag of a fragment that is accepted, and of one that is put into a batch.
        max_staleness: u64,
    },
    /// A batch is what was committed when the iteration's time is up, but at least one fragment and at most one of each
    /// slot that began with the iteration; if all slots are done before, it ends then. Who is not done goes on, and
    /// hands in its fragments for a later batch.
    Deadline {
        /// The time of an iteration, from its begin.
        after: Micros,
        /// The largest lag of a fragment that is accepted, and of one that is put into a batch.
        max_staleness: u64,
    },
}

impl SamplingMode {
    /// True if a batch is one fragment of every slot.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        *self == Self::Synchronous
    }

    /// True if a fragment may be this many versions behind the newest weights.
    pub(super) fn allows(self, lag: u64) -> bool {
        match self {
            Self::Synchronous => true,
            Self::Asynchronous { max_staleness, .. } | Self::Deadline { max_staleness, .. } => lag <= max_staleness,
        }
    }
}

/// What a group must know of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Slots of the run, at least 1.
    pub num_slots: u32,
    /// Env steps of a slot per fragment, at least 1.
    pub rollout_fragment_length: u32,
    /// Slots of a lease, at most, for example because no upload could hold more. At least 1.
    pub max_slots_per_lease: u32,
    /// The first lease's id. Lease ids are unique within the life of a hub, so a later run goes on
    /// from the earlier one's [`next_lease_id`](super::LeaseGroup::next_lease_id).
    pub first_lease: LeaseId,
    /// No lease is overdue before this age.
    pub hedge_floor: Micros,
    /// Which fragments make a batch.
    pub mode: SamplingMode,
}

impl GroupConfig {
    /// Below this, doing the work twice costs more than waiting.
    pub const HEDGE_FLOOR: Micros = Micros::from_millis(200);

    /// A hub's first run, synchronous, with leases of any size and the usual hedging.
    #[must_use]
    pub fn new(num_slots: u32, rollout_fragment_length: u32) -> Self {
        Self {
            num_slots,
            rollout_fragment_length,
            max_slots_per_lease: num_slots,
            first_lease: LeaseId(0),
            hedge_floor: Self::HEDGE_FLOOR,
            mode: SamplingMode::Synchronous,
        }
    }
}

/// Why a group could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupConfigError {
    /// There is nothing to lease.
    #[error("num_slots is 0: a run needs at least one slot")]
    NoSlots,
    /// Leases would be empty.
    #[error("max_slots_per_lease is 0: a lease needs at least one slot")]
    EmptyLeases,
    /// Fragments would be empty.
    #[error("rollout_fragment_length is 0: a fragment needs at least one env step")]
    EmptyFragments,
    /// Batches would be empty.
    #[error("batch_env_steps is 0: a batch needs at least one env step")]
    EmptyBatches,
}

/// Why an iteration could not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// The iteration before is not over and has other weights, or two are open.
    #[error("iteration {0} is not over: take its batch with poll_batch first")]
    Unfinished(FragmentNo),
    /// The weights are older than those of an iteration before.
    #[error("weights version {asked} is older than {newest}, which acted before: weights only get newer")]
    Older {
        /// The newest so far.
        newest: WeightsVersion,
        /// What was asked for.
        asked: WeightsVersion,
    },
    /// The journal that the group follows has other weights here.
    #[error("the journal goes on with weights version {journalled}, not with {asked}: was it written by this run?")]
    NotJournalled {
        /// The journal's.
        journalled: WeightsVersion,
        /// What was asked for.
        asked: WeightsVersion,
    },
    /// The run was stopped.
    #[error("the run was stopped: begin another one with a new group")]
    Stopped,
}

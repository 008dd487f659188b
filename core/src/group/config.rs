//! Settings of a group, and why it cannot be created or an iteration cannot begin.

pub use crate::run::SamplingMode;

use crate::{
    ids::{FragmentNo, LeaseId, WeightsVersion},
    time::Micros,
};

/// Settings of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Number of slots of the run, at least 1.
    pub num_slots: u32,
    /// Slots that each worker can act for in one batch, for [`TooFewSlots`](super::TooFewSlots) only. At least 1.
    pub slots_per_worker: u32,
    /// Env steps of a slot per fragment, at least 1. If fragments differ in length, the ledger counts a grant as this many
    /// until its fragment is committed.
    pub rollout_fragment_length: u32,
    /// Most env steps of one slot's fragment: equal to `rollout_fragment_length` if all fragments have the same length.
    pub max_fragment_steps: u32,
    /// Most slots per lease, for example because a larger upload would exceed the message limit. At least 1.
    pub max_slots_per_lease: u32,
    /// Id of the first lease. Lease ids are unique within the life of a hub, so a later run starts with the earlier one's
    /// [`next_lease_id`](super::LeaseGroup::next_lease_id).
    pub first_lease: LeaseId,
    /// Minimum age at which a lease becomes overdue.
    pub hedge_floor: Micros,
    /// The condition that completes a batch.
    pub mode: SamplingMode,
    /// False if open episodes may end when their slots move, see [`EnvState::Opaque`](crate::env::EnvState::Opaque), or if
    /// policies may act on [devices](crate::run::RunConfig::device_rows): two workers with the same lease may then return
    /// different fragments. In that case the group does not hedge, and tolerates more imbalance before it moves slots.
    pub reproducible: bool,
    /// True if an environment that fails for itself is restarted, and its episode dropped; if false, it ends the run.
    pub restart_failed: bool,
    /// False if fragments cannot be recomputed, not even from their actions: no audits.
    pub audited: bool,
}

impl GroupConfig {
    /// Default hedge floor: below it, doing the work twice costs more than waiting.
    pub const HEDGE_FLOOR: Micros = Micros::from_millis(200);

    /// Settings of a hub's first run: synchronous, with leases of any size and the default hedge floor.
    #[must_use]
    pub fn new(num_slots: u32, rollout_fragment_length: u32) -> Self {
        Self {
            num_slots,
            slots_per_worker: 1,
            rollout_fragment_length,
            max_fragment_steps: rollout_fragment_length,
            max_slots_per_lease: num_slots,
            first_lease: LeaseId(0),
            hedge_floor: Self::HEDGE_FLOOR,
            mode: SamplingMode::Synchronous,
            reproducible: true,
            restart_failed: false,
            audited: true,
        }
    }

    /// Returns whether a fragment may have this number of env steps.
    pub(super) fn allows(&self, env_steps: u64) -> bool {
        let (usual, most) = (u64::from(self.rollout_fragment_length), u64::from(self.max_fragment_steps));
        env_steps == usual || usual < most && (1..=most).contains(&env_steps)
    }
}

/// The reason why a group could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupConfigError {
    /// The run has no slots.
    #[error("num_slots is 0: a run needs at least one slot")]
    NoSlots,
    /// Leases would have no slots.
    #[error("max_slots_per_lease is 0: a lease needs at least one slot")]
    EmptyLeases,
    /// Fragments would have no env steps.
    #[error("rollout_fragment_length is 0: a fragment needs at least one env step")]
    EmptyFragments,
    /// Batches would have no fragments.
    #[error("batch_env_steps is 0: a batch needs at least one env step")]
    EmptyBatches,
}

/// The reason why an iteration could not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// The previous iteration is not over and has other weights, or two iterations are open.
    #[error("iteration {0} is not over: take its batch with poll_batch first")]
    Unfinished(FragmentNo),
    /// The weights are older than those of a previous iteration.
    #[error("weights version {asked} is older than {newest}, which acted before: weights only get newer")]
    Older {
        /// The newest version so far.
        newest: WeightsVersion,
        /// The requested version.
        asked: WeightsVersion,
    },
    /// The journal that the group replays has other weights here.
    #[error("the journal continues with weights version {journalled}, not with {asked}: was it written by this run?")]
    NotJournalled {
        /// The journal's version.
        journalled: WeightsVersion,
        /// The requested version.
        asked: WeightsVersion,
    },
    /// The run was stopped.
    #[error("the run was stopped: begin another one with a new group")]
    Stopped,
}

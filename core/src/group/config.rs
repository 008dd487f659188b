//! What a group is told when it is made, and when it refuses to begin.

pub use crate::run::SamplingMode;

use crate::{
    ids::{FragmentNo, LeaseId, WeightsVersion},
    time::Micros,
};

/// What a group must know of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Slots of the run, at least 1.
    pub num_slots: u32,
    /// Env steps of a slot per fragment, at least 1. Where fragments differ, what the ledger takes a grant for until the
    /// fragment is committed.
    pub rollout_fragment_length: u32,
    /// The most env steps of a slot's fragment: as many as `rollout_fragment_length` if all fragments are equal.
    pub max_fragment_steps: u32,
    /// Slots of a lease, at most, for example because no upload could hold more. At least 1.
    pub max_slots_per_lease: u32,
    /// The first lease's id. Lease ids are unique within the life of a hub, so a later run goes on
    /// from the earlier one's [`next_lease_id`](super::LeaseGroup::next_lease_id).
    pub first_lease: LeaseId,
    /// No lease is overdue before this age.
    pub hedge_floor: Micros,
    /// Which fragments make a batch.
    pub mode: SamplingMode,
    /// False if open episodes may end where their slots move, see [`EnvState::Opaque`](crate::env::EnvState::Opaque), or if
    /// policies may act on [devices](crate::run::RunConfig::device_rows): two workers that are asked for the same fragment need not bring the same. Then no fragment is asked for twice or audited,
    /// and slots stay where they are longer.
    pub reproducible: bool,
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
            max_fragment_steps: rollout_fragment_length,
            max_slots_per_lease: num_slots,
            first_lease: LeaseId(0),
            hedge_floor: Self::HEDGE_FLOOR,
            mode: SamplingMode::Synchronous,
            reproducible: true,
        }
    }

    /// Whether a fragment may have this number of env steps.
    pub(super) fn allows(&self, env_steps: u64) -> bool {
        let (usual, most) = (u64::from(self.rollout_fragment_length), u64::from(self.max_fragment_steps));
        env_steps == usual || usual < most && (1..=most).contains(&env_steps)
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

//! What outlives the process of a group: its slots and its books, as bytes.

use serde::{Deserialize, Serialize};

use super::{
    GroupConfig, GroupConfigError, JournalEntry, LeaseGroup, Ledger, SamplingMode, replay::Audits,
    slot_table::SlotTable,
};
use crate::{
    ids::{FragmentNo, LeaseId},
    prelude::*,
    sampler::SlotState,
};

/// A group as it was when its last batch was taken.
///
/// What is queued or outstanding is not in it: a group that is [restored](LeaseGroup::restore) has it made again, with the
/// same bits in synchronous mode. Doubts are: who is caught lying later has lied before, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    rollout_fragment_length: u32,
    next_fragment: FragmentNo,
    next_lease: LeaseId,
    ledger: Ledger,
    slots: Vec<SlotMark>,
    /// Parties in order, each with the fragments that it had committed and the first batch that one is in which nobody had
    /// made again.
    doubts: Vec<(u64, u64, FragmentNo)>,
}

/// Where a slot was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotMark {
    /// The fragment to make next.
    pub(super) next: FragmentNo,
    /// The state that it begins with; none before the first one.
    pub(super) state: Option<Vec<u8>>,
}

/// Why a group could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Written by another version.
    #[error("the state of the group has version {0}, this program reads {wanted}", wanted = GroupState::VERSION)]
    Version(u8),
    /// Not the state of a group, or damaged.
    #[error("the state of the group is damaged: take an earlier checkpoint")]
    Damaged,
    /// Of a run with another number of slots.
    #[error("the state has {found} slots, the run {expected}: restore it with the settings that it was saved with")]
    Slots {
        /// The run's.
        expected: u32,
        /// The state's.
        found: u64,
    },
    /// Of a run with fragments of another length.
    #[error(
        "the state has fragments of {found} env steps, the run of {expected}: restore it with the settings that it was saved with"
    )]
    FragmentLength {
        /// The run's.
        expected: u32,
        /// The state's.
        found: u32,
    },
    /// There would be nothing to do.
    #[error(transparent)]
    Config(#[from] GroupConfigError),
}

impl GroupState {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 2;
    /// Lease ids below which all leases of one life of a group are: a restored one begins with the next multiple.
    const LEASES_PER_LIFE: u64 = 1 << 32;
    /// No count that a group keeps gets there.
    const IMPLAUSIBLE: u64 = 1 << 56;

    /// As bytes: the version, then the fields as postcard writes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Writing into memory that grows cannot fail.
        postcard::to_extend(self, vec![Self::VERSION]).unwrap_or_default()
    }

    /// From bytes, which may come from anybody.
    ///
    /// # Errors
    /// [`RestoreError::Version`] and [`RestoreError::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RestoreError> {
        let (&version, body) = bytes.split_first().ok_or(RestoreError::Damaged)?;
        if version != Self::VERSION {
            return Err(RestoreError::Version(version));
        }
        match postcard::take_from_bytes::<Self>(body) {
            Ok((state, [])) if state.is_sound() => Ok(state),
            _ => Err(RestoreError::Damaged),
        }
    }

    /// The books as they go on.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The number of the iteration that begins next.
    #[must_use]
    pub fn next_fragment(&self) -> FragmentNo {
        self.next_fragment
    }

    /// The first batch with a fragment of an untrusted worker that nobody has made again; none if there is no such. What was
    /// saved before it was taken is clean.
    #[must_use]
    pub fn first_doubt(&self) -> Option<FragmentNo> {
        self.doubts.iter().map(|(_, _, first)| *first).min()
    }

    /// False for what no group says of itself.
    fn is_sound(&self) -> bool {
        let Ledger { granted, outstanding, queued, regenerated, .. } = self.ledger;
        let numbers = [self.next_fragment.0, self.next_lease.0, granted, regenerated];
        let is_slot = |slot: &SlotMark| {
            slot.next.0 < Self::IMPLAUSIBLE
                && slot.state.is_some() == (slot.next.0 > 0)
                && slot.state.as_ref().is_none_or(|state| state.len() <= SlotState::MAX_BYTES)
        };
        let is_doubt = |&(_, committed, first): &(u64, u64, FragmentNo)| {
            committed < Self::IMPLAUSIBLE && first < self.next_fragment
        };
        self.doubts.is_sorted_by(|(a, ..), (b, ..)| a < b)
            && self.doubts.iter().all(is_doubt)
            && numbers.into_iter().all(|number| number < Self::IMPLAUSIBLE)
            && (outstanding, queued) == (0, 0)
            && self.ledger.balances()
            && self.slots.iter().all(is_slot)
    }
}

impl LeaseGroup {
    /// The group as it was when its last batch was taken, to go on from in another process. It belongs beside what was
    /// made of that batch, so ask for it before the next one is taken.
    #[must_use]
    pub fn state(&self) -> GroupState {
        let next_fragment = self.open.front().map_or(self.next_fragment, |first| first.fragment);
        GroupState {
            rollout_fragment_length: self.config.rollout_fragment_length,
            next_fragment,
            next_lease: self.next_lease_id(),
            ledger: self.ledger.settled(),
            slots: self.slots.marks(),
            doubts: self.audits.doubts_before(next_fragment),
        }
    }

    /// A group without workers that goes on where another one was; what it doubted it doubts still, so a party must be named as
    /// before, and no other one may have its name. `config` is the other one's, but for `first_lease`.
    ///
    /// Ids of leases begin there, or above all of the process that saved the state. Whoever may restore from one state
    /// several times gives a `first_lease` above those of all processes before, for example the number of restarts times
    /// 2^40, so that nothing that is still on its way is taken for something new.
    ///
    /// ```
    /// use rollmesh_core::group::{GroupConfig, GroupState, LeaseGroup};
    ///
    /// let config = GroupConfig::new(8, 128);
    /// let saved = LeaseGroup::new(config)?.state().encode();
    /// let restored = LeaseGroup::restore(config, GroupState::decode(&saved)?)?;
    /// assert_eq!(restored.ledger().granted, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RestoreError`] if the state is of another run or none at all.
    pub fn restore(config: GroupConfig, state: GroupState) -> Result<Self, RestoreError> {
        let found = state.slots.len() as u64;
        if found != u64::from(config.num_slots) {
            return Err(RestoreError::Slots { expected: config.num_slots, found });
        }
        let (expected, found) = (config.rollout_fragment_length, state.rollout_fragment_length);
        if expected != found {
            return Err(RestoreError::FragmentLength { expected, found });
        }
        let keeps_step = config.mode == SamplingMode::Synchronous;
        let in_step = !keeps_step || state.slots.iter().all(|slot| slot.next == state.next_fragment);
        if !state.is_sound() || !in_step {
            return Err(RestoreError::Damaged);
        }
        let life = state.next_lease.0 / GroupState::LEASES_PER_LIFE + 1;
        let first_lease = config.first_lease.max(LeaseId(life * GroupState::LEASES_PER_LIFE));
        let group = Self::new(GroupConfig { first_lease, ..config })?;
        let GroupState { next_fragment, ledger, slots, doubts, .. } = state;
        let (slots, audits) = (SlotTable::restore(slots), Audits::restore(doubts));
        let mut group = Self { next_fragment, ledger, slots, audits, ..group };
        if group.is_free() {
            group.flow.journal.push_back(JournalEntry::Restored);
        }
        Ok(group)
    }

    /// Notes that env steps are made again that the state knew nothing of from which the group was restored: those after
    /// it was saved, as far as the shell knows.
    pub fn count_regenerated(&mut self, env_steps: u64) {
        self.ledger.regenerated = self.ledger.regenerated.saturating_add(env_steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> GroupState {
        let mut state = LeaseGroup::new(GroupConfig::new(2, 4)).unwrap().state();
        state.slots = vec![SlotMark { next: FragmentNo(1), state: Some(vec![7]) }; 2];
        state.next_fragment = FragmentNo(1);
        state.doubts = vec![(3, 7, FragmentNo(0)), (4, 0, FragmentNo(0))];
        state.ledger = Ledger { granted: 8, committed: 8, consumed: 8, ..Ledger::default() };
        state
    }

    #[test]
    fn states_survive_as_bytes_and_damage_is_found() {
        let state = state();
        let bytes = state.encode();
        assert_eq!(GroupState::decode(&bytes).map(|state| state.first_doubt()), Ok(Some(FragmentNo(0))));
        assert_eq!(GroupState::decode(&bytes), Ok(state));
        assert_eq!(GroupState::decode(&[]), Err(RestoreError::Damaged));
        assert_eq!(GroupState::decode(&[9, 1]), Err(RestoreError::Version(9)));
        assert_eq!(GroupState::decode(&[&bytes[..], &[0]].concat()), Err(RestoreError::Damaged));
        for end in 1..bytes.len() {
            assert_eq!(GroupState::decode(&bytes[..end]), Err(RestoreError::Damaged), "{end} bytes");
        }
    }

    #[test]
    fn a_state_of_another_run_is_refused() {
        let restore = |slots, length, state| LeaseGroup::restore(GroupConfig::new(slots, length), state).map(drop);
        assert_eq!(restore(2, 4, state()), Ok(()));
        assert_eq!(restore(3, 4, state()), Err(RestoreError::Slots { expected: 3, found: 2 }));
        assert_eq!(restore(2, 8, state()), Err(RestoreError::FragmentLength { expected: 8, found: 4 }));
        let damages: [fn(&mut GroupState); 9] = [
            |state| state.ledger.granted += 1,
            |state| state.ledger.consumed -= 1,
            |state| state.slots[0].state = None,
            |state| state.slots[1].next = FragmentNo(2),
            |state| state.next_fragment = FragmentNo(u64::MAX),
            |state| state.next_lease = LeaseId(u64::MAX),
            |state| state.doubts[0].0 = 4,
            |state| state.doubts[0].1 = u64::MAX,
            |state| state.doubts[0].2 = FragmentNo(1),
        ];
        for damage in damages {
            let mut state = state();
            damage(&mut state);
            assert_eq!(restore(2, 4, state), Err(RestoreError::Damaged));
        }
    }
}

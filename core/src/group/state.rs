//! The part of a group that outlives its process, as bytes: slots and ledger.

use serde::{Deserialize, Serialize};

use super::{
    GroupConfig, GroupConfigError, JournalEntry, LeaseGroup, Ledger, SamplingMode, replay::Audits,
    slot_table::SlotTable,
};
use crate::{
    encoding,
    ids::{FragmentNo, LeaseId},
    prelude::*,
    sampler::SlotState,
};

/// A group as of the last batch that was taken.
///
/// Queued and outstanding fragments are not included: a group that is [restored](LeaseGroup::restore) recomputes them,
/// bit-identically in synchronous mode. Unaudited batches are included, since a principal that fails an audit later may have
/// committed divergent fragments before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    rollout_fragment_length: u32,
    next_fragment: FragmentNo,
    next_lease: LeaseId,
    ledger: Ledger,
    slots: Vec<SlotMark>,
    /// Principals in order, each with the number of fragments that it had committed and the first batch with an unaudited
    /// one.
    doubts: Vec<(u64, u64, FragmentNo)>,
}

/// The position of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotMark {
    /// The next fragment.
    pub(super) next: FragmentNo,
    /// The state that it begins with; `None` before the first fragment.
    pub(super) state: Option<Vec<u8>>,
}

/// The reason why a group could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The state was written by another version.
    #[error("the state of the group has version {0}, this program reads {wanted}", wanted = GroupState::VERSION)]
    Version(u8),
    /// The bytes are damaged, or not the state of a group.
    #[error("the state of the group is damaged: take an earlier checkpoint")]
    Damaged,
    /// The state's run has another number of slots.
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
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] GroupConfigError),
}

impl GroupState {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 2;
    /// Number of lease ids reserved for one life of a group: a restored group begins with the next multiple.
    const LEASES_PER_LIFE: u64 = 1 << 32;
    /// Upper bound for plausible counters.
    const IMPLAUSIBLE: u64 = 1 << 56;

    /// Encodes the state: the version, then the fields as postcard writes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoding::encode_after(vec![Self::VERSION], self)
    }

    /// Decodes a state from untrusted bytes.
    ///
    /// # Errors
    /// [`RestoreError::Version`] and [`RestoreError::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RestoreError> {
        let (&version, body) = bytes.split_first().ok_or(RestoreError::Damaged)?;
        if version != Self::VERSION {
            return Err(RestoreError::Version(version));
        }
        encoding::decode(body).filter(Self::is_sound).ok_or(RestoreError::Damaged)
    }

    /// Returns the ledger that the restored group continues.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the number of the iteration that begins next.
    #[must_use]
    pub fn next_fragment(&self) -> FragmentNo {
        self.next_fragment
    }

    /// Returns the first batch with an unaudited fragment of an untrusted worker; `None` if there is none. Data that
    /// was saved before that batch was taken does not depend on it.
    #[must_use]
    pub fn first_doubt(&self) -> Option<FragmentNo> {
        self.doubts.iter().map(|(_, _, first)| *first).min()
    }

    /// Returns false for a state that no group produces.
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
    /// Returns the group's state as of the last batch that was taken, to resume in another process. Save it together with
    /// the result of that batch, so call this before the next one is taken.
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

    /// Creates a group without workers that resumes from a saved state. Unaudited batches stay unaudited, so principals must
    /// keep their numbers, and no other principal may get one of these. `config` is the other group's, except for
    /// `first_lease`.
    ///
    /// Lease ids begin there, or above all those of the process that saved the state. A caller that may restore several
    /// times from one state passes a `first_lease` above those of all processes before, for example the number of restarts
    /// times 2^40, so that delayed uploads cannot be taken for new ones.
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
    /// [`RestoreError`] if the state belongs to another run or is invalid.
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

    /// Counts env steps that are recomputed and that the restored state does not know: those made after it was saved, as far
    /// as the shell knows them.
    pub fn count_regenerated(&mut self, env_steps: u64) {
        self.ledger.regenerated = self.ledger.regenerated.saturating_add(env_steps);
    }

    /// Counts open episodes that were abandoned without a lease, by the run's own worker.
    pub fn count_abandoned(&mut self, episodes: u64) {
        self.ledger.abandoned_episodes = self.ledger.abandoned_episodes.saturating_add(episodes);
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

//! A journal being replayed.

use super::{JournalEntry, slot_table::SlotTable};
use crate::{
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// The entries still to be replayed; the front one is next.
#[derive(Debug)]
pub(super) struct Script {
    entries: VecDeque<JournalEntry>,
    /// For each slot, the weights of the fragments that it has to make, the next one first.
    versions: Vec<VecDeque<WeightsVersion>>,
    /// For each slot, the fragment number below which all fragments are needed for the next batch.
    wanted: Vec<FragmentNo>,
    /// The weights that follow the next batch, if the journal contains them.
    following: Option<WeightsVersion>,
}

impl Script {
    /// Returns `None` if there is nothing to replay. `next` is the fragment that each slot makes first.
    pub(super) fn new(entries: VecDeque<JournalEntry>, next: Vec<FragmentNo>) -> Option<Self> {
        let mut versions = vec![VecDeque::new(); next.len()];
        for entry in &entries {
            if let JournalEntry::Committed { slot, weights_version, .. } = *entry
                && let Some(versions) = versions.get_mut(slot.0 as usize)
            {
                versions.push_back(weights_version);
            }
        }
        let mut script = Self { entries, versions, wanted: next, following: None };
        script.look_ahead();
        (!script.is_over()).then_some(script)
    }

    pub(super) fn is_over(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn has_batch(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, JournalEntry::Batch { .. }))
    }

    /// Returns the oldest weights of the fragments still to be made.
    pub(super) fn oldest_weights(&self) -> Option<WeightsVersion> {
        self.versions.iter().filter_map(VecDeque::front).min().copied()
    }

    /// Determines what the next batch needs, and which weights follow it.
    fn look_ahead(&mut self) {
        let mut entries = self.entries.iter();
        for entry in entries.by_ref() {
            match *entry {
                JournalEntry::Committed { slot, fragment, .. } => {
                    if let Some(wanted) = self.wanted.get_mut(slot.0 as usize) {
                        *wanted = FragmentNo(fragment.0 + 1);
                    }
                }
                JournalEntry::Began { .. } | JournalEntry::Restored => {}
                JournalEntry::Batch { .. } => break,
            }
        }
        self.following = entries.find_map(|entry| match *entry {
            JournalEntry::Began { weights_version } => Some(weights_version),
            _ => None,
        });
    }

    /// Returns the weights for a slot's next fragment, if it is needed for the next batch or cannot be made later.
    pub(super) fn version(&self, slot: SlotId, next: FragmentNo) -> Option<WeightsVersion> {
        let version = *self.versions.get(slot.0 as usize)?.front()?;
        let is_wanted = self.wanted.get(slot.0 as usize).is_some_and(|&wanted| next < wanted);
        (is_wanted || self.following.is_none_or(|following| version < following)).then_some(version)
    }

    /// Records that the slot's next fragment is committed.
    pub(super) fn committed(&mut self, slot: SlotId) {
        if let Some(versions) = self.versions.get_mut(slot.0 as usize) {
            versions.pop_front();
        }
    }

    /// Advances past the next entry if it is a commit that has been replayed.
    pub(super) fn pass(&mut self, slots: &SlotTable) -> Option<(SlotId, WeightsVersion)> {
        let JournalEntry::Committed { slot, fragment, weights_version } = *self.entries.front()? else { return None };
        if !slots.is_committed(slot, fragment) {
            return None;
        }
        self.entries.pop_front();
        Some((slot, weights_version))
    }

    /// Returns the weights with which the next iteration begins; `None` if it has begun or the journal ends before.
    pub(super) fn begins_with(&self) -> Option<WeightsVersion> {
        match self.entries.get(self.next_turn()?) {
            Some(JournalEntry::Began { weights_version }) => Some(*weights_version),
            _ => None,
        }
    }

    /// Records that the next iteration has begun. If its weights are the same, fragments that were committed before it may
    /// still arrive.
    pub(super) fn begin(&mut self) {
        if self.begins_with().is_some()
            && let Some(index) = self.next_turn()
        {
            self.entries.remove(index);
            self.look_ahead();
        }
    }

    /// Returns the place of the next entry that is no commit.
    fn next_turn(&self) -> Option<usize> {
        self.entries.iter().position(|entry| !matches!(entry, JournalEntry::Committed { .. }))
    }

    /// Returns the size of the next batch once it can be taken: all of its fragments are committed, and all those that could
    /// not be made after the weights change.
    pub(super) fn batch_len(&self) -> Option<usize> {
        let Some(JournalEntry::Batch { fragments }) = self.entries.front() else { return None };
        let is_made = |versions: &VecDeque<WeightsVersion>| match (versions.front(), self.following) {
            (None, _) => true,
            (Some(next), Some(following)) => *next >= following,
            (Some(_), None) => false,
        };
        self.versions.iter().all(is_made).then(|| usize::try_from(*fragments).unwrap_or(usize::MAX))
    }

    /// Records that the next batch was taken.
    pub(super) fn take_batch(&mut self) {
        if matches!(self.entries.front(), Some(JournalEntry::Batch { .. })) {
            self.entries.pop_front();
            self.look_ahead();
        }
    }
}

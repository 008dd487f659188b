//! The journal of an asynchronous run: the decisions that determine its batches, so that the run can be replayed.

use serde::{Deserialize, Serialize};

use super::{LeaseGroup, SamplingMode, script::Script};
use crate::{
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// A decision about the content of batches. The sequence of all entries is the journal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// An iteration began. Queued fragments that are too old for these weights were dropped.
    Began {
        /// The newest weights from then on.
        weights_version: WeightsVersion,
    },
    /// A fragment was committed.
    Committed {
        /// Its slot.
        slot: SlotId,
        /// Its number.
        fragment: FragmentNo,
        /// The weights it was made with.
        weights_version: WeightsVersion,
    },
    /// The iteration's batch was taken: this many of the queued fragments, in commit order.
    Batch {
        /// Number of fragments.
        fragments: u64,
    },
    /// The group was [restored](LeaseGroup::restore) from the state that it had here: what was queued is no longer
    /// committed, and an iteration whose batch was not taken has not begun.
    Restored,
}

/// The reason why a group cannot replay a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// In synchronous mode batches do not depend on a journal.
    #[error("synchronous mode has no journal: its batches are the same anyway")]
    Synchronous,
    /// The group has already begun.
    #[error("the run has begun: a journal is followed from the beginning or from where the group was restored")]
    Begun,
    /// An entry cannot follow those before it.
    #[error("entry {0} of the journal cannot follow those before it: is it of another run, or damaged?")]
    Impossible(u64),
}

impl LeaseGroup {
    /// Returns the next journal entry, oldest first. Without a journal an asynchronous run cannot be replayed; a caller that
    /// does not need that polls and drops the entries. In synchronous mode there are none.
    pub fn poll_journal(&mut self) -> Option<JournalEntry> {
        self.flow.journal.pop_front()
    }

    /// Makes a group that has not begun replay the journal of another one: with the same first weights and the same updates
    /// its batches are the same, whatever workers run it and however fast they are. Begin iterations and take batches as
    /// usual. After the last entry the group continues on its own, and only then writes its own journal, which continues
    /// this one.
    ///
    /// The other group must have begun where this one does: at the beginning of the run, or at the [state](Self::state) that
    /// both were restored from. A journal may span later restarts if each time it is truncated to what had been polled when
    /// the state was taken.
    ///
    /// A batch is complete once all fragments made with weights before its update are committed, since these weights are not
    /// available afterwards.
    ///
    /// # Errors
    /// [`JournalError`] if no group in this state can have written the journal.
    pub fn replay(&mut self, journal: impl IntoIterator<Item = JournalEntry>) -> Result<(), JournalError> {
        if self.config.mode == SamplingMode::Synchronous {
            return Err(JournalError::Synchronous);
        }
        if self.flow.newest.is_some() || self.flow.script.is_some() {
            return Err(JournalError::Begun);
        }
        let journal = without_what_was_undone(self.config.mode, journal);
        self.check_journal(&journal)?;
        self.flow.journal.clear();
        let journal = journal.into_iter().map(|(_, entry)| entry).collect();
        self.flow.script = Script::new(journal, self.slots.iter().map(|(_, slot)| slot.next()).collect());
        Ok(())
    }

    /// Returns true while it replays a journal that contains a further batch.
    #[must_use]
    pub fn replays_batches(&self) -> bool {
        self.flow.script.as_ref().is_some_and(Script::has_batch)
    }

    /// Returns the oldest weights that fragments of the journal still have to be made with; `None` if it replays none.
    #[must_use]
    pub fn oldest_replayed_weights(&self) -> Option<WeightsVersion> {
        self.flow.script.as_ref().and_then(Script::oldest_weights)
    }

    /// Checks a journal by following it as the group that wrote it.
    fn check_journal(&self, journal: &[(u64, JournalEntry)]) -> Result<(), JournalError> {
        let mut slots: Vec<(FragmentNo, WeightsVersion)> =
            self.slots.iter().map(|(_, slot)| (slot.next(), WeightsVersion(0))).collect();
        let mut queued = VecDeque::<WeightsVersion>::new();
        let (mut first, mut newest, mut is_open) = (None, WeightsVersion(0), false);
        for &(index, entry) in journal {
            let is_possible = match entry {
                JournalEntry::Began { weights_version } => {
                    let is_next = !is_open && newest <= weights_version;
                    (is_open, newest) = (true, weights_version);
                    first = first.or(Some(weights_version));
                    queued.retain(|version| self.config.mode.allows(newest.0.saturating_sub(version.0)));
                    is_next
                }
                JournalEntry::Committed { slot, fragment, weights_version } => {
                    queued.push_back(weights_version);
                    let is_made = first.is_some_and(|first| (first..=newest).contains(&weights_version))
                        && self.config.mode.allows(newest.0.saturating_sub(weights_version.0));
                    let slot = usize::try_from(slot.0).ok().and_then(|slot| slots.get_mut(slot));
                    is_made
                        && slot.is_some_and(|(next, latest)| {
                            let is_next = *next == fragment && *latest <= weights_version;
                            (*next, *latest) = (FragmentNo(fragment.0.saturating_add(1)), weights_version);
                            is_next && fragment.0 < u64::MAX
                        })
                }
                JournalEntry::Batch { fragments } => {
                    let is_there = is_open && fragments > 0 && fragments <= queued.len() as u64;
                    is_open = false;
                    queued.drain(..usize::try_from(fragments).map_or(0, |fragments| fragments.min(queued.len())));
                    is_there
                }
                // A restore discards everything queued.
                JournalEntry::Restored => true,
            };
            if !is_possible {
                return Err(JournalError::Impossible(index));
            }
        }
        Ok(())
    }

    /// Advances in the journal past the entries that have been replayed.
    pub(super) fn follow_script(&mut self) {
        let Some(script) = &mut self.flow.script else { return };
        while let Some((slot, version)) = script.pass(&self.slots) {
            self.flow.order.push_back((slot, version));
        }
        if script.is_over() {
            self.flow.script = None;
        }
    }
}

/// Returns the entries that no later restore undid, each with its place.
fn without_what_was_undone(
    mode: SamplingMode,
    journal: impl IntoIterator<Item = JournalEntry>,
) -> Vec<(u64, JournalEntry)> {
    let mut entries: Vec<Option<(u64, JournalEntry)>> = Vec::new();
    // The places of the queued fragments with their weights, and the iteration whose batch was not taken.
    let mut queued = VecDeque::<(usize, WeightsVersion)>::new();
    let mut open = None;
    for (index, entry) in (0..).zip(journal) {
        match entry {
            JournalEntry::Began { weights_version: newest } => {
                queued.retain(|(_, version)| mode.allows(newest.0.saturating_sub(version.0)));
                open = Some(entries.len());
            }
            JournalEntry::Committed { weights_version, .. } => queued.push_back((entries.len(), weights_version)),
            JournalEntry::Batch { fragments } => {
                queued
                    .drain(..usize::try_from(fragments).map_or(queued.len(), |fragments| fragments.min(queued.len())));
                open = None;
            }
            JournalEntry::Restored => {
                for undone in queued.drain(..).map(|(place, _)| place).chain(open.take()) {
                    if let Some(entry) = entries.get_mut(undone) {
                        *entry = None;
                    }
                }
                continue;
            }
        }
        entries.push(Some((index, entry)));
    }
    entries.into_iter().flatten().collect()
}

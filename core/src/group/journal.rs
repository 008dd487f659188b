//! What decided on the batches of a run whose slots do not keep step, so that it can be repeated.

use serde::{Deserialize, Serialize};

use super::{LeaseGroup, SamplingMode, script::Script};
use crate::{
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// One thing that decided on what is in a batch. In order they are the journal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// An iteration began. What is queued and too old for these weights was dropped.
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
        /// The weights that it was made with.
        weights_version: WeightsVersion,
    },
    /// The iteration's batch was taken: so many of the queued fragments, those that were committed first.
    Batch {
        /// How many.
        fragments: u64,
    },
    /// The group was [restored](LeaseGroup::restore) from the state that it had here: what was queued is no longer committed,
    /// and an iteration whose batch had not been taken has not begun.
    Restored,
}

/// Why a group cannot follow a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// In synchronous mode batches depend on nothing that a journal could tell.
    #[error("synchronous mode has no journal: its batches are the same anyway")]
    Synchronous,
    /// The group has begun.
    #[error("the run has begun: a journal is followed from the beginning or from where the group was restored")]
    Begun,
    /// An entry cannot follow those before it.
    #[error("entry {0} of the journal cannot follow those before it: is it of another run, or damaged?")]
    Impossible(u64),
}

impl LeaseGroup {
    /// What decided on the batches since the last call, oldest first. Without a journal a run that does not keep step cannot
    /// be repeated; who does not want to repeat it polls and drops. In synchronous mode there is none.
    pub fn poll_journal(&mut self) -> Option<JournalEntry> {
        self.flow.journal.pop_front()
    }

    /// Makes a group that has not begun follow the journal of another one: with the same first weights and the same updates
    /// its batches are the same, whoever works and however fast. Begin iterations and take batches as ever. After the last
    /// entry the group goes on by itself, and only then keeps a journal of its own, which continues this one.
    ///
    /// The other one must have begun where this one does: at the beginning of the run, or at the
    /// [state](Self::state) that both were restored from. A journal goes on over later restarts if it is cut off, each time,
    /// behind what had been polled when the state was asked for.
    ///
    /// A batch comes once all that was made with weights before its update is there, since nobody has these afterwards.
    ///
    /// # Errors
    /// [`JournalError`] if no group in this state can have written it.
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

    /// Goes through a journal as the group that wrote it.
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
                // Nothing is left of it.
                JournalEntry::Restored => true,
            };
            if !is_possible {
                return Err(JournalError::Impossible(index));
            }
        }
        Ok(())
    }

    /// Goes on in the journal as far as things have happened again.
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

/// The entries that still counted at the end, each with its place.
fn without_what_was_undone(
    mode: SamplingMode,
    journal: impl IntoIterator<Item = JournalEntry>,
) -> Vec<(u64, JournalEntry)> {
    let mut entries: Vec<Option<(u64, JournalEntry)>> = Vec::new();
    // Where the queued fragments are with their weights, and the iteration whose batch was not taken.
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

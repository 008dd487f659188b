//! The step that a sampler is taking, for another thread.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Moment;
use crate::{ids::SlotId, prelude::*};

/// The env step in progress, which a watchdog on another thread reads: whether the sampler makes progress, and where it is.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StepMark(Arc<Marked>);

#[derive(Debug)]
struct Marked {
    /// [`UNKNOWN`] while lanes are stepped together.
    slot: AtomicU32,
    episode: AtomicU32,
    t: AtomicU32,
    /// Number of marks, modulo 2^32. Of two marks at the same time one may be lost, which does no harm.
    beats: AtomicU32,
}

/// No slot has this number.
const UNKNOWN: u32 = u32::MAX;

impl Default for Marked {
    fn default() -> Self {
        let [slot, episode, t, beats] = [UNKNOWN, 0, 0, 0].map(AtomicU32::new);
        Self { slot, episode, t, beats }
    }
}

impl PartialEq for StepMark {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl StepMark {
    /// Returns the slot, episode and step in progress, or of the latest step; `None` before the first one, and while lanes
    /// are stepped together.
    #[must_use]
    pub fn position(&self) -> Option<(SlotId, (u32, u32))> {
        let slot = self.0.slot.load(Relaxed);
        (slot != UNKNOWN).then(|| (SlotId(slot), (self.0.episode.load(Relaxed), self.0.t.load(Relaxed))))
    }

    /// Returns a number that changes while the sampler makes progress.
    #[must_use]
    pub fn beats(&self) -> u32 {
        self.0.beats.load(Relaxed)
    }

    /// Records progress other than a step.
    pub fn beat(&self) {
        // Cheaper than an atomic addition, in every env step.
        self.0.beats.store(self.0.beats.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Records the beginning of a slot's step or reset.
    pub(crate) fn at(&self, slot: SlotId, episode: u32, t: u32) {
        self.0.slot.store(slot.0, Relaxed);
        self.0.episode.store(episode, Relaxed);
        self.0.t.store(t, Relaxed);
        self.beat();
    }

    /// Records that these lanes are handled together.
    pub(crate) fn at_all(&self, lanes: &[Moment]) {
        match lanes {
            [Moment { slot, episode, t, .. }] => self.at(*slot, *episode, *t),
            _ => {
                self.0.slot.store(UNKNOWN, Relaxed);
                self.beat();
            }
        }
    }
}

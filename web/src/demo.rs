//! A rollout in this tab, for a page without a hub.

use std::cell::Cell;

use crate::shell::Store;

/// A running demo. Dropping it ends it.
pub(crate) struct Demo {
    watched: Cell<u32>,
}

impl Demo {
    /// Starts it.
    pub(crate) fn start(_store: Store) -> Option<Self> {
        Some(Self { watched: Cell::new(0) })
    }

    /// Shows another slot.
    pub(crate) fn watch(&self, slot: u32) {
        self.watched.set(slot);
    }
}

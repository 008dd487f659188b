//! A worker's last progress.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The time of a worker's last progress: written where it is observed, read by those that wait. Clones share the time.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// Microseconds since then.
    last: Arc<AtomicU64>,
}

impl Default for Pulse {
    /// Starts now.
    fn default() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }
}

impl Pulse {
    /// Records progress.
    pub(crate) fn beat(&self) {
        // Threads may get here out of order: the latest time counts.
        self.last.fetch_max(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns the time of the last progress, or of the start.
    pub(crate) fn last(&self) -> Instant {
        self.began + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }
}

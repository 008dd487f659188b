//! When a worker last got on with its work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// When somebody last got on: written where that is seen, read where somebody waits. Clones are the same pulse.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// Microseconds since then.
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// Of somebody who begins now.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }

    /// It gets on now.
    pub(crate) fn beat(&self) {
        // Threads may come here out of order: the latest counts.
        self.last.fetch_max(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// When it last did; when it began, if never.
    pub(crate) fn last(&self) -> Instant {
        self.began + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }
}

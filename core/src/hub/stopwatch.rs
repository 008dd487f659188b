//! Time that a run has been running.

use crate::time::Micros;

/// Time that a run has been running on the caller's clock, without its pauses.
///
/// ```
/// use rollmesh_core::{hub::Stopwatch, time::Micros};
///
/// let mut stopwatch = Stopwatch::started_at(Micros(5), Micros(100));
/// stopwatch.pause(Micros(110));
/// assert_eq!(stopwatch.elapsed(Micros(500)), Micros(15));
/// stopwatch.resume(Micros(500));
/// assert_eq!(stopwatch.elapsed(Micros(501)), Micros(16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopwatch {
    elapsed: Micros,
    running_since: Option<Micros>,
}

impl Stopwatch {
    /// Starts a stopwatch that already shows `elapsed`.
    #[must_use]
    pub fn started_at(elapsed: Micros, now: Micros) -> Self {
        Self { elapsed, running_since: Some(now) }
    }

    /// Returns the time without pauses.
    #[must_use]
    pub fn elapsed(&self, now: Micros) -> Micros {
        self.elapsed + self.running_since.map_or(Micros(0), |since| now.since(since))
    }

    /// Stops counting; no effect on a paused one.
    pub fn pause(&mut self, now: Micros) {
        self.elapsed = self.elapsed(now);
        self.running_since = None;
    }

    /// Counts again; no effect on a running one.
    pub fn resume(&mut self, now: Micros) {
        self.running_since.get_or_insert(now);
    }
}

//! Interruption of a sampler from another thread, and its heartbeat.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::SampleError;

/// Interrupts a sampler from another thread, and counts its rounds as a heartbeat.
#[derive(Debug, Default)]
pub struct Interrupt {
    is_set: AtomicBool,
    /// Number of checks.
    rounds: AtomicU32,
}

impl Interrupt {
    /// Sets or clears the interrupt.
    pub fn set(&self, is_set: bool) {
        self.is_set.store(is_set, Ordering::Relaxed);
    }

    /// Returns whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Returns the number of rounds that the sampler has begun, modulo 2^32. While it changes, the sampler makes progress:
    /// one that hangs in a step begins no further round.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Counts a round, and returns an error if the interrupt is set.
    pub(crate) fn check(&self) -> Result<(), SampleError> {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if self.is_set() { Err(SampleError::Stopped) } else { Ok(()) }
    }
}

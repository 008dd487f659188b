//! What a sampler and another thread tell each other.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::SampleError;

/// Tells a sampler from another thread that it is to give up, and shows there that it gets on.
#[derive(Debug, Default)]
pub struct Interrupt {
    is_set: AtomicBool,
    /// How often it was checked.
    rounds: AtomicU32,
}

impl Interrupt {
    /// Whether the sampler is to give up.
    pub fn set(&self, is_set: bool) {
        self.is_set.store(is_set, Ordering::Relaxed);
    }

    /// Whether that is so now.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Rounds that the sampler has begun, counted beyond 2^32 from 0 again. It gets on while these change: whoever hangs in
    /// a step begins no other one.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Another round is about to begin.
    pub(crate) fn check(&self) -> Result<(), SampleError> {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if self.is_set() { Err(SampleError::Stopped) } else { Ok(()) }
    }
}

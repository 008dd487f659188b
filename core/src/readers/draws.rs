//! Makes the random choices of readers, in order.

use crate::{
    ids::SlotId,
    rng::{Purpose, Rng, Streams},
};

/// The object of a choice. Each choice has its own streams; the values are part of the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Choice {
    /// One of several inputs.
    Source = 1,
    /// One of the waiting batches.
    Place = 2,
    /// One of the files.
    File = 3,
}

/// The choices of one kind by a worker's reader: the same seed and worker give the same ones.
#[derive(Clone, Debug)]
pub struct Draws {
    streams: Streams,
    worker: u32,
    choice: Choice,
    drawn: u64,
}

impl Draws {
    /// Starts with the first choice.
    #[must_use]
    pub fn new(seed: u64, worker_index: u32, choice: Choice) -> Self {
        Self { streams: Streams::new(seed, Purpose::Shuffle), worker: worker_index, choice, drawn: 0 }
    }

    /// Returns the number of choices so far.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Continues after this number of choices.
    pub fn skip_to(&mut self, drawn: u64) {
        self.drawn = drawn;
    }

    /// Returns the random numbers of the next choice.
    pub fn next_rng(&mut self) -> Rng {
        let (high, low) = ((self.drawn >> 32) as u32, self.drawn as u32);
        self.drawn = self.drawn.wrapping_add(1);
        self.streams.at(SlotId(self.worker), high, low, self.choice as u16)
    }

    /// Returns the next choice among `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.next_rng().below_u64(n as u64) as usize
    }
}

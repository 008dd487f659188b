//! Random numbers as a pure function of where they are used.
//!
//! The generator is counter-based (Philox4x32-10; Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011). No generator state needs to be kept or sent: the run's seed, the purpose, and the slot, episode, step and agent
//! address a number. A draw therefore does not depend on the number of earlier draws or on the worker that makes it.
//!
//! | word | holds |
//! |---|---|
//! | key 0, 1 | low and high half of `mix64(seed + purpose * 0x9E3779B97F4A7C15)`, one-to-one in the seed |
//! | counter 0 | slot |
//! | counter 1 | episode |
//! | counter 2 | t |
//! | counter 3 | agent << 16 \| number of the block of four draws |
//!
//! After 65,536 blocks a stream continues with block 0 under another key: `mix64(key + 0x9E3779B97F4A7C15)` of its key, as
//! one number.
//!
//! ```
//! use rollmesh_core::{
//!     ids::SlotId,
//!     rng::{Purpose, Streams},
//! };
//!
//! let streams = Streams::new(7, Purpose::EnvStep);
//! let mut rng = streams.at(SlotId(3), 0, 25, 0);
//! let (die, noise) = (rng.below(6) + 1, rng.normal());
//! // The same address gives the same numbers.
//! let mut again = streams.at(SlotId(3), 0, 25, 0);
//! assert_eq!((again.below(6) + 1, again.normal()), (die, noise));
//! ```

mod draws;
mod philox;

pub use draws::unit_f32;

use serde::{Deserialize, Serialize};

use self::philox::{BULK, mix64, philox, philox_many};
use crate::ids::SlotId;

/// Blocks of a stream under one key.
const BLOCKS: u32 = 1 << 16;

/// The purpose of random numbers. Each purpose has its own streams; the values are part of the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Initial weights.
    Init = 1,
    /// Resetting environments.
    Reset = 2,
    /// Randomness of environment steps.
    EnvStep = 3,
    /// Sampling of actions.
    Action = 4,
    /// Mapping of agents to policies.
    Mapping = 5,
    /// Shuffling of batches.
    Shuffle = 6,
    /// Choice of fragments to be audited.
    Audit = 7,
    /// Seeds of evaluations.
    Evaluation = 8,
}

/// The streams of one purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    key: [u32; 2],
}

impl Streams {
    /// Returns the streams of a purpose for a run's seed.
    #[must_use]
    pub const fn new(seed: u64, purpose: Purpose) -> Self {
        let key = mix64(seed.wrapping_add((purpose as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        Self { key: [key as u32, (key >> 32) as u32] }
    }

    /// Returns the stream of one step of one agent.
    #[must_use]
    pub const fn at(&self, slot: SlotId, episode: u32, t: u32, agent: u16) -> Rng {
        Rng { key: self.key, counter: [slot.0, episode, t, (agent as u32) << 16], block: [0; 4], used: 4 }
    }

    /// Returns the first four words of [`at`](Self::at), for hot loops.
    #[inline(always)]
    #[must_use]
    pub const fn block(&self, slot: SlotId, episode: u32, t: u32, agent: u16) -> [u32; 4] {
        philox([slot.0, episode, t, (agent as u32) << 16], self.key)
    }
}

/// A position in a stream. Draws are sequential; clones continue independently with the same numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rng {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: u8,
}

impl Rng {
    /// Returns false for an invalid decoded state.
    pub(crate) const fn is_sound(&self) -> bool {
        self.used <= 4
    }

    /// Returns the next 32 bits.
    #[inline]
    pub const fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.next_block();
        }
        let word = self.block[self.used as usize];
        self.used += 1;
        word
    }

    /// Computes the next block. Separate from its caller, so that the compiler inlines the small caller.
    #[inline(never)]
    const fn next_block(&mut self) {
        self.block = philox(self.counter, self.key);
        self.skip_blocks(1);
        self.used = 0;
    }

    /// Returns the next [`BULK`] words: faster than one by one at the start of a block.
    fn next_words(&mut self) -> [u32; BULK] {
        let left_under_key = BLOCKS - (self.counter[3] & 0xFFFF);
        if self.used < 4 || (left_under_key as usize) < BULK / 4 {
            return core::array::from_fn(|_| self.next_u32());
        }
        let words = philox_many(self.counter, self.key);
        self.skip_blocks((BULK / 4) as u32);
        words
    }

    /// Skips this number of words.
    const fn skip(&mut self, words: u64) {
        let in_block = 4 - self.used as u64;
        if words <= in_block {
            self.used += words as u8;
            return;
        }
        let (mut blocks, rest) = ((words - in_block) / 4, (words - in_block) % 4);
        while blocks > 0 {
            let step = if blocks < BLOCKS as u64 { blocks as u32 } else { BLOCKS };
            self.skip_blocks(step);
            blocks -= step as u64;
        }
        self.used = 4;
        let mut drawn = 0;
        while drawn < rest {
            self.next_u32();
            drawn += 1;
        }
    }

    /// Skips at most [`BLOCKS`] blocks.
    const fn skip_blocks(&mut self, blocks: u32) {
        let next = (self.counter[3] & 0xFFFF) + blocks;
        self.counter[3] = (self.counter[3] & 0xFFFF_0000) | (next & 0xFFFF);
        if next >= BLOCKS {
            // The next number of SplitMix64, whose period covers all numbers.
            let key = (self.key[1] as u64) << 32 | self.key[0] as u64;
            let key = mix64(key.wrapping_add(0x9E37_79B9_7F4A_7C15));
            self.key = [key as u32, (key >> 32) as u32];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    /// Checks the packing, which is part of the protocol: a change would change every rollout.
    #[test]
    fn addressing_is_frozen() {
        let mut rng = Streams::new(7, Purpose::Reset).at(SlotId(3), 2, 1, 5);
        let words: Vec<u32> = (0..6).map(|_| rng.next_u32()).collect();
        let key = mix64(7u64.wrapping_add(2u64.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let key = [key as u32, (key >> 32) as u32];
        assert_eq!(words[..4], philox([3, 2, 1, 5 << 16], key));
        assert_eq!(words[4..], philox([3, 2, 1, 5 << 16 | 1], key)[..2]);
        assert_eq!(mix64(1), 0x5692_161D_100B_05E5);
        assert_eq!(Streams::new(7, Purpose::Reset).block(SlotId(3), 2, 1, 5)[..], words[..4]);
    }

    #[test]
    fn a_long_stream_does_not_repeat() {
        // The second seed gives a key of zeros.
        for seed in [7, 0u64.wrapping_sub(6u64.wrapping_mul(0x9E37_79B9_7F4A_7C15))] {
            let mut rng = Streams::new(seed, Purpose::Shuffle).at(SlotId(3), 2, 1, 5);
            let first: Vec<u32> = (0..8).map(|_| rng.next_u32()).collect();
            rng.skip(262_144 - 8);
            let later: Vec<u32> = (0..8).map(|_| rng.next_u32()).collect();
            assert_ne!(later, first);
        }
    }

    #[test]
    fn long_words_are_even_and_in_range() {
        let mut rng = Streams::new(1, Purpose::Shuffle).at(SlotId(0), 0, 0, 0);
        let n = 3u64 << 62;
        let mut counts = [0u32; 3];
        for _ in 0..30_000 {
            counts[(rng.below_u64(n) >> 62) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| n.abs_diff(10_000) < 400), "{counts:?}");
        assert_eq!(rng.below_u64(0), 0);
    }

    #[test]
    fn draws_take_as_many_words_as_they_say() {
        let start = Streams::new(2, Purpose::Action).at(SlotId(0), 0, 0, 0);
        let (mut a, mut b) = (start.clone(), start);
        a.normal();
        a.exponential();
        (0..6).for_each(|_| _ = b.next_u32());
        assert_eq!(a.next_u32(), b.next_u32());
    }
}

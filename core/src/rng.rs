//! Random numbers as a pure function of where they are used.
//!
//! The generator is counter-based (Philox4x32-10; Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011). Nothing carries a generator's state: a number is addressed by the run's seed, what it
//! is for, and the slot, episode, step and agent that it belongs to. So no draw depends on how many were made
//! before, or on who made them.
//!
//! | word | holds |
//! |---|---|
//! | key 0, 1 | low and high half of `mix64(seed + purpose * 0x9E3779B97F4A7C15)`, one-to-one in the seed |
//! | counter 0 | slot |
//! | counter 1 | episode |
//! | counter 2 | t |
//! | counter 3 | agent << 16 \| number of the block of four draws |
//!
//! After 65,536 blocks a stream goes on with block 0 under another key: `mix64(key + 0x9E3779B97F4A7C15)` of its key,
//! taken as one number.
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
//! // Whoever asks for the same place gets the same numbers.
//! let mut again = streams.at(SlotId(3), 0, 25, 0);
//! assert_eq!((again.below(6) + 1, again.normal()), (die, noise));
//! ```

use crate::{ids::SlotId, math, prelude::*};

/// Blocks of a stream under one key.
const BLOCKS: u32 = 1 << 16;
/// Words that are computed together where many are needed.
const BULK: usize = 32;

/// What random numbers are for. Each purpose has streams of its own; the values are part of the definition.
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
}

/// The streams of one purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    key: [u32; 2],
}

impl Streams {
    /// The streams of a purpose for a run's seed.
    #[must_use]
    pub const fn new(seed: u64, purpose: Purpose) -> Self {
        let key = mix64(seed.wrapping_add((purpose as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        Self { key: [key as u32, (key >> 32) as u32] }
    }

    /// The stream of one step of one agent.
    #[must_use]
    pub const fn at(&self, slot: SlotId, episode: u32, t: u32, agent: u16) -> Rng {
        Rng { key: self.key, counter: [slot.0, episode, t, (agent as u32) << 16], block: [0; 4], used: 4 }
    }

    /// The first four words of [`at`](Self::at), for hot loops.
    #[inline(always)]
    #[must_use]
    pub const fn block(&self, slot: SlotId, episode: u32, t: u32, agent: u16) -> [u32; 4] {
        philox([slot.0, episode, t, (agent as u32) << 16], self.key)
    }
}

/// A position in a stream. Draws come one after the other; clones go on independently with the same numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: u8,
}

impl Rng {
    /// The next 32 bits.
    pub const fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox(self.counter, self.key);
            self.skip_blocks(1);
            self.used = 0;
        }
        let word = self.block[self.used as usize];
        self.used += 1;
        word
    }

    /// The next words, [`BULK`] of them: faster than one by one where a block begins.
    fn next_words(&mut self) -> [u32; BULK] {
        let left_under_key = BLOCKS - (self.counter[3] & 0xFFFF);
        if self.used < 4 || (left_under_key as usize) < BULK / 4 {
            return core::array::from_fn(|_| self.next_u32());
        }
        let words = philox_many(self.counter, self.key);
        self.skip_blocks((BULK / 4) as u32);
        words
    }

    /// Goes on as if so many words had been drawn.
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

    /// At most [`BLOCKS`].
    const fn skip_blocks(&mut self, blocks: u32) {
        let next = (self.counter[3] & 0xFFFF) + blocks;
        self.counter[3] = (self.counter[3] & 0xFFFF_0000) | (next & 0xFFFF);
        if next >= BLOCKS {
            // The next number of SplitMix64, which meets all numbers before it meets one again.
            let key = (self.key[1] as u64) << 32 | self.key[0] as u64;
            let key = mix64(key.wrapping_add(0x9E37_79B9_7F4A_7C15));
            self.key = [key as u32, (key >> 32) as u32];
        }
    }

    /// The next 64 bits: high word first.
    pub const fn next_u64(&mut self) -> u64 {
        let high = self.next_u32();
        (high as u64) << 32 | self.next_u32() as u64
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    pub const fn uniform_f32(&mut self) -> f32 {
        unit_f32(self.next_u32())
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub const fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    pub const fn uniform_in(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform_f64()
    }

    /// Uniform in 0..n, without bias (Lemire: "Fast random integer generation in an interval", 2019). 0 for n = 0.
    pub const fn below(&mut self, n: u32) -> u32 {
        let mut product = self.next_u32() as u64 * n as u64;
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = self.next_u32() as u64 * n as u64;
            }
        }
        (product >> 32) as u32
    }

    /// Uniform in 0..n, without bias, by the same method with words of 64 bits. 0 for n = 0.
    pub const fn below_u64(&mut self, n: u64) -> u64 {
        let mut product = self.next_u64() as u128 * n as u128;
        if (product as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = self.next_u64() as u128 * n as u128;
            }
        }
        (product >> 64) as u64
    }

    /// Normally distributed with mean 0 and standard deviation 1; at most 8.6 from 0.
    ///
    /// Takes four words, always (Box and Muller, 1958; the sine is not used).
    pub fn normal(&mut self) -> f64 {
        let radius = math::sqrt_f64(2.0 * self.exponential());
        radius * math::sin_cos(core::f64::consts::TAU * self.uniform_f64()).1
    }

    /// Exponentially distributed with mean 1; at most 36.8. Takes two words.
    pub fn exponential(&mut self) -> f64 {
        // In (0, 1], so the logarithm is finite.
        let u = 1.0 - self.uniform_f64();
        // No negative zero.
        0.0 - math::log_f64(u)
    }

    /// Brings a slice into random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let partner = match u32::try_from(i + 1) {
                Ok(n) => self.below(n) as usize,
                Err(_) => self.below_u64(i as u64 + 1) as usize,
            };
            items.swap(i, partner);
        }
    }

    /// What [`shuffle`](Self::shuffle) of `n` items swaps: partners of the items `n - 1`, `n - 2`, … 1, in this order.
    pub(crate) fn partners(&mut self, n: u32) -> Vec<u32> {
        let mut ahead = self.clone();
        let (mut words, mut drawn) = ([0; BULK], 0usize);
        let mut next = || {
            if drawn.is_multiple_of(BULK) {
                words = ahead.next_words();
            }
            drawn += 1;
            words[(drawn - 1) % BULK]
        };
        let mut below = |n: u32| {
            let mut product = u64::from(next()) * u64::from(n);
            // As `below`, which explains it.
            if (product as u32) < n {
                let threshold = n.wrapping_neg() % n;
                while (product as u32) < threshold {
                    product = u64::from(next()) * u64::from(n);
                }
            }
            (product >> 32) as u32
        };
        let partners = (1..n).rev().map(|item| below(item + 1)).collect();
        self.skip(drawn as u64);
        partners
    }
}

/// Word to [0, 1): its upper 24 bits.
#[inline(always)]
#[must_use]
pub const fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
const fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Ten rounds of Philox4x32.
#[inline(always)]
const fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let a = counter[0] as u64 * 0xD251_1F53;
        let b = counter[2] as u64 * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        round += 1;
    }
    counter
}

/// [`philox`] of a block and those that follow it: lane by lane, so that it vectorises.
fn philox_many(counter: [u32; 4], key: [u32; 2]) -> [u32; BULK] {
    const LANES: usize = BULK / 4;
    let mut lanes = counter.map(|word| [word; LANES]);
    for (i, word) in lanes[3].iter_mut().enumerate() {
        *word += i as u32;
    }
    let mut key = key;
    for _ in 0..10 {
        let [c0, c1, c2, c3] = &mut lanes;
        for i in 0..LANES {
            let a = u64::from(c0[i]) * 0xD251_1F53;
            let b = u64::from(c2[i]) * 0xCD9E_8D57;
            c0[i] = (b >> 32) as u32 ^ c1[i] ^ key[0];
            c1[i] = b as u32;
            c2[i] = (a >> 32) as u32 ^ c3[i] ^ key[1];
            c3[i] = a as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    core::array::from_fn(|i| lanes[i % 4][i / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the authors' Random123 distribution.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// The packing is part of the protocol: a change would change every rollout.
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
    fn words_in_bulk_are_those_one_by_one() {
        let streams = Streams::new(3, Purpose::Shuffle);
        // From the middle of a block, and over the change of keys.
        for start in [0u64, 3, 4, 262_144 - 40, 262_144 - 1, 262_144, 1_000_000] {
            let mut one_by_one = streams.at(SlotId(1), 2, 3, 4);
            for _ in 0..start {
                one_by_one.next_u32();
            }
            let mut skipped = streams.at(SlotId(1), 2, 3, 4);
            skipped.skip(start);
            let (mut items, mut swapped): (Vec<u32>, Vec<u32>) = ((0..300).collect(), (0..300).collect());
            one_by_one.shuffle(&mut items);
            for (item, partner) in (1..300).rev().zip(skipped.partners(300)) {
                swapped.swap(item, partner as usize);
            }
            assert_eq!(swapped, items, "from {start}");
            assert_eq!(skipped.next_u64(), one_by_one.next_u64(), "from {start}");
        }
        assert_eq!(streams.at(SlotId(0), 0, 0, 0).partners(0), [0; 0]);
    }

    #[test]
    fn a_long_stream_does_not_repeat() {
        // The other seed makes a key of zeros.
        for seed in [7, 0u64.wrapping_sub(6u64.wrapping_mul(0x9E37_79B9_7F4A_7C15))] {
            let mut rng = Streams::new(seed, Purpose::Shuffle).at(SlotId(3), 2, 1, 5);
            let first: Vec<u32> = (0..8).map(|_| rng.next_u32()).collect();
            rng.skip(262_144 - 8);
            let later: Vec<u32> = (0..8).map(|_| rng.next_u32()).collect();
            assert_ne!(later, first);
        }
    }

    #[test]
    fn conversions_stay_below_one() {
        assert_eq!(unit_f32(u32::MAX), 1.0 - f32::EPSILON / 2.0);
        assert_eq!(unit_f32(255), 0.0);
        let mut rng = Streams::new(0, Purpose::Action).at(SlotId(0), 0, 0, 0);
        assert!((0..1000).map(|_| rng.uniform_f64()).all(|x| (0.0..1.0).contains(&x)));
    }

    #[test]
    fn below_is_even_and_in_range() {
        let mut rng = Streams::new(1, Purpose::Shuffle).at(SlotId(0), 0, 0, 0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| n.abs_diff(10_000) < 400), "{counts:?}");
        assert_eq!(rng.below(0), 0);
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

    /// Moments, and how often some limits are passed.
    #[test]
    fn normal_and_exponential_follow_their_laws() {
        let mut rng = Streams::new(2, Purpose::Action).at(SlotId(0), 0, 0, 0);
        let n = 60_000;
        let share = |xs: &[f64], limit: f64| xs.iter().filter(|x| **x > limit).count() as f64 / n as f64;
        let mean = |xs: &[f64], power: i32| xs.iter().map(|x| x.powi(power)).sum::<f64>() / n as f64;
        let xs: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        for (power, want, within) in [(1, 0.0, 0.015), (2, 1.0, 0.025), (3, 0.0, 0.06), (4, 3.0, 0.2)] {
            assert!((mean(&xs, power) - want).abs() < within, "moment {power}: {}", mean(&xs, power));
        }
        for (limit, want) in [(-1.0, 0.841_345), (0.5, 0.308_538), (2.0, 0.022_750)] {
            assert!((share(&xs, limit) - want).abs() < 0.007, "beyond {limit}: {}", share(&xs, limit));
        }
        let mut rng = Streams::new(3, Purpose::Action).at(SlotId(0), 0, 0, 0);
        let xs: Vec<f64> = (0..n).map(|_| rng.exponential()).collect();
        for (limit, want) in [(-1e-300, 1.0), (0.5, 0.606_531), (2.0, 0.135_335)] {
            assert!((share(&xs, limit) - want).abs() < 0.007, "beyond {limit}: {}", share(&xs, limit));
        }
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

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Streams::new(1, Purpose::Shuffle).at(SlotId(0), 0, 0, 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}

//! Draws numbers of all kinds from the words of a stream.

use super::{Rng, philox::BULK};
use crate::{math, prelude::*};

impl Rng {
    /// Returns the next 64 bits: high word first.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        let high = self.next_u32();
        (high as u64) << 32 | self.next_u32() as u64
    }

    /// Returns a uniform number in [0, 1), a multiple of 2^-24.
    #[inline]
    pub const fn uniform_f32(&mut self) -> f32 {
        unit_f32(self.next_u32())
    }

    /// Returns a uniform number in [0, 1), a multiple of 2^-53.
    #[inline]
    pub const fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a uniform number in [low, high).
    #[inline]
    pub const fn uniform_in(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform_f64()
    }

    /// Returns a uniform number in 0..n, without bias (Lemire: "Fast random integer generation in an interval", 2019). 0 for
    /// n = 0.
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

    /// Returns a uniform number in 0..n, without bias, by the same method with words of 64 bits. 0 for n = 0.
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

    /// Returns a normally distributed number with mean 0 and standard deviation 1; at most 8.6 from 0.
    ///
    /// Always uses four words (Box and Muller, 1958; the sine is not used).
    pub fn normal(&mut self) -> f64 {
        let radius = math::sqrt_f64(2.0 * self.exponential());
        radius * math::sin_cos(core::f64::consts::TAU * self.uniform_f64()).1
    }

    /// Returns an exponentially distributed number with mean 1; at most 36.8. Uses two words.
    pub fn exponential(&mut self) -> f64 {
        // In (0, 1], so that the logarithm is finite.
        let u = 1.0 - self.uniform_f64();
        // Avoids a negative zero.
        0.0 - math::log_f64(u)
    }

    /// Shuffles a slice (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let partner = match u32::try_from(i + 1) {
                Ok(n) => self.below(n) as usize,
                Err(_) => self.below_u64(i as u64 + 1) as usize,
            };
            items.swap(i, partner);
        }
    }

    /// Returns the partners that [`shuffle`](Self::shuffle) of `n` items swaps with the items `n - 1`, `n - 2`, … 1, in this
    /// order.
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
            // See `below` for the explanation.
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

/// Converts a word to [0, 1) by its upper 24 bits.
#[inline(always)]
#[must_use]
pub const fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    #[test]
    fn words_in_bulk_are_those_one_by_one() {
        let streams = Streams::new(3, Purpose::Shuffle);
        // From the middle of a block, and across the change of keys.
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

    /// Checks moments, and how often the numbers exceed some limits.
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
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Streams::new(1, Purpose::Shuffle).at(SlotId(0), 0, 0, 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}

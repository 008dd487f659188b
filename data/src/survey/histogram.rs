//! Implements a histogram of numbers with an unknown range.

use std::collections::BTreeMap;

use rollmesh_core::math::floor_f64;
use serde::{Deserialize, Serialize};

/// Bins of equal width, a power of two, which doubles whenever there would be too many: the size is bounded for any input.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    width: f64,
    /// Bins by number; each starts at `number * width`.
    bins: BTreeMap<i64, u64>,
}

/// A row of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Its lower bound.
    pub from: f64,
    /// Its upper bound, exclusive.
    pub to: f64,
    /// Number of values in it.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { width: Self::FINEST, bins: BTreeMap::new() }
    }
}

impl Histogram {
    const FINEST: f64 = 1.0 / 1024.0;
    const MOST_BINS: i64 = 256;
    /// 2^52.
    const EXACT: f64 = (1u64 << 52) as f64;

    /// Counts a number; ignores numbers that are not finite.
    pub(super) fn add(&mut self, number: f64) {
        if !number.is_finite() {
            return;
        }
        // Bin numbers must remain distinct integers that can be doubled.
        while (number / self.width).abs() >= Self::EXACT {
            self.coarsen();
        }
        *self.bins.entry(floor_f64(number / self.width) as i64).or_default() += 1;
        while self.span() > Self::MOST_BINS {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        self.width *= 2.0;
        let mut merged = BTreeMap::new();
        self.bins.iter().for_each(|(bin, count)| *merged.entry(bin.div_euclid(2)).or_default() += count);
        self.bins = merged;
    }

    fn span(&self) -> i64 {
        let (first, last) = (self.bins.first_key_value(), self.bins.last_key_value());
        first.zip(last).map_or(0, |((first, _), (last, _))| last - first + 1)
    }

    /// Returns at most this number of rows, including empty ones between others.
    pub(super) fn rows(&self, most: i64) -> Vec<Bin> {
        let mut coarse = self.clone();
        while coarse.span() > most.max(1) {
            coarse.coarsen();
        }
        let Some((&first, _)) = coarse.bins.first_key_value() else { return Vec::new() };
        let bin = |number: i64| Bin {
            from: number as f64 * coarse.width,
            to: (number + 1) as f64 * coarse.width,
            count: coarse.bins.get(&number).copied().unwrap_or(0),
        };
        (first..first + coarse.span()).map(bin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_counted_in_its_bin() {
        let mut histogram = Histogram::default();
        (0..1000).for_each(|i| histogram.add(f64::from(i) - 100.0));
        let rows = histogram.rows(16);
        assert!(rows.len() <= 16 && rows.iter().map(|bin| bin.count).sum::<u64>() == 1000);
        assert!(rows.windows(2).all(|pair| pair[0].to == pair[1].from));
        let row = rows.iter().find(|bin| bin.from == 0.0).unwrap();
        assert_eq!(row.count as f64, row.to - row.from);
    }

    #[test]
    fn nothing_is_too_large() {
        let mut histogram = Histogram::default();
        [f64::MAX, f64::MIN, 0.0, f64::NAN].into_iter().for_each(|number| histogram.add(number));
        assert_eq!(histogram.rows(16).iter().map(|bin| bin.count).sum::<u64>(), 3);
        assert_eq!(Histogram::default().rows(16), []);
    }
}

//! Weights whose values have 16 bits (IEEE 754 binary16). Written out, so that every target rounds alike.

use super::{FILTER_PREFIX, Tensor, Weights};

/// The largest value of a 16-bit float.
const MAX: f32 = 65_504.0;

/// Rounds to the nearest 16-bit float, ties to even; finite values beyond the range become the largest.
pub(crate) fn to_half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let bits = value.to_bits() & 0x7fff_ffff;
    let magnitude = if f32::from_bits(bits) >= MAX {
        0x7bff
    } else if bits < 0x3880_0000 {
        // Below 2^-14 the values are multiples of 2^-24: the addition rounds to one, in the lowest bits of the sum.
        (f32::from_bits(bits) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        // Moves the exponent's bias from 127 to 15, and rounds 13 bits away; a carry moves into the exponent.
        (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13
    };
    sign | (magnitude as u16).min(0x7bff)
}

/// Returns the value of a 16-bit float; the exponents of infinities and NaN give NaN.
pub(crate) fn from_half(half: u16) -> f32 {
    let (sign, bits) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff));
    let magnitude = match bits >> 10 {
        0 => (bits as f32 * (1.0 / 16_777_216.0)).to_bits(),
        31 => f32::NAN.to_bits(),
        _ => (bits << 13) + (112 << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// Returns whether a 16-bit float has exactly this value.
pub(crate) fn is_half(value: f32) -> bool {
    from_half(to_half(value)).to_bits() == value.to_bits()
}

impl Weights {
    /// Returns weights with every value rounded to 16 bits, except for the statistics of observation filters.
    #[must_use]
    pub fn in_halves(&self) -> Self {
        let is_of_filter = |name: &str| name.split('/').next_back().is_some_and(|name| name.starts_with(FILTER_PREFIX));
        let round = |tensor: &Tensor| match is_of_filter(&tensor.name) {
            true => tensor.clone(),
            false => Tensor {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                values: tensor.values.iter().map(|value| from_half(to_half(*value))).collect(),
            },
        };
        Self { version: self.version, tensors: self.tensors.iter().map(round).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::WeightsVersion, prelude::*};

    #[test]
    fn every_half_keeps_its_bits() {
        for half in (0..0x7c00).chain(0x8000..0xfc00) {
            assert_eq!(to_half(from_half(half)), half, "{half:#x}");
        }
        assert!([0x7c00, 0x7c01, 0xfc00].iter().all(|half| from_half(*half).is_nan()));
    }

    #[test]
    fn values_between_two_halves_go_to_the_nearest_and_ties_to_the_even_one() {
        for half in 0..0x7bff_u16 {
            let (low, high) = (from_half(half), from_half(half + 1));
            let middle = low + (high - low) / 2.0;
            let even = if half % 2 == 0 { half } else { half + 1 };
            assert_eq!(to_half(middle), even, "{half:#x}");
            assert_eq!(to_half(f32::from_bits(middle.to_bits() - 1)), half, "{half:#x}");
            assert_eq!(to_half(-f32::from_bits(middle.to_bits() + 1)), 0x8000 | (half + 1), "{half:#x}");
        }
        assert_eq!([65_504.0, 65_530.0, 1e30].map(to_half), [0x7bff; 3]);
        assert_eq!([1e-9, -1e-9].map(to_half), [0, 0x8000]);
        assert!(is_half(0.5) && !is_half(0.1) && !is_half(1e-9) && !is_half(1e6));
    }

    #[test]
    fn statistics_of_filters_keep_their_values() {
        let tensor = |name: &str| Tensor { name: name.into(), shape: vec![1], values: vec![0.1] };
        let names = ["a/filter.mean", "filter.mean", "policy.0.bias", "filter/policy.0.bias"];
        let weights = Weights::new(WeightsVersion(3), names.map(tensor).to_vec()).unwrap().in_halves();
        let kept = names.map(|name| weights.tensor(name).unwrap().values[0] == 0.1);
        assert_eq!((weights.version(), kept), (WeightsVersion(3), [true, true, false, false]));
    }
}

//! Implements numbers that neither overflow nor underflow.

use core::ops::{Add, Div, Mul};

/// A finite number, as `mantissa * 2^exponent`.
///
/// Products over long episodes exceed the range of doubles, though the results computed from them do not. These numbers
/// multiply and divide like doubles, with the same rounding, wherever doubles stay in their normal range. A nonzero mantissa
/// is between 1 and 2, or between -2 and -1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scaled {
    mantissa: f64,
    exponent: i64,
}

/// Bits of a double that hold its fraction.
const FRACTION_BITS: u32 = 52;
/// The stored exponent of 1.
const BIAS: i64 = 1023;

impl Scaled {
    pub(super) const ZERO: Self = Self { mantissa: 0.0, exponent: 0 };
    pub(super) const ONE: Self = Self { mantissa: 1.0, exponent: 0 };

    /// Creates a finite number.
    pub(super) fn new(value: f64) -> Self {
        Self { mantissa: value, exponent: 0 }.normal()
    }

    pub(super) fn is_zero(self) -> bool {
        self.mantissa == 0.0
    }

    pub(super) fn exponent(self) -> i64 {
        self.exponent
    }

    /// Returns the number times `2^exponent`.
    pub(super) fn scaled_by(self, exponent: i64) -> Self {
        Self { exponent: self.exponent.saturating_add(exponent), ..self }.normal()
    }

    /// Returns the double nearest to the number times `2^-scale`: infinite or 0 if it exceeds their range.
    pub(super) fn at_scale(self, scale: i64) -> f64 {
        // Uses two steps, so that a subnormal number is rounded once: the first one is exact.
        let exponent = self.exponent.saturating_sub(scale).clamp(-2200, 2200);
        let first = exponent.clamp(-1000, 1000);
        let rest = exponent - first;
        let last = rest.clamp(-1000, 1000);
        self.mantissa * power_of_two(first) * power_of_two(last) * power_of_two(rest - last)
    }

    fn normal(self) -> Self {
        if self.mantissa == 0.0 {
            return Self::ZERO;
        }
        let lift = if self.mantissa.abs() < f64::MIN_POSITIVE { 54 } else { 0 };
        let bits = (self.mantissa * power_of_two(lift)).to_bits();
        let stored = ((bits >> FRACTION_BITS) & 0x7ff) as i64;
        let mantissa = f64::from_bits(bits & !(0x7ff << FRACTION_BITS) | (BIAS as u64) << FRACTION_BITS);
        Self { mantissa, exponent: self.exponent.saturating_add(stored - BIAS - lift) }
    }
}

/// Returns `2^exponent`, for exponents of normal doubles.
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + BIAS) as u64) << FRACTION_BITS)
}

/// Adds on the scale of the larger one.
impl Add for Scaled {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        if self.is_zero() || other.is_zero() {
            return if self.is_zero() { other } else { self };
        }
        let exponent = self.exponent.max(other.exponent);
        Self::new(self.at_scale(exponent) + other.at_scale(exponent)).scaled_by(exponent)
    }
}

impl Mul for Scaled {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let exponent = self.exponent.saturating_add(other.exponent);
        Self { mantissa: self.mantissa * other.mantissa, exponent }.normal()
    }
}

/// Divides by a nonzero number.
impl Div for Scaled {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let exponent = self.exponent.saturating_sub(other.exponent);
        Self { mantissa: self.mantissa / other.mantissa, exponent }.normal()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn beyond_the_range_of_doubles() {
        let huge = Scaled::new(1e300) * Scaled::new(1e300);
        assert_eq!(huge.at_scale(0), f64::INFINITY);
        assert_eq!((huge / Scaled::new(1e300)).at_scale(0), 1e300);
        let tiny = Scaled::new(1e-300) / Scaled::new(1e300);
        assert_eq!(tiny.at_scale(0), 0.0);
        assert!(((tiny * huge).at_scale(0) - 1.0).abs() < 1e-15);
        let smallest = f64::from_bits(1);
        assert_eq!(Scaled::new(smallest).at_scale(0), smallest);
        assert_eq!(Scaled::new(-3.0).at_scale(1), -1.5);
        assert!(Scaled::new(-0.0).is_zero() && (Scaled::new(0.0) * huge).is_zero());
    }

    proptest! {
        #[test]
        fn as_doubles_do(a in -1e100f64..1e100, b in 1e-100f64..1e100) {
            prop_assert_eq!((Scaled::new(a) * Scaled::new(b)).at_scale(0), a * b);
            prop_assert_eq!((Scaled::new(a) / Scaled::new(b)).at_scale(0), a / b);
            prop_assert_eq!((Scaled::new(a) + Scaled::new(b)).at_scale(0), a + b);
            prop_assert_eq!(Scaled::new(a).at_scale(0), a);
        }
    }
}

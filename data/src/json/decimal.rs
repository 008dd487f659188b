//! Decimal numbers of up to 19 digits to the nearest 64-bit float.

/// The most digits behind the point.
const MAX_FRACTION: usize = 27;

/// For each number of digits behind the point, 10 to the power of minus that without its power of two: the upper 128 bits
/// of it, the first of which is set, rounded up where they are not exact.
const POWERS: [u128; MAX_FRACTION + 1] = powers();

const fn powers() -> [u128; MAX_FRACTION + 1] {
    let mut powers = [1 << 127; MAX_FRACTION + 1];
    let (mut n, mut five) = (1, 1u128);
    while n <= MAX_FRACTION {
        five *= 5;
        // 2 to the power of `bits`, divided digit by digit.
        let bits = u128::BITS - (five - 1).leading_zeros() + 127;
        let (mut quotient, mut rest, mut bit) = (0u128, 1u128, 0);
        while bit < bits {
            rest <<= 1;
            quotient <<= 1;
            if rest >= five {
                rest -= five;
                quotient |= 1;
            }
            bit += 1;
        }
        powers[n] = quotient + 1;
        n += 1;
    }
    powers
}

/// `value` with the point before its last `fraction` digits, rounded once, ties to even. None where that takes longer.
///
/// Lemire: "Number parsing at a gigabyte per second", Software: Practice and Experience 2021, section 5: the product
/// with an approximate power has enough bits right to round it, in the range of these powers always.
#[inline(always)]
pub(super) fn decimal(value: u64, fraction: usize) -> Option<f64> {
    let power = *POWERS.get(fraction)?;
    if value == 0 {
        return Some(0.0);
    }
    if fraction == 0 {
        return Some(value as f64);
    }
    let shift = value.leading_zeros();
    let value = u128::from(value << shift);
    let mut product = value * (power >> 64);
    // The bits below those of the result, when they are all set, may be short of a carry.
    if (product >> 64) as u64 & 0x1FF == 0x1FF {
        product = product.wrapping_add((value * (power & u128::from(u64::MAX))) >> 64);
    }
    let (high, low) = ((product >> 64) as u64, product as u64);
    let upper = (high >> 63) as u32;
    // One bit more than the result has.
    let below = upper + 9;
    let mut mantissa = high >> below;
    // A tie: the product is exact, for which powers are too large beyond 5 to the power of 4.
    if low <= 1 && fraction <= 4 && mantissa & 3 == 1 && mantissa << below == high {
        mantissa &= !1;
    }
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    // Of 2: that of the power, of the product and of the shift.
    let exponent = 1023 + 63 + upper - shift - ((fraction as u32 * 217_706 + 65_535) >> 16);
    // Rounded up to the next power of two it has one bit more, which counts as one in the exponent.
    Some(f64::from_bits((u64::from(exponent - 1) << 52) + mantissa))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expected(value: u64, fraction: usize) -> f64 {
        format!("{value}e-{fraction}").parse().unwrap()
    }

    #[test]
    fn ties_ends_and_all_powers() {
        let values = [1, 5, 25, (1 << 53) - 1, (1 << 53) + 1, (1 << 54) + 2, 9_007_199_254_740_993, u64::MAX];
        for value in values.into_iter().chain((0..64).map(|bit| 1 << bit)).chain((1..64).map(|bit| (1 << bit) - 1)) {
            for fraction in 0..=MAX_FRACTION {
                assert_eq!(decimal(value, fraction), Some(expected(value, fraction)), "{value}e-{fraction}");
            }
        }
        assert_eq!(decimal(0, 3), Some(0.0));
        assert_eq!(decimal(1, MAX_FRACTION + 1), None);
    }

    proptest! {
        #[test]
        fn is_what_the_standard_library_reads(value: u64, digits in 1u32..20, fraction in 0..=MAX_FRACTION) {
            let value = value % 10u64.saturating_pow(digits);
            prop_assert_eq!(decimal(value, fraction).map(f64::to_bits), Some(expected(value, fraction).to_bits()));
        }

        /// Halves of the last place, or nearly.
        #[test]
        fn ties_round_to_even(odd in (1u64 << 53)..(1 << 54), fraction in 1usize..5, more in -1i64..=1) {
            let value = ((odd | 1) * 5u64.pow(fraction as u32)).saturating_add_signed(more);
            prop_assert_eq!(decimal(value, fraction).map(f64::to_bits), Some(expected(value, fraction).to_bits()));
        }
    }
}

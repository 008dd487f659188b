//! Decimal numbers with few digits before the point, as short as they can be and still the same numbers.

use super::digits::{ascii, eight, small, three, without_zeros};

/// Bytes that any number takes at most, with room to spare.
pub(super) const ROOM: usize = 32;

/// Digits behind the point that are computed.
const FRACTION: u32 = 19;

/// Binary exponents of the last place of numbers from 2 to the power of -11 to below 2 to the power of 16.
const FIRST: i32 = -63;
const LAST: i32 = -37;

/// What numbers have in common whose last place is 2 to the power of `e`.
#[derive(Clone, Copy)]
struct Scale {
    /// 5 to the power of `j`, where 10 to the power of -`j` is the least power of ten that is more than the last place.
    five: u64,
    /// The last place and 10 to the power of `j`, without the fives, are 2 to the power of minus that and one more.
    shift: u32,
    /// 10 to the power of the digits that are missing to [`FRACTION`] if there are `j + 1`.
    fill: u64,
}

const SCALES: [Scale; (LAST - FIRST + 1) as usize] = scales();

const fn scales() -> [Scale; (LAST - FIRST + 1) as usize] {
    let mut scales = [Scale { five: 0, shift: 0, fill: 0 }; (LAST - FIRST + 1) as usize];
    let mut e = FIRST;
    while e <= LAST {
        // The logarithm of 2 to the base of 10 is 78913 / 2^18, and a little more.
        let j = -((e * 78_913) >> 18) - 1;
        scales[(e - FIRST) as usize] =
            Scale { five: 5u64.pow(j as u32), shift: (1 - e - j) as u32, fill: 10u64.pow(FRACTION - 1 - j as u32) };
        e += 1;
    }
    scales
}

/// Writes the shortest decimal number that is this one to the nearest 64-bit float, and of those the nearest one, with a
/// point in it; returns how many bytes it takes. None where that takes longer: for numbers that are too large or too small,
/// and for powers of two.
///
/// After Giulietti's "The Schubfach way to render doubles" (2020): of the multiples of a power of ten that is more
/// than the last place, at most one rounds to the number, and if none does, the nearest multiple of a tenth of it is
/// wanted. In this range all products are exact.
#[inline(always)]
pub(super) fn fixed(number: f64, room: &mut [u8; ROOM]) -> Option<usize> {
    const BITS: u32 = 52;
    let bits = number.to_bits();
    let (exponent, below) = ((bits >> BITS) as i32 & 0x7FF, bits & ((1 << BITS) - 1));
    let Scale { five, shift, fill } = *SCALES.get(usize::try_from(exponent - 1_075 - FIRST).ok()?)?;
    // Those before a power of two are nearer to it than those behind.
    if below == 0 {
        return None;
    }
    // Twice the number in multiples of that power of ten, as a fraction; its last place is `five`, twice. What it is compared
    // with is odd and it is even, so it makes no difference whether ends belong to what rounds to the number.
    let twice = u128::from(below | (1 << BITS)) * u128::from(2 * five);
    let (one, multiple) = (1u64 << shift, (twice >> shift) as u64);
    let rest = twice as u64 & (one - 1);
    let (down, up) = (rest < five, rest + five > one);
    // To the nearest tenth; from the middle between two of them to the even one.
    let tenths = ((10 * rest + one / 2) >> shift) - u64::from(4 * rest == one);
    let tenths = if down | up { 10 * u64::from(up) } else { tenths };
    // Digits before the point are those of the number: no other whole number rounds to it.
    let whole = number.abs() as u64;
    // The powers of ten that do not fit into 64 bits cancel out.
    let fraction = (10 * multiple + tenths).wrapping_mul(fill).wrapping_sub(whole.wrapping_mul(10u64.pow(FRACTION)));
    let (front, back) = (fraction / 100_000_000, eight(fraction % 100_000_000));
    let (first, middle) = (three(front / 100_000_000), eight(front % 100_000_000));

    let mut start = (bits >> 63) as usize;
    *room.first_mut()? = b'-';
    if whole >= 10 {
        let (text, len) = small(whole);
        *room.get_mut(start..)?.first_chunk_mut()? = text;
        start += len - 1;
    }
    let body: &mut [u8; 24] = room.get_mut(start..)?.first_chunk_mut()?;
    body[0] = b'0' + (whole % 10) as u8;
    body[1] = b'.';
    body[2..10].copy_from_slice(&ascii(first));
    body[5..13].copy_from_slice(&ascii(middle));
    body[13..21].copy_from_slice(&ascii(back));
    let digits = match (middle, back) {
        (0, 0) => without_zeros(first).max(1),
        (_, 0) => 3 + without_zeros(middle),
        _ => 11 + without_zeros(back),
    };
    Some(start + 2 + digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(number: f64) -> Option<String> {
        let mut room = [0; ROOM];
        fixed(number, &mut room).map(|len| String::from_utf8(room[..len].to_vec()).unwrap())
    }

    /// What takes longer says the same of all numbers.
    fn check(number: f64) {
        let expected = zmij::Buffer::new().format_finite(number).to_string();
        if let Some(text) = text(number) {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn numbers_in_range_and_no_others() {
        assert_eq!(text(0.1).as_deref(), Some("0.1"));
        assert_eq!(text(-1.451_824_188_232_421_9).as_deref(), Some("-1.4518241882324219"));
        assert_eq!(text(65_535.000_000_000_01).as_deref(), Some("65535.00000000001"));
        assert_eq!(text(3.0).as_deref(), Some("3.0"));
        for number in [0.0, -0.0, 1.0, -2.0, 65_536.0, 1e-4, 1e300, 1e-320, f64::NAN, f64::INFINITY, f64::MIN] {
            assert_eq!(text(number), None, "{number}");
        }
    }

    #[test]
    fn ends_of_all_ranges() {
        for exponent in 1_075 + FIRST..=1_075 + LAST {
            let first = (exponent as u64) << 52;
            for below in [0, 1, 2, 3, (1 << 52) - 1, (1 << 52) - 2, 1 << 51, 1 << 29, 1 << 28] {
                check(f64::from_bits(first | below));
                check(-f64::from_bits(first | below));
            }
        }
    }

    #[test]
    fn few_digits_and_what_is_next_to_them() {
        for digits in 1..7u32 {
            for number in (1..1_000).chain([9_999, 12_345, 50_000, 99_999]) {
                let number = f64::from(number) / f64::from(10u32.pow(digits));
                check(number);
                check(f64::from_bits(number.to_bits() + 1));
                check(f64::from_bits(number.to_bits() - 1));
                check(f64::from(number as f32));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]

        #[test]
        fn is_what_takes_longer(exponent in 1_075 + FIRST..=1_075 + LAST, below in 0u64..(1 << 52), few in 0u32..52) {
            let number = |below: u64| f64::from_bits(((exponent as u64) << 52) | below);
            check(number(below));
            check(-number((below >> few) << few));
        }
    }
}

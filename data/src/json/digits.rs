//! Digits of whole numbers, eight at a time.

/// What turns eight digits into their characters.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight digits of a number below 10 to the power of 8, the first one in the lowest byte: fours, pairs, and all of them,
/// with multiplications that divide.
#[inline(always)]
pub(super) fn eight(number: u64) -> u64 {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let upper = ((fours * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let pairs = upper | ((fours - 100 * upper) << 16);
    let upper = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    upper | ((pairs - 10 * upper) << 8)
}

/// The three digits of a number below 1,000, likewise.
#[inline(always)]
pub(super) fn three(number: u64) -> u64 {
    let hundreds = (number * 41) >> 12;
    let rest = number - 100 * hundreds;
    let tens = (rest * 103) >> 10;
    hundreds | (tens << 8) | ((rest - 10 * tens) << 16)
}

/// The characters of eight digits.
#[inline(always)]
pub(super) fn ascii(eight: u64) -> [u8; 8] {
    (eight | ZEROS).to_le_bytes()
}

/// How many of eight digits there are without the zeros at their end.
#[inline(always)]
pub(super) fn without_zeros(eight: u64) -> usize {
    8 - eight.leading_zeros() as usize / 8
}

/// The characters of a number below 10 to the power of 8, and how many of them there are; those behind are no digits.
#[inline(always)]
pub(super) fn small(number: u64) -> ([u8; 8], usize) {
    let eight = eight(number);
    // Zero has a digit, too.
    let zeros = (eight | (1 << 56)).trailing_zeros() / 8;
    (((eight | ZEROS) >> (8 * zeros)).to_le_bytes(), 8 - zeros as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        let ends = (0..8).flat_map(|n| [10u64.pow(n), 10u64.pow(n) - 1, 5 * 10u64.pow(n), 10u64.pow(n + 1) - 1]);
        for number in ends.chain((0..100_000_000).step_by(7_919)) {
            assert_eq!(ascii(eight(number)), *format!("{number:08}").as_bytes());
            let (text, len) = small(number);
            assert_eq!(text[..len], *number.to_string().as_bytes());
            let short = format!("{number:08}").trim_end_matches('0').len();
            assert_eq!(without_zeros(eight(number)), short, "{number}");
        }
        for number in 0..1_000 {
            assert_eq!(ascii(three(number))[..3], *format!("{number:03}").as_bytes());
        }
    }
}

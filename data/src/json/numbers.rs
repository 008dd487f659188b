//! Numbers of a line of JSON, eight digits at a time, with those that Python writes and JSON does not know.

use super::{RecordError, decimal::decimal, scan::Scanner};

/// Goes on with a number as long as there are digits; also says where they end. Wraps around above 19 digits.
#[inline]
fn digits(text: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk()).and_then(eight_digits) {
        value = value.wrapping_mul(100_000_000).wrapping_add(eight);
        at += 8;
    }
    while let Some(digit @ b'0'..=b'9') = text.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    (value, at)
}

/// The number that eight digits make, if they are such.
#[inline]
fn eight_digits(text: &[u8; 8]) -> Option<u64> {
    let word = Word::new(*text);
    (word.digits == 8).then(|| word.value())
}

/// Eight bytes that begin with digits.
struct Word {
    /// What the digits mean, the first one in the lowest byte.
    ones: u64,
    /// How many there are.
    digits: u32,
}

impl Word {
    #[inline]
    fn new(text: [u8; 8]) -> Self {
        let ones = u64::from_le_bytes(text) ^ 0x3030_3030_3030_3030;
        // A carry comes from a byte that is no digit, and only those above it hear of it.
        let others = (ones.wrapping_add(0x7676_7676_7676_7676) | ones) & 0x8080_8080_8080_8080;
        Self { ones, digits: others.trailing_zeros() / 8 }
    }

    /// The number that they make: zeros first, then pairs, then fours, then all at once.
    #[inline]
    fn value(&self) -> u64 {
        let ones = self.ones.unbounded_shl(64 - 8 * self.digits);
        let pairs = (ones.wrapping_mul(1 + (10 << 8)) >> 8) & 0x00FF_00FF_00FF_00FF;
        let fours = (pairs.wrapping_mul(1 + (100 << 16)) >> 16) & 0x0000_FFFF_0000_FFFF;
        fours.wrapping_mul(1 + (10_000 << 32)) >> 32
    }

    /// The byte behind them, if there is one.
    #[inline]
    fn behind(&self) -> u8 {
        (self.ones.unbounded_shr(8 * self.digits) as u8) ^ b'0'
    }

    /// 10 to the power of the digits, by which a number grows that these are appended to.
    #[inline]
    fn power(&self) -> u64 {
        const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
        POWERS.get(self.digits as usize).copied().unwrap_or(1)
    }
}

/// A number that comes next, by its parts.
struct Number {
    negative: bool,
    /// All digits as one number, if there are at most 19.
    value: u64,
    digits: usize,
    /// Digits behind the point.
    fraction: usize,
    exponent: bool,
    /// Where it ends.
    end: usize,
}

impl Number {
    fn is_whole(&self) -> bool {
        self.fraction == 0 && !self.exponent
    }
}

impl Scanner<'_> {
    /// The parts of the number that comes next, if there is one as JSON writes them.
    #[inline]
    fn look_at_number(&self) -> Option<Number> {
        let negative = self.text.get(self.at) == Some(&b'-');
        let start = self.at + usize::from(negative);
        let (mut value, mut end) = digits(self.text, start, 0);
        let whole = end - start;
        if whole == 0 || whole > 1 && self.text.get(start) == Some(&b'0') {
            return None;
        }
        let mut fraction = 0;
        if self.text.get(end) == Some(&b'.') {
            let point = end;
            (value, end) = digits(self.text, point + 1, value);
            fraction = end - point - 1;
            if fraction == 0 {
                return None;
            }
        }
        let exponent = matches!(self.text.get(end), Some(b'e' | b'E'));
        if exponent {
            let sign = usize::from(matches!(self.text.get(end + 1), Some(b'+' | b'-')));
            let first = end + 1 + sign;
            end = digits(self.text, first, 0).1;
            if end == first {
                return None;
            }
        }
        Some(Number { negative, value, digits: whole + fraction, fraction, exponent, end })
    }

    /// A whole number of 64 bits; none, and nothing is passed over, for any other.
    #[inline]
    pub(super) fn whole(&mut self) -> Option<i64> {
        if let Some([digit @ b'0'..=b'9', b',' | b']', ..]) = self.text.get(self.at..) {
            self.at += 1;
            return Some(i64::from(digit - b'0'));
        }
        if let Some(value) = self.short_whole() {
            return Some(value);
        }
        let number = self.look_at_number().filter(Number::is_whole)?;
        let value = if number.digits <= 18 {
            let value = number.value as i64;
            if number.negative { -value } else { value }
        } else {
            self.chars(number.end)?.parse().ok()?
        };
        self.at = number.end;
        Some(value)
    }

    /// The text up to there.
    fn chars(&self, end: usize) -> Option<&str> {
        std::str::from_utf8(self.text.get(self.at..end)?).ok()
    }

    #[inline]
    fn word(&self, at: usize) -> Option<Word> {
        self.text.get(at..)?.first_chunk().copied().map(Word::new)
    }

    /// A whole number of a few digits.
    #[inline]
    fn short_whole(&mut self) -> Option<i64> {
        let word = self.word(self.at)?;
        let end = self.at + word.digits as usize;
        let is_short = (1..8).contains(&word.digits) && (word.ones & 0xFF != 0 || word.digits == 1);
        if !is_short || !matches!(self.text.get(end), Some(b',' | b']')) {
            return None;
        }
        self.at = end;
        Some(word.value() as i64)
    }

    /// A number as most are that somebody has computed: a digit, the point, and eight or more digits. None, and nothing is
    /// passed over, for any other.
    #[inline(always)]
    pub(super) fn long_decimal(&mut self) -> Option<f64> {
        let negative = self.text.get(self.at) == Some(&b'-');
        let start = self.at + usize::from(negative);
        let text: &[u8; 26] = self.text.get(start..)?.first_chunk()?;
        let ([digit @ b'0'..=b'9', b'.'], rest) = text.split_first_chunk()? else { return None };
        let (first, rest) = rest.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        let [first, second, third] = [*first, *second, *rest.first_chunk()?].map(Word::new);
        // There are as many digits in the second word as there happen to be, which no branch should depend on.
        let is_long = second.digits == 8;
        let third = Word { digits: if is_long { third.digits } else { 0 }, ..third };
        let whole = u64::from(digit - b'0');
        let fraction = 8 + (second.digits + third.digits) as usize;
        let behind = if is_long { third.behind() } else { second.behind() };
        if first.digits < 8 || fraction > 18 + usize::from(whole == 0) || !matches!(behind, b',' | b']') {
            return None;
        }
        let value = (whole * 100_000_000 + first.value()) * second.power() + second.value();
        let value = decimal(value * third.power() + third.value(), fraction)?;
        self.at = start + 2 + fraction;
        // Signs come as they like: no branch.
        Some(f64::from_bits(value.to_bits() | (u64::from(negative) << 63)))
    }

    /// A number.
    pub(super) fn float(&mut self) -> Result<f64, RecordError> {
        let number = self.look_at_number().ok_or_else(|| self.error("a number"))?;
        let fast = if number.digits <= 19 && !number.exponent { decimal(number.value, number.fraction) } else { None };
        let value = match fast {
            Some(value) if number.negative => -value,
            Some(value) => value,
            None => self.chars(number.end).and_then(|text| text.parse().ok()).ok_or_else(|| self.error("a number"))?,
        };
        self.at = number.end;
        Ok(value)
    }

    /// A number that JSON does not know.
    pub(super) fn non_finite(&mut self) -> Option<f64> {
        if self.eat_word(b"NaN") {
            Some(f64::NAN)
        } else if self.eat_word(b"Infinity") {
            Some(f64::INFINITY)
        } else if self.eat_word(b"-Infinity") {
            Some(f64::NEG_INFINITY)
        } else {
            None
        }
    }
}

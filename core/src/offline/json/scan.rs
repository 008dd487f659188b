//! Tokens of a line of JSON, with the numbers that Python writes and JSON does not know.

use super::{RecordError, decimal::decimal};
use crate::prelude::*;

/// How deep values may be nested that are passed over.
const MAX_DEPTH: usize = 64;

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

#[derive(Clone)]
pub(super) struct Scanner<'a> {
    chars: &'a str,
    /// The same as bytes.
    text: &'a [u8],
    pub(super) at: usize,
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

impl<'a> Scanner<'a> {
    pub(super) fn new(chars: &'a str) -> Self {
        Self { chars, text: chars.as_bytes(), at: 0 }
    }

    pub(super) fn error(&self, expected: &'static str) -> RecordError {
        RecordError::NotJson { at: self.at, expected }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// The next byte that is no white space, which stays.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Passes over this byte, if it is next.
    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), RecordError> {
        if self.eat(byte) { Ok(()) } else { Err(self.error(expected)) }
    }

    /// Passes over a word, if it is next.
    pub(super) fn eat_word(&mut self, word: &[u8]) -> bool {
        let is_next = self.rest().starts_with(word);
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    /// The inside of a string that begins here, as it is written, and whether there are escapes in it.
    pub(super) fn raw_string(&mut self) -> Result<(&'a [u8], bool), RecordError> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        let mut escapes = false;
        loop {
            let rest = self.rest();
            let piece = rest.get(..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())).unwrap_or_default();
            // The least of them first, which takes no branches.
            if piece.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
                self.at += piece.iter().position(|byte| *byte < 0x20).unwrap_or_default();
                return Err(self.error("the end of a string"));
            }
            self.at += piece.len();
            match self.text.get(self.at) {
                Some(b'"') => {
                    let inside = self.since(start);
                    self.at += 1;
                    return Ok((inside, escapes));
                }
                Some(b'\\') => {
                    escapes = true;
                    self.at += 2;
                }
                _ => return Err(self.error("the end of a string")),
            }
        }
    }

    /// A string.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, RecordError> {
        let start = self.at;
        let (inside, escapes) = self.raw_string()?;
        if !escapes {
            let end = self.at.saturating_sub(1);
            let text = self.chars.get(end.saturating_sub(inside.len())..end);
            return text.map(Cow::Borrowed).ok_or_else(|| self.error("a string"));
        }
        let start =
            start + self.text.get(start..).unwrap_or_default().iter().position(|byte| *byte == b'"').unwrap_or(0);
        serde_json::from_slice(self.since(start)).map(Cow::Owned).map_err(|_| self.error("a string"))
    }

    /// The next member of an object that was begun: its name, with the value next; none at the object's end.
    pub(super) fn member(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>, RecordError> {
        if self.eat(b'}') {
            return Ok(None);
        }
        if !core::mem::take(first) {
            self.expect(b',', "',' or '}'")?;
        }
        self.peek();
        let name = self.string()?;
        self.expect(b':', "':'")?;
        self.peek();
        Ok(Some(name))
    }

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
            self.chars.get(self.at..number.end)?.parse().ok()?
        };
        self.at = number.end;
        Some(value)
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
        Some(if negative { -value } else { value })
    }

    /// A number.
    pub(super) fn float(&mut self) -> Result<f64, RecordError> {
        let number = self.look_at_number().ok_or_else(|| self.error("a number"))?;
        let fast = if number.digits <= 19 && !number.exponent { decimal(number.value, number.fraction) } else { None };
        let value = match fast {
            Some(value) if number.negative => -value,
            Some(value) => value,
            None => {
                let text = self.chars.get(self.at..number.end).unwrap_or_default();
                text.parse().map_err(|_| self.error("a number"))?
            }
        };
        self.at = number.end;
        Ok(value)
    }

    /// Passes over the comma after an item of a list if a number or a word follows.
    #[inline]
    pub(super) fn eat_comma(&mut self) -> bool {
        let next = match self.text.get(self.at..) {
            Some([b',', b' ', next, ..]) => (2, next),
            Some([b',', next, ..]) => (1, next),
            _ => return false,
        };
        let is_value = matches!(next.1, b'0'..=b'9' | b'-' | b't' | b'f' | b'N' | b'I');
        self.at += if is_value { next.0 } else { 0 };
        is_value
    }

    /// Passes over the end of a list and the beginning of the next one if a number or a word follows.
    #[inline]
    pub(super) fn eat_border(&mut self) -> bool {
        let is_border = matches!(self.text.get(self.at..), Some([b']', b',', b' ', b'[', b'0'..=b'9' | b'-', ..]));
        self.at += if is_border { 4 } else { 0 };
        is_border
    }

    /// How many times the text since `from` comes again here, without the last time.
    pub(super) fn repeats(&self, from: usize) -> usize {
        let (before, rest) = (self.text.get(from..).unwrap_or_default(), self.rest());
        let (before, rest) = (before.as_chunks::<32>(), rest.as_chunks::<32>());
        let chunks = before.0.iter().zip(rest.0).take_while(|(a, b)| a == b).count();
        let tail = |(chunks_of, tail): (&'a [[u8; 32]], &'a [u8])| chunks_of.get(chunks).map_or(tail, |c| c.as_slice());
        let more = tail(before).iter().zip(tail(rest)).take_while(|(a, b)| a == b).count();
        ((32 * chunks + more) / (self.at - from).max(1)).saturating_sub(1)
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

    /// Values in a row of so many dimensions whose first element comes next, as far as that is easy to say.
    pub(super) fn width(&self, depth: usize) -> Option<usize> {
        const NEAR: usize = 4 << 10;
        match depth {
            1 => Some(1),
            2 => {
                let rest = self.rest();
                let near = rest.get(..rest.len().min(NEAR)).unwrap_or_default();
                let row = near.get(..memchr::memchr(b']', near)?)?;
                Some(1 + row.iter().filter(|byte| **byte == b',').count())
            }
            _ => None,
        }
    }

    /// No more values than this come in a list of numbers: it holds neither strings nor objects, there is a comma between
    /// two values, and no value takes less than two bytes.
    pub(super) fn most_values(&self) -> usize {
        let rest = self.rest();
        let extent = memchr::memchr2(b'"', b'}', rest).unwrap_or(rest.len());
        let commas = rest.get(..extent).unwrap_or_default().iter().filter(|byte| **byte == b',').count();
        (commas + 1).min(extent / 2 + 1)
    }

    /// Passes over any value; says whether there is a number in it that JSON does not know.
    pub(super) fn skip(&mut self) -> Result<bool, RecordError> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<bool, RecordError> {
        if depth > MAX_DEPTH {
            return Err(self.error("a value that is nested less deeply"));
        }
        match self.peek() {
            Some(b'"') => {
                let start = self.at;
                let (_, escapes) = self.raw_string()?;
                // An escape may be none that there is.
                let valid = !escapes || serde_json::from_slice::<Cow<'_, str>>(self.since(start)).is_ok();
                if valid { Ok(false) } else { Err(self.error("a string")) }
            }
            Some(b'{') => {
                self.at += 1;
                let (mut first, mut odd) = (true, false);
                while self.member(&mut first)?.is_some() {
                    odd |= self.skip_nested(depth + 1)?;
                }
                Ok(odd)
            }
            Some(b'[') => {
                self.at += 1;
                let mut odd = false;
                if self.eat(b']') {
                    return Ok(odd);
                }
                loop {
                    odd |= self.skip_nested(depth + 1)?;
                    if self.eat(b']') {
                        return Ok(odd);
                    }
                    self.expect(b',', "',' or ']'")?;
                }
            }
            Some(b't') if self.eat_word(b"true") => Ok(false),
            Some(b'f') if self.eat_word(b"false") => Ok(false),
            Some(b'n') if self.eat_word(b"null") => Ok(false),
            Some(_) if self.non_finite().is_some() => Ok(true),
            Some(_) => self.float().map(|_| false),
            None => Err(self.error("a value")),
        }
    }
}

//! Tokens of a line of JSON, with the numbers that Python writes and JSON does not know.

use super::RecordError;
use crate::prelude::*;

/// How deep values may be nested that are passed over.
const MAX_DEPTH: usize = 64;

/// Powers of ten that are exact, as far as they are needed.
const POWERS: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Goes on with a number as long as there are digits; also says where they end. Wraps around above 19 digits.
#[inline]
fn digits(text: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some(digit @ b'0'..=b'9') = text.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    (value, at)
}

#[derive(Clone)]
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
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
            let len = rest.iter().position(|byte| matches!(byte, b'"' | b'\\') || *byte < 0x20);
            self.at += len.unwrap_or(rest.len());
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
            return core::str::from_utf8(inside).map(Cow::Borrowed).map_err(|_| self.error("text in UTF-8"));
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

    /// A whole number of at most 18 digits; none, and nothing is passed over, for anything else.
    #[inline]
    pub(super) fn short_whole(&mut self) -> Option<i64> {
        let rest = self.rest();
        let negative = rest.first() == Some(&b'-');
        let start = usize::from(negative);
        let (value, end) = digits(rest, start, 0);
        let len = end - start;
        let ends = !matches!(rest.get(end), Some(b'.' | b'e' | b'E' | b'+' | b'-'));
        if len == 0 || len > 18 || !ends || (len > 1 && rest.get(start) == Some(&b'0')) {
            return None;
        }
        self.at += end;
        let value = value as i64;
        Some(if negative { -value } else { value })
    }

    /// A number with a point and at most 15 digits, whose quotient with a power of ten is exact up to the one rounding of
    /// the division; none, and nothing is passed over, for anything else. (Clinger: "How to read floating point numbers
    /// accurately", PLDI 1990.)
    #[inline]
    pub(super) fn short_float(&mut self) -> Option<f64> {
        let rest = self.rest();
        let negative = rest.first() == Some(&b'-');
        let start = usize::from(negative);
        let (whole, point) = digits(rest, start, 0);
        if rest.get(point) != Some(&b'.') || point == start || (point > start + 1 && rest.get(start) == Some(&b'0')) {
            return None;
        }
        let (value, end) = digits(rest, point + 1, whole);
        let fraction = end - point - 1;
        let ends = !matches!(rest.get(end), Some(b'.' | b'e' | b'E' | b'+' | b'-'));
        let power = POWERS.get(fraction).filter(|_| fraction > 0 && ends && end - start <= 16)?;
        self.at += end;
        let value = value as f64 / power;
        Some(if negative { -value } else { value })
    }

    /// A number, as it is written; whether it is a whole one.
    #[inline]
    pub(super) fn number(&mut self) -> Result<(&'a str, bool), RecordError> {
        let rest = self.rest();
        let len = rest.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let token = rest.get(..len.unwrap_or(rest.len())).unwrap_or_default();
        let digits = token.strip_prefix(b"-").unwrap_or(token);
        let leading_zero = matches!(digits, [b'0', b'0'..=b'9', ..]);
        let is_whole = digits.iter().all(u8::is_ascii_digit);
        // What the parser of numbers takes, but JSON does not.
        let point = digits.iter().position(|byte| *byte == b'.');
        let bare_point = point.is_some_and(|at| !digits.get(at + 1).is_some_and(u8::is_ascii_digit));
        if !digits.first().is_some_and(u8::is_ascii_digit) || leading_zero || bare_point {
            return Err(self.error("a number"));
        }
        let text = core::str::from_utf8(token).map_err(|_| self.error("a number"))?;
        self.at += token.len();
        Ok((text, is_whole))
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
                let (inside, escapes) = self.raw_string()?;
                // An escape may be none that there is.
                let valid = if escapes {
                    serde_json::from_slice::<Cow<'_, str>>(self.since(start)).is_ok()
                } else {
                    core::str::from_utf8(inside).is_ok()
                };
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
            Some(_) => {
                let (text, _) = self.number()?;
                if text.parse::<f64>().is_ok() { Ok(false) } else { Err(self.error("a number")) }
            }
            None => Err(self.error("a value")),
        }
    }
}

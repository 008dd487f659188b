//! Reads numbers in a line of JSON, including Python's non-standard ones.

use super::{RecordError, scan::Scanner};

impl<'a> Scanner<'a> {
    /// Returns the next number in JSON's syntax, and whether it is whole, without advancing.
    #[inline]
    fn number(&self) -> Option<(&'a [u8], bool)> {
        let rest = self.rest();
        let digits = |from: usize| {
            let digits = rest.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count();
            (digits > 0).then_some(from + digits)
        };
        let start = usize::from(rest.first() == Some(&b'-'));
        let mut end = digits(start)?;
        if end > start + 1 && rest.get(start) == Some(&b'0') {
            return None;
        }
        let whole = end;
        if rest.get(end) == Some(&b'.') {
            end = digits(end + 1)?;
        }
        if matches!(rest.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            end = digits(end + 1 + sign)?;
        }
        Some((rest.get(..end)?, end == whole))
    }

    /// Reads a whole number of 64 bits; for any other, returns none without advancing.
    #[inline]
    pub(super) fn whole(&mut self) -> Option<i64> {
        if let Some([digit @ b'0'..=b'9', b',' | b']', ..]) = self.text.get(self.at..) {
            self.at += 1;
            return Some(i64::from(digit - b'0'));
        }
        let (number, true) = self.number()? else { return None };
        let value = std::str::from_utf8(number).ok()?.parse().ok()?;
        self.at += number.len();
        Some(value)
    }

    /// Reads a number, as the nearest 64-bit float.
    #[inline]
    pub(super) fn float(&mut self) -> Result<f64, RecordError> {
        let parsed = self.number().and_then(|(number, _)| Some((fast_float2::parse(number).ok()?, number.len())));
        let (value, len) = parsed.ok_or_else(|| self.error("a number"))?;
        self.at += len;
        Ok(value)
    }

    /// Reads a number that is not valid JSON.
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

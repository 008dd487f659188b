//! Scans the tokens of a line of JSON.

use std::borrow::Cow;

use super::RecordError;

/// Maximum nesting depth of skipped values.
const MAX_DEPTH: usize = 64;

#[derive(Clone)]
pub(super) struct Scanner<'a> {
    /// The text of the line; only strings that have been read are known to be UTF-8.
    pub(super) text: &'a [u8],
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

    /// Returns the next byte that is not white space, without advancing.
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

    /// Skips this byte, if it is next.
    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), RecordError> {
        if self.eat(byte) { Ok(()) } else { Err(self.error(expected)) }
    }

    /// Skips a word, if it is next.
    pub(super) fn eat_word(&mut self, word: &[u8]) -> bool {
        let is_next = self.rest().starts_with(word);
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    /// Reads the raw content of a string that begins here, and returns whether it contains escapes.
    pub(super) fn raw_string(&mut self) -> Result<(&'a [u8], bool), RecordError> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        let mut escapes = false;
        loop {
            let rest = self.rest();
            let piece = rest.get(..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())).unwrap_or_default();
            // Tests for bytes other than printable ASCII, without branches.
            if piece.iter().fold(0, |most, byte| byte.wrapping_sub(0x20).max(most)) >= 0x60 {
                self.check(piece)?;
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

    /// Checks that this part of a string, which comes next, is UTF-8 without control characters.
    #[cold]
    fn check(&mut self, piece: &[u8]) -> Result<(), RecordError> {
        let (at, expected) = match (piece.iter().position(|byte| *byte < 0x20), std::str::from_utf8(piece)) {
            (Some(control), _) => (control, "the end of a string"),
            (None, Err(error)) => (error.valid_up_to(), "text"),
            (None, Ok(_)) => return Ok(()),
        };
        self.at += at;
        Err(self.error(expected))
    }

    /// Reads a string, which must be UTF-8.
    pub(super) fn string_bytes(&mut self) -> Result<Cow<'a, [u8]>, RecordError> {
        self.peek();
        let start = self.at;
        let (inside, escapes) = self.raw_string()?;
        if !escapes {
            return Ok(Cow::Borrowed(inside));
        }
        let text = serde_json::from_slice::<String>(self.since(start));
        text.map(|text| Cow::Owned(text.into_bytes())).map_err(|_| self.error("a string"))
    }

    /// Reads a string.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, RecordError> {
        match self.string_bytes()? {
            Cow::Borrowed(text) => std::str::from_utf8(text).map(Cow::Borrowed).map_err(|_| self.error("text")),
            Cow::Owned(text) => String::from_utf8(text).map(Cow::Owned).map_err(|_| self.error("text")),
        }
    }

    /// Reads the name of the next member of an open object; its value is next. None at the object's end.
    pub(super) fn member(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>, RecordError> {
        if self.eat(b'}') {
            return Ok(None);
        }
        if !std::mem::take(first) {
            self.expect(b',', "',' or '}'")?;
        }
        self.peek();
        let name = self.string()?;
        self.expect(b':', "':'")?;
        self.peek();
        Ok(Some(name))
    }

    /// Skips any value; returns whether it contains a number that is not valid JSON.
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
                // An escape may be invalid.
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

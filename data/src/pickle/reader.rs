//! Reads the bytes of a pickle sequentially.

use super::{PickleError, values::Slice};

pub(super) struct OpcodeReader<'a> {
    pickle: &'a [u8],
    pub(super) at: usize,
}

impl<'a> OpcodeReader<'a> {
    pub(super) fn new(pickle: &'a [u8]) -> Self {
        Self { pickle, at: 0 }
    }

    pub(super) fn damaged(&self, what: &'static str) -> PickleError {
        PickleError::Damaged { at: self.at, what }
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], PickleError> {
        let rest = self.pickle.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(PickleError::Short)?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let taken = self.take(N as u64)?;
        taken.try_into().map_err(|_| PickleError::Short)
    }

    pub(super) fn u8(&mut self) -> Result<u8, PickleError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, PickleError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, PickleError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn f64(&mut self) -> Result<f64, PickleError> {
        self.array().map(f64::from_be_bytes)
    }

    /// Reads a length of 1, 4 or 8 bytes.
    pub(super) fn len(&mut self, bytes: u8) -> Result<u64, PickleError> {
        Ok(match bytes {
            1 => u64::from(self.u8()?),
            4 => u64::from(u32::from_le_bytes(self.array()?)),
            _ => u64::from_le_bytes(self.array()?),
        })
    }

    /// Reads this number of bytes and returns their position.
    pub(super) fn slice(&mut self, len: u64) -> Result<Slice, PickleError> {
        let start = self.at;
        self.take(len)?;
        let place = |n: usize| u32::try_from(n).map_err(|_| PickleError::Damaged { at: start, what: "4 GiB or more" });
        Ok(Slice::Within { start: place(start)?, len: place(self.at - start)? })
    }

    /// Reads up to the end of the line, without it.
    pub(super) fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = self.pickle.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or(PickleError::Short)?;
        self.at += len + 1;
        let line = rest.get(..len).unwrap_or_default();
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self, suffix: &[u8]) -> Result<T, PickleError> {
        let line = self.line()?;
        let digits = line.strip_suffix(suffix).unwrap_or(line);
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| self.damaged("a number"))
    }

    /// Reads a little-endian number in two's complement of any length; more than 8 bytes are an error.
    pub(super) fn long(&mut self, len: u64) -> Result<i64, PickleError> {
        let bytes = self.take(len)?;
        if bytes.len() > 8 {
            return Err(self.damaged("a number of more than 64 bits"));
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut all = [if negative { 0xFF } else { 0 }; 8];
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ok(i64::from_le_bytes(all))
    }

    /// Decodes the text of protocol 0: `\uXXXX` and `\UXXXXXXXX` are characters, and every other byte is itself.
    pub(super) fn raw_unicode(&self, line: &[u8]) -> Result<Vec<u8>, PickleError> {
        let bad = || self.damaged("a text");
        let mut text = Vec::with_capacity(line.len());
        let mut rest = line;
        while let Some((byte, after)) = rest.split_first() {
            let digits = match (byte, after.first()) {
                (b'\\', Some(b'u')) => 4,
                (b'\\', Some(b'U')) => 8,
                _ => 0,
            };
            let char = if digits == 0 {
                rest = after;
                char::from(*byte)
            } else {
                let code = after.get(1..=digits).and_then(|code| std::str::from_utf8(code).ok()).ok_or_else(bad)?;
                rest = after.get(digits + 1..).unwrap_or_default();
                u32::from_str_radix(code, 16).ok().and_then(char::from_u32).ok_or_else(bad)?
            };
            text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(text)
    }

    /// Decodes the quoted bytes of protocol 0, with Python's escapes.
    pub(super) fn quoted(&self, line: &[u8]) -> Result<Vec<u8>, PickleError> {
        let bad = || self.damaged("a string");
        let inner = [b'\'', b'"'].iter().find_map(|q| line.strip_prefix(&[*q])?.strip_suffix(&[*q])).ok_or_else(bad)?;
        let mut out = Vec::with_capacity(inner.len());
        let mut rest = inner.iter();
        while let Some(byte) = rest.next() {
            if *byte != b'\\' {
                out.push(*byte);
                continue;
            }
            out.push(match rest.next().ok_or_else(bad)? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let mut digit = || char::from(*rest.next()?).to_digit(16);
                    let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
                    (high * 16 + low) as u8
                }
                other @ (b'\\' | b'\'' | b'"') => *other,
                _ => return Err(bad()),
            });
        }
        Ok(out)
    }
}

//! Messages in a stream of bytes: some JSON, and bytes that are no JSON. Whatever is read may come from anybody.

use serde::{Serialize, de::DeserializeOwned};

use crate::prelude::*;

/// Bytes of the two lengths before a message, little-endian.
const HEAD: usize = 16;

/// The most that a message may have. Checked before memory is taken, which is taken as bytes come, not as lengths say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Bytes of JSON.
    pub text: u64,
    /// Bytes of what is none: weights, pictures, observations.
    pub bytes: u64,
}

impl FrameLimits {
    /// What every message keeps to.
    pub const MAX: Self = Self { text: 256 << 20, bytes: 2 << 30 };

    pub(super) fn check(self, text: u64, bytes: u64) -> Result<(), FramingError> {
        let Self { text: max_text, bytes: max_bytes } = self;
        if text > max_text || bytes > max_bytes {
            return Err(FramingError::TooLong { text, bytes, max_text, max_bytes });
        }
        Ok(())
    }
}

/// Why there is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// It is too long.
    #[error("{text} bytes of text and {bytes} others are too many: at most {max_text} and {max_bytes} can be sent")]
    TooLong {
        /// Bytes of JSON.
        text: u64,
        /// Other bytes.
        bytes: u64,
        /// The most of the first.
        max_text: u64,
        /// The most of the second.
        max_bytes: u64,
    },
    /// Its JSON is not what it should be.
    #[error("a message cannot be read: {0}")]
    Json(String),
}

impl From<serde_json::Error> for FramingError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.to_string())
    }
}

/// What is sent before a message's other bytes: both lengths, and the JSON.
///
/// # Errors
/// [`FramingError::TooLong`].
pub fn frame_start(message: &impl Serialize, bytes: &[u8]) -> Result<Vec<u8>, FramingError> {
    let text = serde_json::to_vec(message)?;
    let (text_len, bytes_len) = (text.len() as u64, bytes.len() as u64);
    FrameLimits::MAX.check(text_len, bytes_len)?;
    let mut start = Vec::with_capacity(HEAD + text.len());
    start.extend_from_slice(&text_len.to_le_bytes());
    start.extend_from_slice(&bytes_len.to_le_bytes());
    start.extend_from_slice(&text);
    Ok(start)
}

/// Finds messages in a stream, however it is cut.
#[derive(Debug)]
pub struct FrameReader {
    limits: FrameLimits,
    head: Vec<u8>,
    /// Of text and bytes, once the head is there.
    lens: Option<[usize; 2]>,
    text: Vec<u8>,
    bytes: Vec<u8>,
}

impl FrameReader {
    /// At the beginning of a message.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, head: Vec::new(), lens: None, text: Vec::new(), bytes: Vec::new() }
    }

    /// What messages keep to.
    #[must_use]
    pub fn limits(&self) -> FrameLimits {
        self.limits
    }

    /// How many bytes may be read at once without reading beyond the message; 0 once it is whole.
    #[must_use]
    pub fn missing(&mut self) -> usize {
        self.part().map_or(0, |(_, missing)| missing)
    }

    /// How many bytes of the message are there.
    #[must_use]
    pub fn held(&self) -> usize {
        self.head.len() + self.text.len() + self.bytes.len()
    }

    /// Takes bytes up to the end of the message, and says how many.
    ///
    /// # Errors
    /// [`FramingError::TooLong`]; then the stream is of no more use.
    pub fn push(&mut self, data: &[u8]) -> Result<usize, FramingError> {
        let mut rest = data;
        while let Some((part, missing)) = self.part()
            && !rest.is_empty()
        {
            let (taken, left) = rest.split_at(missing.min(rest.len()));
            part.extend_from_slice(taken);
            rest = left;
            self.read_head()?;
        }
        Ok(data.len() - rest.len())
    }

    /// The message, if it is whole. The next bytes are of the next one.
    ///
    /// # Errors
    /// [`FramingError::Json`].
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Vec<u8>)>, FramingError> {
        if self.part().is_some() {
            return Ok(None);
        }
        let Self { text, bytes, .. } = core::mem::replace(self, Self::new(self.limits));
        Ok(Some((serde_json::from_slice(&text)?, bytes)))
    }

    /// The part that is being read, and how much of it is missing.
    fn part(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let Some([text, bytes]) = self.lens else {
            let missing = HEAD - self.head.len();
            return Some((&mut self.head, missing));
        };
        let parts = [(&mut self.text, text), (&mut self.bytes, bytes)];
        let mut open = parts.into_iter().map(|(part, len)| {
            let missing = len - part.len();
            (part, missing)
        });
        open.find(|(_, missing)| *missing > 0)
    }

    fn read_head(&mut self) -> Result<(), FramingError> {
        let ([text, bytes], []) = self.head.as_chunks::<8>() else { return Ok(()) };
        if self.lens.is_none() {
            let [text, bytes] = [text, bytes].map(|len| u64::from_le_bytes(*len));
            self.limits.check(text, bytes)?;
            // What is within the limits can be counted.
            self.lens = Some([text, bytes].map(|len| usize::try_from(len).unwrap_or(usize::MAX)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, bytes: &[u8]) -> Vec<u8> {
        [&frame_start(&text, bytes).unwrap()[..], bytes].concat()
    }

    #[test]
    fn messages_come_out_of_a_stream_however_it_is_cut() {
        let stream = [message("first", b""), message("", &[7; 100]), message("third", b"\0")].concat();
        for size in 1..=stream.len() {
            let mut reader = FrameReader::new(FrameLimits::MAX);
            let mut found: Vec<(String, Vec<u8>)> = Vec::new();
            for mut piece in stream.chunks(size) {
                while !piece.is_empty() {
                    piece = &piece[reader.push(piece).unwrap()..];
                    found.extend(reader.take().unwrap());
                }
            }
            let found: Vec<(&str, usize)> = found.iter().map(|(text, bytes)| (text.as_str(), bytes.len())).collect();
            assert_eq!(found, [("first", 0), ("", 100), ("third", 1)], "pieces of {size}");
        }
    }

    #[test]
    fn lengths_that_nobody_sends_take_no_memory() {
        let limits = FrameLimits { text: 1024, bytes: 0 };
        let head = |text: u64, bytes: u64| [text.to_le_bytes(), bytes.to_le_bytes()].concat();
        for head in [head(u64::MAX, u64::MAX), head(1025, 0), head(1, 1)] {
            assert!(matches!(FrameReader::new(limits).push(&head), Err(FramingError::TooLong { .. })));
        }
        let mut reader = FrameReader::new(FrameLimits::MAX);
        assert_eq!(reader.push(&head(256 << 20, 2 << 30)), Ok(HEAD));
        assert_eq!((reader.missing(), reader.text.capacity(), reader.bytes.capacity()), (256 << 20, 0, 0));
        let mut reader = FrameReader::new(limits);
        reader.push(&[&head(1, 0)[..], b"{"].concat()).unwrap();
        assert!(matches!(reader.take::<String>(), Err(FramingError::Json(_))));
    }
}

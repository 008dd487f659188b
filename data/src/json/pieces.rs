//! Decodes a file of lines that arrives in pieces.

use std::mem;

use rollmesh_core::batch::AnyBatch;

use super::{JsonCounts, JsonError, JsonLines};
use crate::limits::JsonLimits;

/// Decodes the pieces of a file, which may be cut anywhere. Holds one line and one piece; reports and skips lines that
/// are too long or not batches.
///
/// ```
/// use rollmesh_data::{json::JsonPieces, limits::JsonLimits};
///
/// let mut pieces = JsonPieces::new(1 << 20, JsonLimits::default());
/// pieces.push(br#"{"type": "SampleBatch", "rew"#);
/// assert!(pieces.next_batch().is_none());
/// pieces.push(br#"ards": [1.0, 0.5]}"#);
/// pieces.finish();
/// assert_eq!(pieces.next_batch().unwrap()?.env_steps(), 2);
/// assert!(pieces.next_batch().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JsonPieces {
    lines: JsonLines,
    /// Text received, unread from `at` on.
    text: Vec<u8>,
    at: usize,
    /// Number of bytes from there on without a line end.
    searched: usize,
    /// Maximum length of a line in bytes.
    longest: usize,
    /// True if the rest of a line that was too long is being skipped.
    is_passing: bool,
    is_finished: bool,
    has_failed: bool,
}

impl JsonPieces {
    /// Creates a decoder without data. Lines may have up to `longest` bytes.
    #[must_use]
    pub fn new(longest: usize, limits: JsonLimits) -> Self {
        let lines = JsonLines::lenient(limits);
        let (text, at, searched) = (Vec::new(), 0, 0);
        Self { lines, text, at, searched, longest, is_passing: false, is_finished: false, has_failed: false }
    }

    /// Adds the next piece. Pieces are kept until their batches are [taken](Self::next_batch); after [`JsonError::TooMany`]
    /// they are dropped.
    pub fn push(&mut self, piece: &[u8]) {
        if self.has_failed {
            return;
        }
        self.text.drain(..mem::take(&mut self.at));
        self.text.extend_from_slice(piece);
    }

    /// Ends the file: the last line needs no line end.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Returns the next batch, or the error of a line that is not a batch. None until another piece arrives, at the end of
    /// the file, and after [`JsonError::TooMany`].
    pub fn next_batch(&mut self) -> Option<Result<AnyBatch, JsonError>> {
        while !self.has_failed {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let not_searched = rest.get(self.searched..).unwrap_or_default();
            let (len, end) = match memchr::memchr(b'\n', not_searched) {
                Some(len) => (self.searched + len, self.searched + len + 1),
                None if self.is_finished && (self.is_passing || !rest.is_empty()) => (rest.len(), rest.len()),
                None => {
                    self.searched = rest.len();
                    if rest.len() > self.longest {
                        self.is_passing = true;
                        (self.text, self.at, self.searched) = (Vec::new(), 0, 0);
                    }
                    return None;
                }
            };
            let line = rest.get(..len).filter(|line| line.len() <= self.longest);
            let before = self.lines.corrupt_lines();
            let was_passing = mem::take(&mut self.is_passing);
            let found = match line.filter(|_| !was_passing) {
                Some(line) => self.lines.read(line),
                None => self.lines.too_long(self.longest).map(|()| None),
            };
            (self.at, self.searched) = (self.at + end, 0);
            match found {
                Ok(Some(batch)) => return Some(Ok(batch)),
                Ok(None) if self.lines.corrupt_lines() > before => return self.lines.last_error().cloned().map(Err),
                Ok(None) => {}
                Err(error) => {
                    self.has_failed = true;
                    (self.text, self.at) = (Vec::new(), 0);
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Returns the counts so far; the line is that of the latest batch or error.
    #[must_use]
    pub fn counts(&self) -> JsonCounts {
        self.lines.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_that_is_not_read() {
        let mut pieces = JsonPieces::new(1000, JsonLimits::default());
        pieces.push("no batch\n".repeat(200).as_bytes());
        let errors = std::iter::from_fn(|| pieces.next_batch()).filter(Result::is_err).count();
        assert_eq!((errors, pieces.text.len()), (101, 0));
        pieces.push(b"no batch\n");
        assert!(pieces.next_batch().is_none() && pieces.text.is_empty());
    }
}

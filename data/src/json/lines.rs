//! Decodes lines, and counts those that are not batches.

use rollmesh_core::batch::AnyBatch;
use serde::{Deserialize, Serialize};

use super::{JsonError, RecordError, decode_record};
use crate::limits::{JsonLimits, MAX_CORRUPT_LINES};

/// The bytes with which some programs begin a file of UTF-8, and with it its first line.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes lines from any source. Skips blank lines. Lines that are not batches are errors; a [lenient](Self::lenient)
/// decoder counts and skips them, until there are too many in a row.
#[derive(Clone, Debug)]
pub struct JsonLines {
    limits: JsonLimits,
    strict: bool,
    counts: JsonCounts,
    last: Option<JsonError>,
}

/// The counts of [`JsonLines`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonCounts {
    /// Number of lines of this file so far.
    pub line: u64,
    /// Number of batches so far.
    pub batches: u64,
    /// Number of lines so far that were not batches.
    pub corrupt_lines: u64,
    /// Number of such lines since the last batch of this file.
    pub in_a_row: u32,
}

impl JsonLines {
    /// Creates a decoder that rejects every line that is not a batch.
    #[must_use]
    pub fn strict(limits: JsonLimits) -> Self {
        Self { limits, strict: true, counts: JsonCounts::default(), last: None }
    }

    /// Creates a decoder that skips lines that are not batches.
    #[must_use]
    pub fn lenient(limits: JsonLimits) -> Self {
        Self { strict: false, ..Self::strict(limits) }
    }

    /// Decodes a line, with or without its end; none for a skipped one.
    ///
    /// # Errors
    /// [`JsonError::Line`], or [`JsonError::TooMany`] for a lenient decoder.
    pub fn read(&mut self, line: &[u8]) -> Result<Option<AnyBatch>, JsonError> {
        self.take(Self::decode(line, &self.limits))
    }

    /// Decodes the content of a line, with or without its end and a byte order mark before it; none for a blank one. Threads
    /// may call this ahead of [`take`](Self::take), which counts the results.
    #[must_use]
    pub fn decode(line: &[u8], limits: &JsonLimits) -> Option<Result<AnyBatch, RecordError>> {
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        (!is_blank).then(|| decode_record(line, limits))
    }

    /// Counts the [decoded](Self::decode) content of the next line and returns it; none for a skipped one.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn take(&mut self, found: Option<Result<AnyBatch, RecordError>>) -> Result<Option<AnyBatch>, JsonError> {
        self.counts.line += 1;
        match found {
            None => Ok(None),
            Some(Ok(batch)) => {
                self.counts.batches += 1;
                self.counts.in_a_row = 0;
                Ok(Some(batch))
            }
            Some(Err(source)) => self.corrupt(JsonError::Line { line: self.counts.line, source }).map(|()| None),
        }
    }

    /// Counts a line that exceeded the limit after `bytes` bytes.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn too_long(&mut self, bytes: usize) -> Result<(), JsonError> {
        self.counts.line += 1;
        self.corrupt(JsonError::LongLine { line: self.counts.line, bytes })
    }

    /// Skips a line that another reader reads.
    pub fn skip(&mut self) {
        self.counts.line += 1;
    }

    /// Begins another file: line numbers start from 1 again, and earlier errors no longer count.
    pub fn begin_file(&mut self) {
        (self.counts.line, self.counts.in_a_row) = (0, 0);
    }

    fn corrupt(&mut self, error: JsonError) -> Result<(), JsonError> {
        if self.strict {
            return Err(error);
        }
        self.counts.corrupt_lines += 1;
        self.counts.in_a_row += 1;
        if self.counts.in_a_row > MAX_CORRUPT_LINES {
            return Err(JsonError::TooMany { lines: self.counts.in_a_row, last: Box::new(error) });
        }
        self.last = Some(error);
        Ok(())
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> JsonCounts {
        self.counts
    }

    /// Continues from these counts.
    pub fn restore_counts(&mut self, counts: JsonCounts) {
        self.counts = counts;
    }

    /// Returns the number of batches so far.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.counts.batches
    }

    /// Returns the number of lines so far that are not batches.
    #[must_use]
    pub fn corrupt_lines(&self) -> u64 {
        self.counts.corrupt_lines
    }

    /// Returns the error of the last such line.
    #[must_use]
    pub fn last_error(&self) -> Option<&JsonError> {
        self.last.as_ref()
    }

    /// Checks at the end that there was a batch.
    ///
    /// # Errors
    /// [`JsonError::NoData`].
    pub fn finish(&self) -> Result<(), JsonError> {
        if self.counts.batches > 0 { Ok(()) } else { Err(JsonError::NoData(self.last.clone().map(Box::new))) }
    }
}

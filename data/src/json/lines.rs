//! Line after line, with books about the ones that are no batches.

use rollmesh_core::batch::AnyBatch;
use serde::{Deserialize, Serialize};

use super::{JsonError, RecordError, decode_record};
use crate::limits::{JsonLimits, MAX_CORRUPT_LINES};

/// Turns lines into batches, wherever they come from. Blank lines are passed over; lines that are no batches are errors
/// or, for a [lenient](Self::lenient) one, counted and passed over, too, until there are too many in a row.
#[derive(Clone, Debug)]
pub struct JsonLines {
    limits: JsonLimits,
    strict: bool,
    books: JsonBooks,
    last: Option<JsonError>,
}

/// What [`JsonLines`] have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonBooks {
    /// Lines of this file so far.
    pub line: u64,
    /// Batches so far.
    pub batches: u64,
    /// Lines so far that were no batches.
    pub corrupt_lines: u64,
    /// Of those, the ones since the last batch of this file.
    pub in_a_row: u32,
}

impl JsonLines {
    /// Takes no line that is no batch.
    #[must_use]
    pub fn strict(limits: JsonLimits) -> Self {
        Self { limits, strict: true, books: JsonBooks::default(), last: None }
    }

    /// Passes over lines that are no batches.
    #[must_use]
    pub fn lenient(limits: JsonLimits) -> Self {
        Self { strict: false, ..Self::strict(limits) }
    }

    /// Reads a line, with its end or without; none for one that is passed over.
    ///
    /// # Errors
    /// [`JsonError::Line`], or [`JsonError::TooMany`] for a lenient one.
    pub fn read(&mut self, line: &[u8]) -> Result<Option<AnyBatch>, JsonError> {
        self.take(Self::decode(line, &self.limits))
    }

    /// What there is in a line, with its end or without; nothing in a blank one. Threads may do that ahead of the books,
    /// which [`take`](Self::take) keeps.
    #[must_use]
    pub fn decode(line: &[u8], limits: &JsonLimits) -> Option<Result<AnyBatch, RecordError>> {
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        (!is_blank).then(|| decode_record(line, limits))
    }

    /// Takes what was [found](Self::decode) in the next line; none for one that is passed over.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn take(&mut self, found: Option<Result<AnyBatch, RecordError>>) -> Result<Option<AnyBatch>, JsonError> {
        self.books.line += 1;
        match found {
            None => Ok(None),
            Some(Ok(batch)) => {
                self.books.batches += 1;
                self.books.in_a_row = 0;
                Ok(Some(batch))
            }
            Some(Err(source)) => self.corrupt(JsonError::Line { line: self.books.line, source }).map(|()| None),
        }
    }

    /// Hears of a line of which only the first `bytes` bytes could be held.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn too_long(&mut self, bytes: usize) -> Result<(), JsonError> {
        self.books.line += 1;
        self.corrupt(JsonError::LongLine { line: self.books.line, bytes })
    }

    /// Passes over a line that another reader reads.
    pub fn skip(&mut self) {
        self.books.line += 1;
    }

    /// Begins another file: lines are counted from 1 again, and what was wrong before has no influence any more.
    pub fn begin_file(&mut self) {
        (self.books.line, self.books.in_a_row) = (0, 0);
    }

    fn corrupt(&mut self, error: JsonError) -> Result<(), JsonError> {
        if self.strict {
            return Err(error);
        }
        self.books.corrupt_lines += 1;
        self.books.in_a_row += 1;
        if self.books.in_a_row > MAX_CORRUPT_LINES {
            return Err(JsonError::TooMany { lines: self.books.in_a_row, last: Box::new(error) });
        }
        self.last = Some(error);
        Ok(())
    }

    /// What was counted.
    #[must_use]
    pub fn books(&self) -> JsonBooks {
        self.books
    }

    /// Goes on as if this had been counted.
    pub fn go_on(&mut self, books: JsonBooks) {
        self.books = books;
    }

    /// Batches so far.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.books.batches
    }

    /// Lines so far that are no batches.
    #[must_use]
    pub fn corrupt_lines(&self) -> u64 {
        self.books.corrupt_lines
    }

    /// What is wrong with the last of those.
    #[must_use]
    pub fn last_error(&self) -> Option<&JsonError> {
        self.last.as_ref()
    }

    /// Checks at the end that there has been any batch.
    ///
    /// # Errors
    /// [`JsonError::NoData`].
    pub fn finish(&self) -> Result<(), JsonError> {
        if self.books.batches > 0 { Ok(()) } else { Err(JsonError::NoData(self.last.clone().map(Box::new))) }
    }
}

//! Stores rows of any length: byte strings and JSON documents.

use core::{fmt, ops::Range};

use super::{ColumnData, ColumnError, RowShape, Segment, little_endian::append_le, shape::clamp};
use crate::prelude::*;

/// The kind of rows in a [`BytesColumn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BytesKind {
    /// Byte strings.
    Bytes,
    /// JSON texts, one document per row. Columns check that they are UTF-8, but not that they are JSON.
    Json,
}

impl fmt::Display for BytesKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Json => "json",
        })
    }
}

/// One byte string or JSON document per row, for example `infos`: a shared buffer and this column's range of rows. A row has
/// at most 2^32 - 1 bytes.
#[derive(Clone)]
pub struct BytesColumn {
    kind: BytesKind,
    bytes: Arc<Vec<u8>>,
    /// The start of each row of the buffer, and the end of the last one.
    offsets: Arc<Vec<usize>>,
    /// First row of this column in the buffer.
    start: usize,
    rows: usize,
}

impl BytesColumn {
    /// Creates a column of byte strings.
    ///
    /// # Errors
    /// [`ColumnError::LongRow`].
    pub fn bytes<R: AsRef<[u8]>>(rows: impl IntoIterator<Item = R>) -> Result<Self, ColumnError> {
        let mut builder = RaggedBuilder::new(BytesKind::Bytes, 0, 0);
        rows.into_iter().try_for_each(|row| builder.push(row.as_ref()))?;
        Ok(builder.build())
    }

    /// Creates a column of JSON documents.
    ///
    /// # Errors
    /// [`ColumnError::LongRow`].
    pub fn json<R: AsRef<str>>(rows: impl IntoIterator<Item = R>) -> Result<Self, ColumnError> {
        let mut builder = RaggedBuilder::new(BytesKind::Json, 0, 0);
        rows.into_iter().try_for_each(|row| builder.push(row.as_ref().as_bytes()))?;
        Ok(builder.build())
    }

    /// Creates a column from a buffer of contiguous rows and their lengths. Copies no bytes.
    ///
    /// # Errors
    /// [`ColumnError::Lengths`] when the lengths do not add up to the buffer's, [`ColumnError::NotText`] when a JSON
    /// document is not UTF-8.
    pub fn from_lengths(kind: BytesKind, bytes: Vec<u8>, lengths: &[u32]) -> Result<Self, ColumnError> {
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        let mut end = 0usize;
        offsets.push(end);
        for &length in lengths {
            end = end.saturating_add(length as usize);
            offsets.push(end);
        }
        Self::from_offsets(kind, bytes, offsets)
    }

    /// Creates a column from a buffer of contiguous rows, the start of each row and the end of the last one, ascending from
    /// 0. Copies nothing.
    ///
    /// # Errors
    /// [`ColumnError::Lengths`] when the offsets do not ascend from 0 to the buffer's length, [`ColumnError::NotText`] when
    /// a JSON document is not UTF-8.
    pub fn from_offsets(kind: BytesKind, bytes: Vec<u8>, offsets: Vec<usize>) -> Result<Self, ColumnError> {
        let end = offsets.last().copied().unwrap_or_default();
        let is_whole = end == bytes.len() && offsets.is_sorted() && offsets.first().is_none_or(|first| *first == 0);
        if !is_whole {
            return Err(ColumnError::Lengths { sum: end, bytes: bytes.len() });
        }
        let rows = offsets.len().saturating_sub(1);
        let column = Self { kind, bytes: Arc::new(bytes), offsets: Arc::new(offsets), start: 0, rows };
        if kind == BytesKind::Json
            && let Some(row) = column.iter().position(|row| core::str::from_utf8(row).is_err())
        {
            return Err(ColumnError::NotText { row });
        }
        Ok(column)
    }

    /// Returns the kind of the rows.
    #[must_use]
    pub fn kind(&self) -> BytesKind {
        self.kind
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes of one row, if it exists.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<&[u8]> {
        if row >= self.rows {
            return None;
        }
        let (start, end) = (self.offsets.get(self.start + row)?, self.offsets.get(self.start + row + 1)?);
        self.bytes.get(*start..*end)
    }

    /// Returns the text of one row, if it exists and is UTF-8.
    #[must_use]
    pub fn text(&self, row: usize) -> Option<&str> {
        core::str::from_utf8(self.row(row)?).ok()
    }

    /// Iterates over the rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.rows).map(|row| self.row(row).unwrap_or_default())
    }

    /// Returns the bytes of all rows, in order.
    #[must_use]
    pub fn contiguous(&self) -> &[u8] {
        let at = |row: usize| self.offsets.get(self.start + row).copied().unwrap_or_default();
        self.bytes.get(at(0)..at(self.rows)).unwrap_or_default()
    }

    /// Iterates over the length of each row in bytes.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = u32> {
        self.iter().map(|row| row.len() as u32)
    }

    /// Returns the rows in `range`, sharing the buffer. A range beyond the end stops there.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let range = clamp(range, self.rows);
        Self { start: self.start + range.start, rows: range.len(), ..self.clone() }
    }

    /// Returns the same rows in a new buffer.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut builder = RaggedBuilder::new(self.kind, self.rows, self.contiguous().len());
        builder.extend(self);
        builder.build()
    }

    /// Joins rows of one kind, in order.
    pub(super) fn concat(parts: &[&Self]) -> Self {
        let kind = parts.first().map_or(BytesKind::Bytes, |part| part.kind);
        let rows = parts.iter().map(|part| part.rows).sum();
        let mut builder = RaggedBuilder::new(kind, rows, parts.iter().map(|part| part.contiguous().len()).sum());
        parts.iter().for_each(|part| builder.extend(part));
        builder.build()
    }

    /// Returns these rows in this order; a row that does not exist is empty.
    pub(super) fn gather(&self, rows: &[u32]) -> Self {
        if let Some(gathered) = self.gather_even(rows) {
            return gathered;
        }
        let row = |row: &u32| self.row(*row as usize).unwrap_or_else(|| self.kind.zero());
        let mut builder = RaggedBuilder::new(self.kind, rows.len(), rows.iter().map(|i| row(i).len()).sum());
        rows.iter().for_each(|i| builder.append(row(i)));
        builder.build()
    }

    /// Returns the [`gather`](Self::gather)ed rows if all rows have the same length, as infos often do: they form an array
    /// of bytes.
    fn gather_even(&self, rows: &[u32]) -> Option<Self> {
        let offsets = self.offsets.get(self.start..=self.start + self.rows)?;
        let len = self.row(0)?.len();
        let even = len > 0 && offsets.windows(2).all(|ends| ends[1] - ends[0] == len);
        if !even || rows.iter().any(|row| *row as usize >= self.rows) {
            return None;
        }
        let is_whole = offsets.len() == self.offsets.len();
        let bytes = if is_whole { self.bytes.clone() } else { Arc::new(self.contiguous().to_vec()) };
        let gathered = ColumnData::whole_rows(bytes, RowShape::vector(u32::try_from(len).ok()?)).gather(rows);
        let offsets = if is_whole && rows.len() == self.rows {
            self.offsets.clone()
        } else {
            Arc::new((0..=rows.len()).map(|row| row * len).collect())
        };
        Some(Self { kind: self.kind, bytes: gathered.shared().clone(), offsets, start: 0, rows: rows.len() })
    }

    /// Assembles ranges of rows and empty rows, in order: `rows` in all.
    pub(super) fn assemble(&self, segments: &[Segment], rows: usize) -> Self {
        let mut builder = RaggedBuilder::new(self.kind, rows, self.contiguous().len());
        for segment in segments {
            match segment {
                Segment::Rows(range) => builder.extend(&self.slice(range.clone())),
                Segment::Zeros(count) => (0..*count).for_each(|_| builder.append(self.kind.zero())),
            }
        }
        builder.build()
    }

    /// Appends the lengths of all rows as 32-bit numbers, then their bytes.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        append_le(out, &self.lengths().collect::<Vec<u32>>());
        out.extend_from_slice(self.contiguous());
    }
}

impl BytesKind {
    /// Returns the counterpart of an array's zeros.
    pub(super) const fn zero(self) -> &'static [u8] {
        match self {
            Self::Bytes => b"",
            Self::Json => b"null",
        }
    }
}

/// A column that grows at its end.
struct RaggedBuilder {
    kind: BytesKind,
    bytes: Vec<u8>,
    offsets: Vec<usize>,
}

impl RaggedBuilder {
    fn new(kind: BytesKind, rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { kind, bytes: Vec::with_capacity(bytes), offsets }
    }

    /// Appends an unchecked row.
    fn push(&mut self, row: &[u8]) -> Result<(), ColumnError> {
        if u32::try_from(row.len()).is_err() {
            return Err(ColumnError::LongRow { row: self.offsets.len() - 1, bytes: row.len() });
        }
        self.append(row);
        Ok(())
    }

    /// Appends a row of another column.
    fn append(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        self.offsets.push(self.bytes.len());
    }

    fn extend(&mut self, column: &BytesColumn) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(column.contiguous());
        let offsets = column.offsets.get(column.start..=column.start + column.rows).unwrap_or_default();
        let first = offsets.first().copied().unwrap_or_default();
        self.offsets.extend(offsets.iter().skip(1).map(|offset| base + (offset - first)));
    }

    fn build(self) -> BytesColumn {
        let rows = self.offsets.len() - 1;
        BytesColumn { kind: self.kind, bytes: Arc::new(self.bytes), offsets: Arc::new(self.offsets), start: 0, rows }
    }
}

impl PartialEq for BytesColumn {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.rows == other.rows && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for BytesColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {}", self.rows, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infos() -> BytesColumn {
        BytesColumn::json(["{}", r#"{"lives":3}"#, "null", "[1]"]).unwrap()
    }

    #[test]
    fn slices_share_the_buffer() {
        let slice = infos().slice(1..3);
        assert_eq!((slice.rows(), slice.text(0), slice.text(2)), (2, Some(r#"{"lives":3}"#), None));
        assert_eq!(slice.contiguous(), br#"{"lives":3}null"#);
        assert_eq!(infos().slice(9..12).contiguous(), b"");
        let whole = infos();
        assert!(Arc::ptr_eq(&whole.bytes, &whole.slice(0..1).bytes));
        assert_eq!(slice.copy(), slice);
        assert_eq!(slice.copy().bytes.len(), 15);
    }

    #[test]
    fn rows_are_joined_gathered_and_padded() {
        let column = infos();
        let joined = BytesColumn::concat(&[&column.slice(2..4), &column.slice(0..1)]);
        assert_eq!(joined.iter().collect::<Vec<_>>(), [&b"null"[..], b"[1]", b"{}"]);
        assert_eq!(column.gather(&[3, 0, 3]).contiguous(), b"[1]{}[1]");
        let padded = column.assemble(&[Segment::Zeros(1), Segment::Rows(0..1)], 2);
        assert_eq!(padded.iter().collect::<Vec<_>>(), [&b"null"[..], b"{}"]);
    }

    #[test]
    fn rows_of_one_length_are_gathered_too() {
        let column = BytesColumn::bytes(["ab", "cd", "ef"]).unwrap();
        let texts = |column: &BytesColumn| column.iter().map(|row| row.to_vec()).collect::<Vec<_>>().concat();
        assert_eq!(texts(&column.gather(&[2, 0, 1])), b"efabcd");
        assert_eq!(texts(&column.gather(&[1])), b"cd");
        assert_eq!(texts(&column.slice(1..3).gather(&[1, 0, 1])), b"efcdef");
        assert_eq!(column.gather(&[0, 3]).lengths().collect::<Vec<_>>(), [2, 0]);
    }

    #[test]
    fn lengths_and_texts_are_checked() {
        let make = |bytes: &[u8], lengths| BytesColumn::from_lengths(BytesKind::Json, bytes.to_vec(), lengths);
        assert_eq!(make(b"{}[]", &[2, 2]).unwrap().text(1), Some("[]"));
        let error = make(b"{}", &[2, u32::MAX]).unwrap_err();
        assert_eq!(error.to_string(), "the rows have 4294967297 bytes by their lengths, but there are 2");
        // Two bytes of one character, in two rows.
        assert_eq!(make("é".as_bytes(), &[1, 1]).unwrap_err(), ColumnError::NotText { row: 0 });
        assert!(BytesColumn::from_lengths(BytesKind::Bytes, vec![0xc3, 0xa9], &[1, 1]).is_ok());
    }
}

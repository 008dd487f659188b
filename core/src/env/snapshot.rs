//! Decoding of untrusted snapshots: little-endian numbers, one after the other.

use super::{EnvError, RowsMut, RowsRef};
use crate::{
    column::{append_le, by_type},
    prelude::*,
};

/// Reads a snapshot from front to back, for [`Env::restore`](super::Env::restore).
///
/// Missing or invalid bytes are [`EnvError::BadSnapshot`]; nothing is allocated.
#[derive(Clone, Debug)]
pub struct SnapshotReader<'a> {
    /// Length of the whole snapshot, for the error.
    len: usize,
    rest: &'a [u8],
}

impl<'a> SnapshotReader<'a> {
    /// Begins at the front.
    #[must_use]
    pub const fn new(snapshot: &'a [u8]) -> Self {
        Self { len: snapshot.len(), rest: snapshot }
    }

    /// Returns the error for invalid bytes.
    #[must_use]
    pub const fn bad(&self) -> EnvError {
        EnvError::BadSnapshot(self.len)
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`] if there are fewer, as for all methods below.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], EnvError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.bad())?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EnvError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.bad())?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn u8(&mut self) -> Result<u8, EnvError> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads the next byte, which must be below `end`.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn below(&mut self, end: u8) -> Result<u8, EnvError> {
        let value = self.u8()?;
        if value < end { Ok(value) } else { Err(self.bad()) }
    }

    /// Reads the next byte as a boolean: 0 or 1.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn bool(&mut self) -> Result<bool, EnvError> {
        Ok(self.below(2)? == 1)
    }

    /// Reads the next two bytes.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn u16(&mut self) -> Result<u16, EnvError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads the next four bytes.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn u32(&mut self) -> Result<u32, EnvError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads the next eight bytes.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn u64(&mut self) -> Result<u64, EnvError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads the next eight bytes as a finite number.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn finite(&mut self) -> Result<f64, EnvError> {
        let value = self.array().map(f64::from_le_bytes)?;
        if value.is_finite() { Ok(value) } else { Err(self.bad()) }
    }

    /// Fills `values`. On an error some of them may have been written.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn rows(&mut self, mut values: RowsMut<'_>) -> Result<(), EnvError> {
        let bytes = self.bytes(values.len().saturating_mul(values.dtype().size()))?;
        values.read_le(bytes).map_err(|_| self.bad())
    }

    /// Returns the unread bytes, for a nested snapshot.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`] for surplus bytes.
    pub fn finish(self) -> Result<(), EnvError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad()) }
    }
}

/// Appends elements, as [`SnapshotReader::rows`] reads them.
pub fn put_rows(out: &mut Vec<u8>, values: RowsRef<'_>) {
    by_type!(RowsRef, values, values => append_le(out, values));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::Element;

    fn round_trip<T: Element>(values: &[T]) {
        let mut bytes = Vec::new();
        put_rows(&mut bytes, T::erase_rows(values));
        assert_eq!(bytes.len(), values.len() * T::DTYPE.size());
        let mut read = vec![T::default(); values.len()];
        let mut reader = SnapshotReader::new(&bytes);
        reader.rows(T::erase_rows_mut(&mut read)).unwrap();
        assert_eq!(read, values);
        assert_eq!(reader.finish(), Ok(()));
        let mut reader = SnapshotReader::new(&bytes[1..]);
        assert_eq!(reader.rows(T::erase_rows_mut(&mut read)), Err(EnvError::BadSnapshot(bytes.len() - 1)));
    }

    #[test]
    fn rows_of_every_type_round_trip() {
        round_trip(&[1.5f32, -2.0]);
        round_trip(&[1.5f64, -2.0]);
        round_trip(&[7i32, -2]);
        round_trip(&[7i64, -2]);
        round_trip(&[7u8, 255]);
        round_trip(&[true, false]);
    }

    #[test]
    fn nonsense_is_refused() {
        let read = |bytes: &'static [u8]| SnapshotReader::new(bytes);
        assert_eq!(read(&[2]).bool(), Err(EnvError::BadSnapshot(1)));
        assert_eq!(read(&[9]).below(10), Ok(9));
        assert_eq!(read(&[10]).below(10), Err(EnvError::BadSnapshot(1)));
        assert_eq!(read(&[0; 3]).u32(), Err(EnvError::BadSnapshot(3)));
        assert_eq!(read(&[0xFF; 8]).finite(), Err(EnvError::BadSnapshot(8)));
        assert_eq!(read(&[0; 8]).bytes(9), Err(EnvError::BadSnapshot(8)));
        assert_eq!(read(&[0; 2]).finish(), Err(EnvError::BadSnapshot(2)));
    }
}

//! Reads numbers from bytes.

use super::{Hdf5Error, UNDEFINED};

/// A position in bytes that advances with every read.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    offset_size: u8,
    length_size: u8,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], offset_size: u8, length_size: u8) -> Self {
        Self { rest: bytes, offset_size, length_size }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Hdf5Error> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Hdf5Error::Corrupt("an entry ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<(), Hdf5Error> {
        self.take(len).map(drop)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns a cursor with the same sizes over other bytes.
    pub(super) fn over(&self, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, ..self.clone() }
    }

    /// Reads a little-endian number of up to 8 bytes.
    pub(super) fn uint(&mut self, size: usize) -> Result<u64, Hdf5Error> {
        let bytes = self.take(size)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Hdf5Error> {
        Ok(self.uint(1)? as u8)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Hdf5Error> {
        Ok(self.uint(2)? as u16)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Hdf5Error> {
        Ok(self.uint(4)? as u32)
    }

    pub(super) fn length(&mut self) -> Result<u64, Hdf5Error> {
        self.uint(usize::from(self.length_size))
    }

    /// Reads an address; [`UNDEFINED`] if all its bits are set.
    pub(super) fn offset(&mut self) -> Result<u64, Hdf5Error> {
        let size = usize::from(self.offset_size);
        let address = self.uint(size)?;
        let all = UNDEFINED >> (64 - 8 * size);
        Ok(if address == all { UNDEFINED } else { address })
    }

    pub(super) fn signature(&mut self, signature: &[u8; 4]) -> Result<(), Hdf5Error> {
        if self.take(4)? == signature { Ok(()) } else { Err(Hdf5Error::Corrupt("a table without its signature")) }
    }

    pub(super) fn offset_size(&self) -> usize {
        usize::from(self.offset_size)
    }

    pub(super) fn length_size(&self) -> usize {
        usize::from(self.length_size)
    }
}

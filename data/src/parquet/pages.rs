//! Gives the parquet crate a source's bytes, and refuses parts that exceed the declared buffer before the crate allocates
//! memory for them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parquet::{
    errors::ParquetError,
    file::reader::{ChunkReader, Length},
};

use super::{
    super::{dataset::DatasetError, source::Source},
    claims::{self, PageClaim},
};

/// Bytes that are read at once in headers of pages.
const WINDOW: u64 = 512;
/// Size of the table of contents that is read with any buffer, in bytes.
const CONTENTS: u64 = 512 << 10;
/// The crate's objects take up to this multiple of a table of contents: a column's chunk has 30 bytes, and 450 as an object.
const CONTENTS_FACTOR: u64 = 32;
/// Length of the end of a file: the size of the table of contents and the signature.
const END: u64 = 8;

/// A source for the parquet crate.
#[derive(Clone)]
pub(super) struct Checked {
    source: Arc<dyn Source>,
    buffer: usize,
    /// Size of a page that exceeds the buffer; 0 for none. The crate reports errors of its source as texts.
    excess: Arc<AtomicU64>,
}

impl Checked {
    pub(super) fn new(source: Arc<dyn Source>, buffer: usize) -> Self {
        Self { source, buffer, excess: Arc::default() }
    }

    fn bytes(&self, start: u64, len: u64) -> io::Result<Vec<u8>> {
        let end = start.checked_add(len);
        if end.is_none_or(|end| end > self.source.size()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "an address beyond the end"));
        }
        if len > self.buffer as u64 {
            return Err(self.exceeded(len));
        }
        let mut bytes = vec![0; len as usize];
        self.source.read_at(start, &mut bytes)?;
        Ok(bytes)
    }

    fn exceeded(&self, bytes: u64) -> io::Error {
        self.excess.store(bytes, Ordering::Relaxed);
        io::Error::other("a page exceeds the buffer")
    }

    /// Returns the crate's error as an error of the file.
    pub(super) fn failed(&self, error: impl std::fmt::Display) -> DatasetError {
        match self.excess.swap(0, Ordering::Relaxed) {
            0 => DatasetError::Corrupt(error.to_string()),
            bytes => DatasetError::TooLarge { what: "a page", bytes, buffer: self.buffer },
        }
    }

    /// Checks the table of contents at the end.
    pub(super) fn check_contents(&self) -> Result<(), DatasetError> {
        let corrupt = || DatasetError::Corrupt("its table of contents".to_string());
        let end = self.source.size().checked_sub(END).ok_or_else(corrupt)?;
        let tail = self.bytes(end, END).map_err(|_| corrupt())?;
        let len = tail.first_chunk().map_or(0, |len| u64::from(u32::from_le_bytes(*len)));
        let start = end.checked_sub(len).ok_or_else(corrupt)?;
        if len > CONTENTS.max(self.buffer as u64 / CONTENTS_FACTOR) {
            let bytes = len * CONTENTS_FACTOR;
            return Err(DatasetError::TooLarge { what: "its table of contents", bytes, buffer: self.buffer });
        }
        let contents = self.bytes(start, len).map_err(|error| self.failed(error))?;
        if claims::is_sound(&contents) { Ok(()) } else { Err(corrupt()) }
    }

    /// Checks the header of a page.
    fn check_page(&self, header: &[u8]) -> io::Result<()> {
        let PageClaim { bytes, dictionary_values } = PageClaim::new(header);
        // Every value of a dictionary has at least one byte.
        if dictionary_values > bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the number of values in a dictionary"));
        }
        match u64::try_from(bytes) {
            Ok(bytes) if bytes > self.buffer as u64 => Err(self.exceeded(bytes)),
            _ => Ok(()),
        }
    }
}

impl Length for Checked {
    fn len(&self) -> u64 {
        self.source.size()
    }
}

impl ChunkReader for Checked {
    type T = Reader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Reader> {
        Ok(Reader { checked: self.clone(), start, at: start, window: Vec::new(), used: 0 })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        Ok(self.bytes(start, length as u64).map_err(|error| ParquetError::General(error.to_string()))?.into())
    }
}

/// Reads sequentially from a position, some bytes ahead: the header of a page, or the end of the file.
pub(super) struct Reader {
    checked: Checked,
    start: u64,
    at: u64,
    window: Vec<u8>,
    used: usize,
}

impl io::Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used == self.window.len() {
            let left = self.checked.source.size().saturating_sub(self.at);
            self.window = self.checked.bytes(self.at, left.min(WINDOW))?;
            if self.at == self.start && left > END {
                self.checked.check_page(&self.window)?;
            }
            self.used = 0;
            self.at += self.window.len() as u64;
        }
        let rest = self.window.get(self.used..).unwrap_or_default();
        let len = rest.len().min(out.len());
        if let (Some(out), Some(rest)) = (out.get_mut(..len), rest.get(..len)) {
            out.copy_from_slice(rest);
        }
        self.used += len;
        Ok(len)
    }
}

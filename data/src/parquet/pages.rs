//! Checks that pages match their headers, before the crate allocates memory for them.

use std::{io, sync::Arc};

use bytes::Bytes;
use parquet::{
    basic::Compression,
    errors::ParquetError,
    file::{
        metadata::ColumnChunkMetaData,
        reader::{ChunkReader, Length},
    },
};

use super::{
    super::{dataset::DatasetError, source::Source},
    content::{is_open_ended, may_hold},
    footer,
    thrift::{PageHeader, page_header},
};

/// A page may declare this multiple of its own size without a check.
const PLAUSIBLE: u64 = 2;

/// Memory that the table of contents of any file may use, in bytes.
const CONTENTS: u64 = 512 << 10;

/// The size of a column's chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    /// In the file.
    pub(super) bytes: u64,
    /// After decompression.
    pub(super) held: u64,
}

/// A source for the parquet crate that checks each range before it allocates memory.
#[derive(Clone)]
pub(super) struct Checked {
    source: Arc<dyn Source>,
    buffer: usize,
}

impl Checked {
    pub(super) fn new(source: Arc<dyn Source>, buffer: usize) -> Self {
        Self { source, buffer }
    }

    fn bytes(&self, start: u64, len: usize) -> io::Result<Vec<u8>> {
        let end = start.checked_add(len as u64);
        if end.is_none_or(|end| end > self.source.size()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "an address beyond the end"));
        }
        if len > self.buffer {
            let problem = format!("{len} bytes are read at once, the buffer is {}: declare a larger one", self.buffer);
            return Err(io::Error::other(problem));
        }
        let mut bytes = vec![0; len];
        self.source.read_at(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that the table of contents at the end is valid, and that its objects need at most half of the file's size in
    /// memory.
    pub(super) fn check_contents(&self) -> Result<(), DatasetError> {
        let corrupt = || DatasetError::Corrupt("its table of contents".to_string());
        let size = self.source.size();
        let end = size.checked_sub(8).ok_or_else(corrupt)?;
        let tail = self.bytes(end, 8).map_err(|_| corrupt())?;
        let len = tail.first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
        let start = end.checked_sub(u64::from(len)).ok_or_else(corrupt)?;
        let contents = self.bytes(start, len as usize).map_err(|error| DatasetError::Corrupt(error.to_string()))?;
        let bytes = footer::memory(&contents).ok_or_else(corrupt)?;
        let limit = CONTENTS.max(size / 2);
        if bytes > limit {
            return Err(DatasetError::Contents { bytes, limit });
        }
        if bytes > CONTENTS.max(self.buffer as u64) {
            return Err(DatasetError::TooLarge { what: "its table of contents", bytes, buffer: self.buffer });
        }
        Ok(())
    }

    /// Checks that the pages of a chunk are within the file, match their headers, and fit into the buffer after
    /// decompression.
    pub(super) fn check(&self, chunk: &ColumnChunkMetaData) -> Result<Chunk, DatasetError> {
        let corrupt = |what: &str| DatasetError::Corrupt(format!("{what} of column '{}'", chunk.column_path()));
        let first = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let (start, len) = (u64::try_from(first), u64::try_from(chunk.compressed_size()));
        let (Ok(mut at), Ok(len)) = (start, len) else { return Err(corrupt("the place of the pages")) };
        let end = at.checked_add(len).filter(|end| *end <= self.source.size());
        let end = end.ok_or_else(|| corrupt("the place of the pages"))?;
        if chunk.data_page_offset() < 0 || chunk.num_values() < 0 {
            return Err(corrupt("the place of the pages"));
        }
        let (mut largest, mut held) = (0, 0);
        while at < end {
            let header = self.header(at, end - at).ok_or_else(|| corrupt("the header of a page"))?;
            let sizes = (u64::try_from(header.uncompressed), u64::try_from(header.compressed));
            let (Ok(uncompressed), Ok(compressed)) = sizes else { return Err(corrupt("the size of a page")) };
            // Every value of a dictionary has at least one byte.
            if header.dictionary_values < 0 || header.dictionary_values as u64 > uncompressed {
                return Err(corrupt("the number of values in a dictionary"));
            }
            if uncompressed > self.buffer as u64 {
                return Err(DatasetError::TooLarge { what: "a page", bytes: uncompressed, buffer: self.buffer });
            }
            (largest, held) = (largest.max(uncompressed), held + uncompressed);
            at += header.bytes as u64;
            let next = at.checked_add(compressed).filter(|next| *next <= end);
            let next = next.ok_or_else(|| corrupt("the size of a page"))?;
            let codec = chunk.compression();
            if matches!(codec, Compression::ZSTD(_)) && !cfg!(feature = "zstd") {
                return Err(super::NO_ZSTD);
            }
            if !header.is_stored && (is_open_ended(codec) || uncompressed / PLAUSIBLE > compressed) {
                let page = self.bytes(at, compressed as usize).map_err(|_| corrupt("a page"))?;
                // In the second version, levels are outside the compressed data.
                let levels = usize::try_from(header.levels).ok();
                let levels = levels.filter(|levels| *levels <= page.len() && *levels as u64 <= uncompressed);
                let levels = levels.ok_or_else(|| corrupt("the levels of a page"))?;
                let held = uncompressed as usize - levels;
                if held > 0 && !may_hold(codec, page.get(levels..).unwrap_or_default(), held) {
                    return Err(corrupt("the size of a page"));
                }
            }
            at = next;
        }
        // A value is always within one page.
        match u64::try_from(chunk.column_descr().type_length()) {
            Ok(width) if width > largest && chunk.num_values() > 0 => Err(corrupt("the width of the values")),
            _ => Ok(Chunk { bytes: len, held }),
        }
    }

    /// Returns the header of the page at a position, with at most `left` bytes until its end.
    fn header(&self, at: u64, left: u64) -> Option<PageHeader> {
        let read = |most: u64| self.bytes(at, left.min(most) as usize).ok();
        // Statistics can be long.
        page_header(&read(512)?).or_else(|| page_header(&read((64 << 10).min(self.buffer as u64))?))
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
        Ok(Reader { checked: self.clone(), at: start, window: Vec::new(), used: 0 })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        Ok(self.bytes(start, length).map_err(|error| ParquetError::General(error.to_string()))?.into())
    }
}

/// Reads sequentially from a position, some bytes ahead.
pub(super) struct Reader {
    checked: Checked,
    at: u64,
    window: Vec<u8>,
    used: usize,
}

impl io::Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used == self.window.len() {
            let left = self.checked.source.size().saturating_sub(self.at).min(512) as usize;
            self.window = self.checked.bytes(self.at, left)?;
            (self.used, self.at) = (0, self.at + left as u64);
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

//! Gives the parquet crate a source's bytes, and refuses parts that exceed the declared buffer before the crate allocates
//! memory for them.

use std::{
    collections::HashMap,
    io::{self, Read},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::{
    basic::Compression,
    errors::ParquetError,
    file::{
        metadata::RowGroupMetaData,
        reader::{ChunkReader, Length},
    },
};

use super::{
    super::{dataset::DatasetError, source::Source},
    claims::{self, PageClaim},
};

/// Number of bytes that are read in one call in headers of pages.
const WINDOW: u64 = 512;
/// Maximum size of a page's header, whose statistics may be long.
const HEADER: u64 = 64 << 10;
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
    /// Size of pages that exceed the buffer; 0 for none. The crate reports errors of its source as texts.
    excess: Arc<AtomicU64>,
    /// The row group that is read; none while the table of contents is read.
    group: Option<Arc<Mutex<Group>>>,
}

/// The columns of a row group, in the order of their places.
struct Group {
    columns: Vec<Column>,
    /// Pages whose headers were read, by their places.
    pages: HashMap<u64, (Compression, PageClaim)>,
    /// Size of the last pages of all columns.
    held: u64,
}

struct Column {
    start: u64,
    end: u64,
    codec: Compression,
    /// Sizes of the dictionary and of the last page, which are in memory together.
    dictionary: u64,
    page: u64,
}

impl Checked {
    pub(super) fn new(source: Arc<dyn Source>, buffer: usize) -> Self {
        Self { source, buffer, excess: Arc::default(), group: None }
    }

    /// Returns the source for the pages of a row group: its columns share no bytes.
    pub(super) fn of_group(&self, group: &RowGroupMetaData) -> Result<Self, DatasetError> {
        let mut columns = Vec::with_capacity(group.num_columns());
        for column in group.columns() {
            let (start, len) = column.byte_range();
            let end = start.saturating_add(len);
            columns.push(Column { start, end, codec: column.compression(), dictionary: 0, page: 0 });
        }
        columns.sort_by_key(|column| (column.start, column.end));
        let ends = columns.iter().map(|column| column.end);
        let limits = columns.iter().skip(1).map(|next| next.start).chain([self.source.size()]);
        if ends.zip(limits).any(|(end, limit)| end > limit) {
            return Err(DatasetError::Corrupt("the places of its columns".to_string()));
        }
        let group = Group { columns, pages: HashMap::new(), held: 0 };
        Ok(Self { group: Some(Arc::new(Mutex::new(group))), ..self.clone() })
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
        io::Error::other("pages exceed the buffer")
    }

    /// Returns the crate's error as an error of the file.
    pub(super) fn failed(&self, error: impl std::fmt::Display) -> DatasetError {
        match self.excess.swap(0, Ordering::Relaxed) {
            0 => DatasetError::Corrupt(error.to_string()),
            bytes => DatasetError::TooLarge { what: "the pages that are read together", bytes, buffer: self.buffer },
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

    /// Returns the bytes from a position on: the header of a page, which is checked.
    fn header(&self, group: &Mutex<Group>, at: u64) -> io::Result<Vec<u8>> {
        let left = self.source.size().saturating_sub(at).min(self.buffer as u64);
        for most in [WINDOW, HEADER] {
            let bytes = self.bytes(at, left.min(most))?;
            if let Some((claim, len)) = PageClaim::new(&bytes) {
                return self.admit(group, at, len as u64, claim).map(|()| bytes);
            }
        }
        Err(damaged("the header of a page"))
    }

    /// Takes a page into account, with its header of this length.
    fn admit(&self, group: &Mutex<Group>, at: u64, len: u64, claim: PageClaim) -> io::Result<()> {
        let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
        let group = &mut *group;
        let column = group.columns.iter_mut().find(|column| (column.start..column.end).contains(&at));
        let column = column.ok_or_else(|| damaged("the place of a page"))?;
        let bytes = u64::try_from(claim.bytes.max(claim.stored)).unwrap_or(u64::MAX);
        let held = if claim.is_dictionary { &mut column.dictionary } else { &mut column.page };
        group.held = group.held - std::mem::replace(held, bytes) + bytes;
        if group.held > self.buffer as u64 {
            return Err(self.exceeded(group.held));
        }
        group.pages.insert(at + len, (column.codec, claim));
        Ok(())
    }

    /// Checks that a page decompresses to no more than its header claims. The crate checks it afterwards for two codecs.
    fn check_page(&self, group: &Mutex<Group>, at: u64, page: &[u8]) -> io::Result<()> {
        let claim = group.lock().unwrap_or_else(PoisonError::into_inner).pages.remove(&at);
        let (codec, claim) = claim.ok_or_else(|| damaged("a page without a header"))?;
        let content = page.get(claim.levels as usize..).unwrap_or_default();
        let limit = (claim.bytes - claim.levels) as u64;
        let is_larger = !claim.is_plain
            && match codec {
                Compression::GZIP(_) => exceeds(MultiGzDecoder::new(content), limit),
                Compression::LZ4 => exceeds(FrameDecoder::new(content), limit),
                _ => false,
            };
        if is_larger { Err(damaged("the size of a page")) } else { Ok(()) }
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns whether there are more bytes than `limit`, without keeping them. An error before is the crate's error, too.
fn exceeds(content: impl Read, limit: u64) -> bool {
    io::copy(&mut content.take(limit + 1), &mut io::sink()).is_ok_and(|bytes| bytes > limit)
}

impl Length for Checked {
    fn len(&self) -> u64 {
        self.source.size()
    }
}

impl ChunkReader for Checked {
    type T = PageReader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<PageReader> {
        Ok(PageReader { checked: self.clone(), start, at: start, window: Vec::new(), used: 0 })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.bytes(start, length as u64).and_then(|bytes| {
            let check = self.group.as_ref().map_or(Ok(()), |group| self.check_page(group, start, &bytes));
            check.map(|()| bytes)
        });
        Ok(bytes.map_err(|error| ParquetError::General(error.to_string()))?.into())
    }
}

/// Reads sequentially from a position, some bytes ahead: the header of a page, or the end of the file.
pub(super) struct PageReader {
    checked: Checked,
    start: u64,
    at: u64,
    window: Vec<u8>,
    used: usize,
}

impl io::Read for PageReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used == self.window.len() {
            let left = self.checked.source.size().saturating_sub(self.at);
            self.window = match &self.checked.group {
                Some(group) if self.at == self.start => self.checked.header(group, self.at)?,
                _ => self.checked.bytes(self.at, left.min(WINDOW))?,
            };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_measured_to_the_limit() {
        let mut frame = Vec::new();
        crate::lz4::compress(&[7; 100_000], &mut frame);
        let exceeds = |limit| exceeds(FrameDecoder::new(&*frame), limit);
        assert!(exceeds(10) && exceeds(99_999) && !exceeds(100_000));
    }
}

//! Reads the lines of a file, or of the files in a zip archive, within a memory limit.

use std::{
    fs::File,
    io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::offline::OfflineError;

/// Maximum size of a single read in bytes.
const CHUNK: usize = 256 << 10;

/// The next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextLine<'a> {
    /// A line, without its newline.
    Whole(&'a [u8]),
    /// A line that the caller skips.
    Passed,
    /// A line that exceeds this limit in bytes.
    TooLong(usize),
    /// The end of the file.
    End,
}

/// An open file.
pub(super) struct JsonFile {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    bytes_read: u64,
    /// Ranges of the archive's remaining files, the next one last.
    parts: Vec<ArchivedFile>,
    buffer: Vec<u8>,
    /// The part of the buffer that has been read and not returned yet.
    held: Range<usize>,
}

/// A file in an archive.
struct ArchivedFile {
    bytes: Range<u64>,
    deflated: bool,
}

impl JsonFile {
    pub(super) fn open(path: &Path) -> Result<Self, OfflineError> {
        let failed = |source| OfflineError::Read { path: path.into(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut buffer = Vec::with_capacity(CHUNK);
        let held = file.by_ref().take(CHUNK as u64).read_to_end(&mut buffer).map_err(failed)?;
        buffer.resize(CHUNK, 0);
        // Checked by content as well as by name, since no line begins like an archive.
        let is_archive = buffer.starts_with(b"PK") || path.extension().is_some_and(|ending| ending == "zip");
        let (reader, parts, held): (Box<dyn Read + Send>, _, _) = if is_archive {
            let parts = parts(file).map_err(|reason| OfflineError::Zip { path: path.into(), reason })?;
            (Box::new(io::empty()), parts, 0)
        } else {
            (Box::new(file), Vec::new(), held)
        };
        Ok(Self { path: path.into(), reader, bytes_read: 0, parts, buffer, held: 0..held })
    }

    /// Returns the number of bytes consumed; for an archive these are decompressed bytes.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads the next line, of which at most `room` bytes are held; skips it if it is not wanted.
    pub(super) fn line(&mut self, wanted: bool, room: usize) -> Result<NextLine<'_>, OfflineError> {
        // The number of searched bytes of the held text, whether any byte was seen, and whether the line was too long.
        let (mut seen, mut any, mut too_long) = (0, false, false);
        let line = loop {
            let held = &self.buffer[self.held.clone()];
            any |= !held.is_empty();
            if let Some(end) = memchr::memchr(b'\n', &held[seen..]) {
                let line = self.held.start..self.held.start + seen + end;
                self.give(line.len() + 1);
                break line;
            }
            seen = held.len();
            too_long |= seen > room;
            if too_long || !wanted {
                self.give(seen);
                seen = 0;
            }
            if self.read_on(room)? {
                continue;
            }
            if any {
                let line = self.held.clone();
                self.give(line.len());
                break line;
            }
            let Some(part) = self.parts.pop() else { return Ok(NextLine::End) };
            self.reader = open_part(&self.path, part).map_err(|error| self.failed(error))?;
        };
        Ok(match wanted {
            false => NextLine::Passed,
            true if too_long || line.len() > room => NextLine::TooLong(room),
            true => NextLine::Whole(&self.buffer[line]),
        })
    }

    /// Releases held bytes and counts them as read.
    fn give(&mut self, bytes: usize) {
        self.held.start += bytes;
        self.bytes_read += bytes as u64;
    }

    /// Reads more of a line of at most `room` bytes, after moving the held bytes to the front; false at the end of the file.
    fn read_on(&mut self, room: usize) -> Result<bool, OfflineError> {
        self.buffer.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        if self.held.end == self.buffer.len() {
            self.buffer.resize((2 * self.buffer.len()).min(room.saturating_add(CHUNK)), 0);
        }
        let read = loop {
            match self.reader.read(&mut self.buffer[self.held.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(|error| self.failed(error))?,
            }
        };
        self.held.end += read;
        Ok(read > 0)
    }

    fn failed(&self, source: io::Error) -> OfflineError {
        OfflineError::Read { path: self.path.clone(), source }
    }
}

/// Returns the JSON files of an archive, the last one first.
fn parts(file: File) -> Result<Vec<ArchivedFile>, String> {
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    let mut parts = Vec::new();
    for index in 0..archive.len() {
        let part = archive.by_index_raw(index).map_err(|error| error.to_string())?;
        let name = part.name().map_err(|error| error.to_string())?;
        if !part.is_file() || ![".json", ".jsonl"].iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        if part.encrypted() {
            return Err(format!("'{name}' in it is encrypted"));
        }
        let deflated = match part.compression() {
            CompressionMethod::Stored => false,
            CompressionMethod::Deflated => true,
            other => return Err(format!("'{name}' in it is compressed by {other}, not by deflate")),
        };
        let start = part.data_start().ok_or_else(|| format!("the position of '{name}' in it is unknown"))?;
        parts.push(ArchivedFile { bytes: start..start.saturating_add(part.compressed_size()), deflated });
    }
    parts.reverse();
    Ok(parts)
}

fn open_part(path: &Path, part: ArchivedFile) -> io::Result<Box<dyn Read + Send>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(part.bytes.start))?;
    let bytes = file.take(part.bytes.end - part.bytes.start);
    Ok(if part.deflated { Box::new(DeflateDecoder::new(bytes)) } else { Box::new(bytes) })
}

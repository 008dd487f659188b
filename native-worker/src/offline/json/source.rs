//! The lines of a file, or of the files in an archive, no more of them in memory than there is room for.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::offline::OfflineError;

/// What is read from a file at once.
const CHUNK: usize = 256 << 10;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, which is in the buffer.
    Whole,
    /// A line that is longer than there is room for; so much of it is.
    TooLong(usize),
    /// The end.
    End,
}

/// An open file.
pub(super) struct Source {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    bytes_read: u64,
    /// Where the other files of an archive are, the next one last.
    parts: Vec<Part>,
}

/// A file in an archive.
struct Part {
    bytes: Range<u64>,
    deflated: bool,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, OfflineError> {
        let failed = |source| OfflineError::Read { path: path.into(), source };
        let mut reader = BufReader::with_capacity(CHUNK, File::open(path).map_err(failed)?);
        // Whatever its name, as no line begins like an archive.
        let is_archive = reader.fill_buf().map_err(failed)?.starts_with(b"PK");
        if !is_archive && path.extension().is_none_or(|ending| ending != "zip") {
            return Ok(Self { path: path.into(), reader: Box::new(reader), bytes_read: 0, parts: Vec::new() });
        }
        let parts = parts(reader.into_inner()).map_err(|reason| OfflineError::Zip { path: path.into(), reason })?;
        Ok(Self { path: path.into(), reader: Box::new(io::empty()), bytes_read: 0, parts })
    }

    /// Bytes so far, as far as they are the file's own.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads the next line into `buffer`, without its end and at most `room` bytes of it; only passes over it if there is
    /// no buffer.
    pub(super) fn line(&mut self, mut buffer: Option<&mut Vec<u8>>, room: usize) -> Result<Line, OfflineError> {
        let failed = |path: &Path, source| OfflineError::Read { path: path.into(), source };
        if let Some(buffer) = &mut buffer {
            buffer.clear();
        }
        let (mut any, mut too_long) = (false, false);
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(&self.path, error)),
            };
            if available.is_empty() {
                if any {
                    break;
                }
                let Some(part) = self.parts.pop() else { return Ok(Line::End) };
                self.reader = open_part(&self.path, part).map_err(|error| failed(&self.path, error))?;
                continue;
            }
            any = true;
            let end = memchr::memchr(b'\n', available);
            let piece = &available[..end.unwrap_or(available.len())];
            if let Some(buffer) = &mut buffer {
                let fits = piece.len().min(room - buffer.len());
                too_long |= fits < piece.len();
                buffer.extend_from_slice(&piece[..fits]);
            }
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            self.bytes_read += used as u64;
            if end.is_some() {
                break;
            }
        }
        Ok(if too_long { Line::TooLong(room) } else { Line::Whole })
    }
}

/// The JSON files of an archive, the last one first.
fn parts(file: File) -> Result<Vec<Part>, String> {
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    let mut parts = Vec::new();
    for index in 0..archive.len() {
        let part = archive.by_index_raw(index).map_err(|error| error.to_string())?;
        let name = part.name().map_err(|error| error.to_string())?;
        if !part.is_file() || !name.ends_with(".json") {
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
        let start = part.data_start().ok_or_else(|| format!("nobody knows where '{name}' in it begins"))?;
        parts.push(Part { bytes: start..start.saturating_add(part.compressed_size()), deflated });
    }
    parts.reverse();
    Ok(parts)
}

fn open_part(path: &Path, part: Part) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(part.bytes.start))?;
    let bytes = file.take(part.bytes.end - part.bytes.start);
    Ok(match part.deflated {
        true => Box::new(BufReader::with_capacity(CHUNK, DeflateDecoder::new(bytes))),
        false => Box::new(BufReader::with_capacity(CHUNK, bytes)),
    })
}

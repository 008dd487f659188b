//! Defines sources of a file's bytes.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes that can be read at any position: a file on disk, or a file dropped into a page.
pub trait Source: Send + Sync {
    /// Returns the number of bytes.
    fn size(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// I/O errors of the source, and [`io::ErrorKind::UnexpectedEof`] for missing bytes.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A file on disk that is read on demand, without a copy in memory.
#[derive(Debug)]
pub struct FileSource {
    file: Mutex<File>,
    size: u64,
}

impl FileSource {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The errors of opening it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file: Mutex::new(file), size })
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        // A reader that panicked may have left any position, but every read sets it.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, out)
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        let bytes = self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

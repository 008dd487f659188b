//! Where the bytes of a file come from.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// Bytes that can be read at any place: a file on disk, or one that was dropped into a page.
pub trait Source: Send + Sync {
    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Those of the medium, and [`io::ErrorKind::UnexpectedEof`] where bytes are missing.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A file on disk, read where it is asked for and held nowhere.
#[derive(Debug)]
pub struct FileSource {
    file: Mutex<File>,
    size: u64,
}

impl FileSource {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of opening it.
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
        // A reader that panicked leaves the position anywhere, and every read sets it.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
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

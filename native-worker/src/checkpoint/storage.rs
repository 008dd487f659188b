//! The file-system operations that checkpoints need.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::Path,
};

/// A file system, or a test double that simulates crashes.
pub trait Storage {
    /// Returns the names in a directory.
    ///
    /// # Errors
    /// The operating system's error, as for all methods below.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Returns the contents of a file of at most `most` bytes; a longer one is an error before it is read into memory.
    ///
    /// # Errors
    /// The operating system's error.
    fn read(&self, file: &Path, most: u64) -> io::Result<Vec<u8>>;

    /// Creates a directory and its parents, unless they exist. Their names are synced when this returns.
    ///
    /// # Errors
    /// The operating system's error.
    fn create_dir(&mut self, dir: &Path) -> io::Result<()>;

    /// Writes a new file. Its contents are synced when this returns, its name is not yet.
    ///
    /// # Errors
    /// The operating system's error.
    fn write(&mut self, file: &Path, contents: &[u8]) -> io::Result<()>;

    /// Syncs the names in a directory.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;

    /// Renames a directory.
    ///
    /// # Errors
    /// The operating system's error.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a directory and the files in it.
    ///
    /// # Errors
    /// The operating system's error.
    fn remove_dir(&mut self, dir: &Path) -> io::Result<()>;
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
        fs::read_dir(dir)?.filter_map(|entry| name(entry).transpose()).collect()
    }

    fn read(&self, file: &Path, most: u64) -> io::Result<Vec<u8>> {
        let file = File::open(file)?;
        let len = file.metadata()?.len();
        if len > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {len} bytes instead of {most}")));
        }
        let mut contents = Vec::with_capacity(len as usize);
        file.take(most).read_to_end(&mut contents)?;
        Ok(contents)
    }

    fn create_dir(&mut self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        self.create_dir(above)?;
        match fs::create_dir(dir) {
            // Another process has created it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            made => made?,
        }
        self.sync_dir(above)
    }

    fn write(&mut self, file: &Path, contents: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(file)?;
        file.write_all(contents)?;
        file.sync_all()
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        rollmesh_data::sync_folder(dir)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_dir(&mut self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }
}

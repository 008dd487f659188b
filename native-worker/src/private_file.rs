//! Files that only their owner may read.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

/// Writes a file that only its owner may read, atomically.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    // May be left over from an interrupted write, perhaps with other permissions.
    let _ = fs::remove_file(&unfinished);
    let mut file = options().write(true).create_new(true).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    #[cfg(unix)]
    {
        // Flushes the directory, so that the old file does not reappear after a power failure.
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Waits for the lock of this name, and holds it as long as the returned file exists.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let file = append(path)?;
    file.lock()?;
    Ok(file)
}

/// Opens a file for appending; a new one is readable by its owner only.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    options().append(true).create(true).open(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options
}

/// True if other users may read the file.
pub(crate) fn is_public(path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(fs::metadata(path)?.permissions().mode() & 0o077 != 0)
    }
    #[cfg(not(unix))]
    fs::metadata(path).map(|_| false)
}

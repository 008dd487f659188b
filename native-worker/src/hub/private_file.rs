//! Files that nobody else may read.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

/// Writes a file that only its owner may read. It appears whole or not at all.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    // Left behind by somebody who could not finish, perhaps with other permissions.
    let _ = fs::remove_file(&unfinished);
    let mut file = options().write(true).create_new(true).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    #[cfg(unix)]
    {
        // So that the old one does not come back when the power goes.
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Waits until no other process holds the lock of this name, and holds it as long as the file that is returned.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let file = append(path)?;
    file.lock()?;
    Ok(file)
}

/// Opens a file to write at its end, and makes one that only its owner may read if there is none.
pub(super) fn append(path: &Path) -> io::Result<File> {
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

/// Whether others may read it.
pub(super) fn is_public(path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(fs::metadata(path)?.permissions().mode() & 0o077 != 0)
    }
    #[cfg(not(unix))]
    fs::metadata(path).map(|_| false)
}

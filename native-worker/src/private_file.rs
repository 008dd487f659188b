//! Files that only their owner may read.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use rollmesh_data::FileKind;

/// Writes a file that only its owner may read, atomically.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    rollmesh_data::replace(path, FileKind::Private, |file| file.write_all(bytes))
}

/// Gives a file of root the owner of its folder, such as the user of a service that has to read it, as far as that is allowed.
/// Symbolic links are not followed: the owner of the folder can make one to any file of root.
pub(crate) fn leave_to_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        use std::os::unix::fs::{MetadataExt as _, lchown};
        let folder = fs::metadata(folder)?;
        if fs::symlink_metadata(path)?.uid() == 0 && folder.uid() != 0 {
            // In a user namespace, the owner of the folder may be unknown.
            let _ = lchown(path, Some(folder.uid()), Some(folder.gid()));
        }
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
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.append(true).create(true).open(path)
}

/// Returns whether other users may read the file.
pub(crate) fn is_public(path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(fs::metadata(path)?.permissions().mode() & 0o077 != 0)
    }
    #[cfg(not(unix))]
    fs::metadata(path).map(|_| false)
}

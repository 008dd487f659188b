//! Atomic replacement of files.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
};

/// The permissions of a new file, and its durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The user's default permissions. The file is on the disk when it is written: it survives a power failure.
    Durable,
    /// The same, for one user only: the owner of the file that it replaces, else the one who writes it.
    Private,
    /// The user's default permissions. The file belongs to a running program, so writing does not wait for the disk.
    Scratch,
}

/// Replaces a file atomically: `write` writes a temporary file next to it, which has its name and `.tmp`, and then gets its
/// name. After an error there is no temporary file, and the file is the old one or complete.
///
/// # Errors
/// Those of `write` and of the operating system. The caller must exclude other writers of the file.
pub fn replace(path: &Path, kind: FileKind, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let unfinished = path.with_added_extension("tmp");
    // May be left over from an interrupted write, perhaps with other permissions.
    let _ = fs::remove_file(&unfinished);
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    if kind == FileKind::Private {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let mut file = options.write(true).create_new(true).open(&unfinished)?;
    let finish = || {
        #[cfg(unix)]
        if kind == FileKind::Private {
            keep_owner(path, &file)?;
        }
        write(&mut file)?;
        if kind == FileKind::Scratch {
            return fs::rename(&unfinished, path);
        }
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        sync_folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new(".")))
    };
    finish().inspect_err(|_| {
        // Frees space on a full disk; only the first error is reported.
        let _ = fs::remove_file(&unfinished);
    })
}

/// Gives a new file the owner and the group of the one that it replaces: root may replace a file that a service has to read.
#[cfg(unix)]
fn keep_owner(path: &Path, new: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    let owner = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        old => old.map(|old| (old.uid(), old.gid()))?,
    };
    let ours = new.metadata().map(|new| (new.uid(), new.gid()))?;
    let changed = if owner == ours { Ok(()) } else { fchown(new, Some(owner.0), Some(owner.1)) };
    // A group that its owner may not give has no permissions either.
    if owner.0 == ours.0 { Ok(()) } else { changed }
}

/// Syncs the names in a folder, so that new and renamed files survive a power failure. Other systems than Unix cannot do that.
///
/// # Errors
/// The operating system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn failed_write_leaves_old_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.json");
        let names = || fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        for kind in [FileKind::Durable, FileKind::Private, FileKind::Scratch] {
            // As after a process was killed.
            fs::write(path.with_added_extension("tmp"), "half").unwrap();
            replace(&path, kind, |file| file.write_all(b"old")).unwrap();
            let full = |file: &mut File| {
                file.write_all(b"new")?;
                Err(io::ErrorKind::StorageFull.into())
            };
            assert_eq!(replace(&path, kind, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!((fs::read(&path).unwrap(), names()), (b"old".to_vec(), vec!["file.json".into()]));
        }
        // A folder has the name of the file.
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert!(replace(&dir.path().join("folder"), FileKind::Durable, |file| file.write_all(b"new")).is_err());
        assert_eq!(names().len(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn private_file_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(path.with_added_extension("tmp"), "").unwrap();
        replace(&path, FileKind::Private, |file| file.write_all(b"secret")).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Only root can replace a file of another user: other users check that their own one stays theirs.
    #[cfg(unix)]
    #[test]
    fn replaced_private_file_keeps_its_owner() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        replace(&path, FileKind::Private, |file| file.write_all(b"old")).unwrap();
        if fs::metadata(&path).unwrap().uid() == 0 {
            chown(&path, Some(65_534), Some(65_534)).unwrap();
        }
        let owner = || fs::metadata(&path).map(|file| (file.uid(), file.gid())).unwrap();
        let before = owner();
        replace(&path, FileKind::Private, |file| file.write_all(b"new")).unwrap();
        assert_eq!(owner(), before);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

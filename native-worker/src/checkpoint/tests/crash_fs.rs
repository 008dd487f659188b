//! A file system that logs all operations and can show the state after a crash.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use crate::checkpoint::Storage;

/// Clones are the same file system.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashFs(Rc<RefCell<Log>>);

#[derive(Clone, Debug)]
struct Log {
    operations: Vec<Operation>,
    /// Number of further operations that succeed.
    room: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self { operations: Vec::new(), room: usize::MAX }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    CreateDir(PathBuf),
    CreateFile(PathBuf),
    /// A part of a file's contents.
    Append(PathBuf, Vec<u8>),
    SyncFile(PathBuf),
    SyncDir(PathBuf),
    Rename(PathBuf, PathBuf),
    RemoveFile(PathBuf),
    RemoveDir(PathBuf),
}

/// The effect of a crash on operations that were not synced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    contents: Fate,
    names: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// Every second one is lost: the system writes in any order.
    Mixed,
}

impl Loss {
    pub(super) const ALL: [Self; 9] = {
        const FATES: [Fate; 3] = [Fate::Kept, Fate::Lost, Fate::Mixed];
        let mut all = [Self { contents: Fate::Kept, names: Fate::Kept }; 9];
        let mut at = 0;
        while at < 9 {
            all[at] = Self { contents: FATES[at / 3], names: FATES[at % 3] };
            at += 1;
        }
        all
    };
}

impl Fate {
    fn keeps(self, number: usize) -> bool {
        match self {
            Self::Kept => true,
            Self::Lost => false,
            Self::Mixed => number.is_multiple_of(2),
        }
    }
}

#[derive(Default)]
struct Tree {
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl CrashFs {
    /// Returns the number of moments in which a crash is possible.
    pub(super) fn moments(&self) -> usize {
        self.0.borrow().operations.len()
    }

    /// Simulates a full disk after this many more operations.
    pub(super) fn fail_after(&self, operations: usize) {
        self.0.borrow_mut().room = operations;
    }

    /// Returns the state after a crash at that moment.
    pub(super) fn crashed(&self, moment: usize, loss: Loss) -> Self {
        let log = self.0.borrow();
        let happened = &log.operations[..moment];
        let operations = happened.iter().enumerate().filter(|(at, operation)| {
            let later = &happened[at + 1..];
            let is_named = |dir: Option<&Path>| {
                later.iter().any(|later| matches!(later, Operation::SyncDir(synced) if Some(synced.as_path()) == dir))
            };
            match operation {
                Operation::Append(file, _) => {
                    later.iter().any(|later| matches!(later, Operation::SyncFile(synced) if synced == file))
                        || loss.contents.keeps(*at)
                }
                Operation::CreateDir(path)
                | Operation::CreateFile(path)
                | Operation::Rename(path, _)
                | Operation::RemoveFile(path)
                | Operation::RemoveDir(path) => is_named(path.parent()) || loss.names.keeps(*at),
                Operation::SyncFile(_) | Operation::SyncDir(_) => true,
            }
        });
        let operations = operations.map(|(_, operation)| operation.clone()).collect();
        Self(Rc::new(RefCell::new(Log { operations, room: usize::MAX })))
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        for operation in &self.0.borrow().operations {
            match operation {
                Operation::CreateDir(dir) => _ = tree.dirs.insert(dir.clone()),
                Operation::CreateFile(file) => {
                    // A file exists only in an existing directory.
                    if file.parent().is_some_and(|dir| tree.dirs.contains(dir)) {
                        tree.files.insert(file.clone(), Vec::new());
                    }
                }
                Operation::Append(file, part) => {
                    // The contents of a file whose name was lost are lost, too.
                    if let Some(contents) = tree.files.get_mut(file) {
                        contents.extend_from_slice(part);
                    }
                }
                Operation::Rename(from, to) => tree.rename(from, to),
                Operation::RemoveFile(file) => _ = tree.files.remove(file),
                Operation::RemoveDir(dir) => _ = tree.dirs.remove(dir),
                Operation::SyncFile(_) | Operation::SyncDir(_) => {}
            }
        }
        tree
    }

    fn log(&self, operation: Operation) -> io::Result<()> {
        let mut log = self.0.borrow_mut();
        // Removing needs no space.
        if !matches!(operation, Operation::RemoveFile(_) | Operation::RemoveDir(_)) {
            log.room = log.room.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        }
        log.operations.push(operation);
        Ok(())
    }
}

impl Tree {
    fn rename(&mut self, from: &Path, to: &Path) {
        if !self.dirs.remove(from) {
            return;
        }
        self.dirs.insert(to.into());
        let inside: Vec<PathBuf> = self.files.keys().filter(|file| file.starts_with(from)).cloned().collect();
        for file in inside {
            if let (Some(contents), Some(name)) = (self.files.remove(&file), file.file_name()) {
                self.files.insert(to.join(name), contents);
            }
        }
    }
}

impl Storage for CrashFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let tree = self.tree();
        let paths = tree.dirs.iter().chain(tree.files.keys()).filter(|path| path.parent() == Some(dir));
        Ok(paths.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn read(&self, file: &Path, most: u64) -> io::Result<Vec<u8>> {
        let contents = self.tree().files.remove(file).ok_or(io::ErrorKind::NotFound)?;
        if contents.len() as u64 > most { Err(io::ErrorKind::InvalidData.into()) } else { Ok(contents) }
    }

    fn create_dir(&mut self, dir: &Path) -> io::Result<()> {
        if self.tree().dirs.contains(dir) {
            return Ok(());
        }
        self.log(Operation::CreateDir(dir.into()))?;
        self.sync_dir(dir.parent().unwrap_or(dir))
    }

    fn write(&mut self, file: &Path, contents: &[u8]) -> io::Result<()> {
        if self.tree().files.contains_key(file) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.log(Operation::CreateFile(file.into()))?;
        for part in contents.chunks(contents.len().div_ceil(2).max(1)) {
            self.log(Operation::Append(file.into(), part.into()))?;
        }
        self.log(Operation::SyncFile(file.into()))
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.log(Operation::SyncDir(dir.into()))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let tree = self.tree();
        if !tree.dirs.contains(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if tree.dirs.contains(to) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.log(Operation::Rename(from.into(), to.into()))
    }

    fn remove_dir(&mut self, dir: &Path) -> io::Result<()> {
        let tree = self.tree();
        if !tree.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        for file in tree.files.keys().filter(|file| file.starts_with(dir)) {
            self.log(Operation::RemoveFile(file.clone()))?;
        }
        self.log(Operation::RemoveDir(dir.into()))
    }
}

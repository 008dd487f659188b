//! Checkpoints: sets of named files that appear atomically, and whose damage is detected.
//!
//! ```text
//! DIR/00000000000000000007/          the newest checkpoint
//!     manifest.json                  names, lengths and hashes of its files; written last
//!     weights.safetensors, …         its files
//! DIR/00000000000000000006/          the one before, in case the newest one is damaged
//! ```
//!
//! The invariant: once [`save`](Checkpoints::save) has returned, [`load`](Checkpoints::load) finds that checkpoint or a
//! later one, even after a crash of the program or machine. Every file is synced before the manifest, the manifest before
//! the directory is renamed, and the rename before an older checkpoint is removed.
//!
//! The owner decides what the files contain. A run's checkpoints contain a policy among other things, which
//! [`PolicyCheckpoint`] reads.

mod manifest;
mod policy;
mod storage;
#[cfg(test)]
mod tests;
pub(crate) mod weights_file;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use self::manifest::Manifest;
pub(crate) use self::policy::{CHECKPOINTS_DIR, replace};
pub use self::{
    policy::{ExportError, PolicyCheckpoint, PolicyCheckpointError},
    storage::{Disk, Storage},
};

const MANIFEST: &str = "manifest.json";
/// Ending of directories that are being written or removed; they are never read.
const UNFINISHED: &str = ".tmp";

/// The checkpoints of one owner in a directory.
///
/// ```
/// use rollmesh::checkpoint::Checkpoints;
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-checkpoints-doc-{}", std::process::id()));
/// let mut checkpoints = Checkpoints::open(&dir)?;
/// assert!(checkpoints.load()?.is_none());
/// checkpoints.save(&[("weights.bin", b"1.5"), ("ledger.bin", b"42")])?;
/// let found = checkpoints.load()?.expect("it was saved");
/// assert_eq!(found.checkpoint.files["ledger.bin"], b"42");
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Checkpoints<S = Disk> {
    storage: S,
    dir: PathBuf,
    next: u64,
    /// An additional checkpoint that is kept besides the newest ones.
    kept: Option<u64>,
}

/// The files of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number, which increases with every checkpoint of the directory.
    pub number: u64,
    /// Contents by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// The newest valid checkpoint.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Newer checkpoints that are damaged.
    pub damaged: Vec<Damage>,
}

/// A damaged checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint {number}: {reason}")]
pub struct Damage {
    /// The checkpoint.
    pub number: u64,
    /// The file and its problem.
    pub reason: String,
}

/// An error of saving or loading a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system reported an error. Earlier checkpoints are still there.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file's name is invalid (it may consist of lower-case letters, digits, `_`, `-` and inner dots), or used twice.
    #[error("'{0}' cannot be the name of a checkpoint's file: take each name once, of a-z, 0-9, '_', '-' and '.'")]
    BadName(String),
    /// The requested checkpoint is damaged.
    #[error("{dir} is no whole checkpoint: {reason}")]
    Damaged {
        /// The checkpoint's directory.
        dir: PathBuf,
        /// The file and its problem.
        reason: String,
    },
    /// There are checkpoints, but all are damaged.
    #[error("no checkpoint in {dir} can be read: {}", join(.damaged))]
    AllDamaged {
        /// The directory.
        dir: PathBuf,
        /// All checkpoints, newest first.
        damaged: Vec<Damage>,
    },
}

/// Returns the beginning of a message that a place holds nothing of some kind.
pub(crate) fn place(path: &Path) -> String {
    let missing = if path.exists() { "" } else { " does not exist, so it" };
    format!("{}{missing}", path.display())
}

fn join(damaged: &[Damage]) -> String {
    damaged.iter().map(Damage::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns the newest valid checkpoint in a directory, `None` if there are none, without being its owner. Changes nothing
/// there.
///
/// # Errors
/// [`CheckpointError::AllDamaged`], [`CheckpointError::Io`].
pub fn newest(dir: impl Into<PathBuf>) -> Result<Option<Found>, CheckpointError> {
    let checkpoints = Checkpoints { storage: Disk, dir: dir.into(), next: 0, kept: None };
    let mut numbers = checkpoints.numbers()?;
    loop {
        let found = checkpoints.load();
        let now = checkpoints.numbers()?;
        // The owner may have removed the old checkpoints before they were read, after saving newer ones.
        if !matches!(found, Err(CheckpointError::AllDamaged { .. })) || now == numbers {
            return found;
        }
        numbers = now;
    }
}

/// Reads the checkpoint in this directory.
///
/// # Errors
/// [`CheckpointError::Damaged`].
pub fn read(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
    let dir = dir.as_ref();
    let number = dir.file_name().and_then(|name| number_of(name.to_str()?));
    let read = read_in(&Disk, dir, number);
    let (number, files) = read.map_err(|reason| CheckpointError::Damaged { dir: dir.into(), reason })?;
    Ok(Checkpoint { number, files })
}

impl Checkpoints {
    /// Opens the checkpoints in this directory, which is created if needed. There may be one owner at a time.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open_in(Disk, dir)
    }
}

impl<S: Storage> Checkpoints<S> {
    /// Number of checkpoints that are kept: the newest, and another one in case that is damaged. [`keep`](Self::keep) keeps
    /// one more.
    pub const KEPT: usize = 2;

    /// Works like [`open`](Checkpoints::open), with another storage than the disk.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn open_in(mut storage: S, dir: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let dir = dir.into();
        let at = |source| CheckpointError::Io { path: dir.clone(), source };
        storage.create_dir(&dir).map_err(at)?;
        for name in storage.list(&dir).map_err(at)? {
            if name.strip_suffix(UNFINISHED).is_some_and(|name| number_of(name).is_some()) {
                // It does no harm, and removing it is retried when its name is needed.
                let _ = storage.remove_dir(&dir.join(name));
            }
        }
        let mut checkpoints = Self { storage, dir, next: 0, kept: None };
        checkpoints.next = checkpoints.numbers()?.first().map_or(0, |newest| newest + 1);
        Ok(checkpoints)
    }

    /// Keeps the checkpoint with this number, however many newer ones are saved, instead of the one kept before.
    pub fn keep(&mut self, number: Option<u64>) {
        self.kept = number;
    }

    /// Saves a checkpoint with these names and contents of files. It is on disk when this returns its number. If it fails,
    /// earlier checkpoints are unchanged, and this one exists completely or not at all.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn save(&mut self, files: &[(&str, &[u8])]) -> Result<u64, CheckpointError> {
        let manifest = Manifest::of(self.next, files)?;
        let place = self.place(self.next);
        let unfinished = place.with_extension(&UNFINISHED[1..]);
        let written = self.write(&unfinished, files, &manifest).and_then(|()| self.storage.rename(&unfinished, &place));
        if let Err(source) = written {
            // An unfinished checkpoint must not use up scarce disk space. If removing it fails too, the next save retries.
            let _ = self.storage.remove_dir(&unfinished);
            return Err(CheckpointError::Io { path: place, source });
        }
        let number = self.next;
        self.next += 1;
        self.storage.sync_dir(&self.dir).map_err(|source| CheckpointError::Io { path: place, source })?;
        self.remove_old();
        Ok(number)
    }

    fn write(&mut self, dir: &Path, files: &[(&str, &[u8])], manifest: &Manifest) -> io::Result<()> {
        // Left over from a save that failed or was interrupted.
        let _ = self.storage.remove_dir(dir);
        self.storage.create_dir(dir)?;
        for (name, contents) in files {
            self.storage.write(&dir.join(name), contents)?;
        }
        self.storage.write(&dir.join(MANIFEST), &manifest.to_bytes())?;
        self.storage.sync_dir(dir)
    }

    /// Returns the newest valid checkpoint; `None` in a directory without any.
    ///
    /// # Errors
    /// [`CheckpointError::AllDamaged`], [`CheckpointError::Io`].
    pub fn load(&self) -> Result<Option<Found>, CheckpointError> {
        let mut damaged = Vec::new();
        for number in self.numbers()? {
            match self.read(number) {
                Ok(files) => return Ok(Some(Found { checkpoint: Checkpoint { number, files }, damaged })),
                Err(reason) => damaged.push(Damage { number, reason }),
            }
        }
        match damaged.is_empty() {
            true => Ok(None),
            false => Err(CheckpointError::AllDamaged { dir: self.dir.clone(), damaged }),
        }
    }

    fn read(&self, number: u64) -> Result<BTreeMap<String, Vec<u8>>, String> {
        read_in(&self.storage, &self.place(number), Some(number)).map(|(_, files)| files)
    }

    /// Returns the directory of a checkpoint.
    pub(crate) fn place(&self, number: u64) -> PathBuf {
        self.dir.join(name_of(number))
    }

    /// Returns the numbers of the checkpoints, newest first.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>, CheckpointError> {
        let names = self.storage.list(&self.dir);
        let names = names.map_err(|source| CheckpointError::Io { path: self.dir.clone(), source })?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Ok(numbers)
    }

    /// Removes old checkpoints. Errors are ignored, since the new checkpoint is safe; the next save retries.
    fn remove_old(&mut self) {
        let Ok(numbers) = self.numbers() else { return };
        for number in numbers.into_iter().skip(Self::KEPT).filter(|number| Some(*number) != self.kept) {
            let place = self.place(number);
            let going = place.with_extension(&UNFINISHED[1..]);
            // Renamed first, so that a partly removed checkpoint does not look damaged.
            if self.storage.rename(&place, &going).is_ok() {
                let _ = self.storage.remove_dir(&going);
            }
        }
    }
}

/// Reads a checkpoint's number and files. A copy in a directory with another name may have any number.
fn read_in(
    storage: &impl Storage,
    dir: &Path,
    number: Option<u64>,
) -> Result<(u64, BTreeMap<String, Vec<u8>>), String> {
    let read = |name: &str, most| {
        storage.read(&dir.join(name), most).map_err(|error| format!("{name} cannot be read: {error}"))
    };
    let manifest = Manifest::from_bytes(&read(MANIFEST, Manifest::MAX_BYTES)?, number)?;
    let mut files = BTreeMap::new();
    for entry in manifest.files {
        let contents = read(&entry.name, entry.bytes)?;
        entry.check(&contents)?;
        files.insert(entry.name, contents);
    }
    Ok((manifest.number, files))
}

/// Returns a directory's name, padded to the longest number so that names sort like numbers.
fn name_of(number: u64) -> String {
    format!("{number:020}")
}

fn number_of(name: &str) -> Option<u64> {
    let is_ours = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_ours { name.parse().ok() } else { None }
}

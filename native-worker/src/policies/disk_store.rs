//! A policy store in files.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use rollmesh_core::{
    hash::bytes_hash,
    policy::{PolicyId, PolicyStore, Stashed, StoreError},
};
use rollmesh_data::{FileKind, replace};

use crate::files::if_exists;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = Stashed::MAX_BYTES as u64;
/// File systems allow names of 255 bytes; this leaves space for prefix and suffix.
const MAX_NAME_BYTES: usize = 200;

/// A [`PolicyStore`] with one file per policy in a directory.
///
/// A file is written under a temporary name and renamed, so that it appears atomically. Its bytes contain the checksum by which
/// the map detects later damage.
/// Writing does not wait for the disk: a stashed policy belongs to a running program, and is no checkpoint. Only one store
/// at a time may use a directory. It leaves its files behind, unless they are [cleared](Self::clear) or the store is a
/// [temporary](Self::temporary) one.
#[derive(Debug)]
pub struct DiskStore {
    dir: PathBuf,
    temporary: bool,
}

impl DiskStore {
    /// Opens a store in this directory, which is created if needed. Unfinished files of an earlier store are removed.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        let store = Self { dir, temporary: false };
        store.remove_files(&["tmp"])?;
        Ok(store)
    }

    /// Creates a store in a new directory among the system's temporary files, which is removed when the store is dropped.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn temporary() -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let dir = std::env::temp_dir().join(format!("rollmesh-policies-{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self { dir, temporary: true }),
                // Left over from an earlier program with the same process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the files of all policies, also those of an earlier store. Other files stay.
    ///
    /// # Errors
    /// The operating system's error; the remaining files stay.
    pub fn clear(&mut self) -> io::Result<()> {
        self.remove_files(&["bin", "tmp"])
    }

    fn remove_files(&self, extensions: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let ours = name.to_str().and_then(|name| name.strip_prefix("policy-")?.rsplit_once('.'));
            if ours.is_some_and(|(_, extension)| extensions.contains(&extension)) && entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the path of a policy's file. No id leads out of the directory.
    #[must_use]
    pub fn path(&self, id: &PolicyId) -> PathBuf {
        self.dir.join(format!("policy-{}.bin", escape(id)))
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        if self.temporary {
            // An error cannot be reported here, and the system removes temporary files eventually.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

impl PolicyStore for DiskStore {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        replace(&self.path(id), FileKind::Scratch, |file| file.write_all(&bytes)).map_err(|error| failed(id, error))
    }

    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError> {
        let file = File::open(self.path(id)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Missing(id.clone()),
            _ => failed(id, error),
        })?;
        let mut contents = Vec::new();
        // One more byte shows that the file is too large.
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents).map_err(|error| failed(id, error))?;
        if contents.len() as u64 > MAX_FILE_BYTES { Err(StoreError::Damaged(id.clone())) } else { Ok(contents) }
    }

    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        let removed = if_exists(fs::remove_file(self.path(id))).map_err(|error| failed(id, error))?;
        Ok(removed.is_some())
    }
}

fn failed(id: &PolicyId, error: io::Error) -> StoreError {
    StoreError::Failed { id: id.clone(), reason: error.to_string() }
}

/// Returns a unique file name for an id. Only lower-case letters, digits, `_` and `-` are kept: some file systems ignore
/// case, and dots and slashes have a meaning. Names that are too long end with their hash.
fn escape(id: &PolicyId) -> String {
    let mut name = String::new();
    for byte in id.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            _ => name += &format!("%{byte:02x}"),
        }
    }
    if name.len() > MAX_NAME_BYTES {
        let hash = bytes_hash(name.as_bytes());
        name.truncate(MAX_NAME_BYTES - 34);
        // No other name has two of these in a row.
        name += &format!("%%{hash}");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use rollmesh_core::policy::{Policy, PolicyEntry, PolicyMap, PolicyMapLimits, RandomPolicy};

    use super::*;

    fn id(name: &str) -> PolicyId {
        PolicyId::new(name.to_owned())
    }

    fn files(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn bytes_are_kept_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DiskStore::open(dir.path().join("made")).unwrap();
        let (a, b) = (id("a"), id("b"));
        assert_eq!(store.read(&a), Err(StoreError::Missing(a.clone())));
        store.put(&a, vec![1, 2, 3]).unwrap();
        store.put(&a, vec![4]).unwrap();
        store.put(&b, vec![]).unwrap();
        assert_eq!((store.read(&a), store.read(&b)), (Ok(vec![4]), Ok(vec![])));
        assert_eq!(files(&store.dir), ["policy-a.bin", "policy-b.bin"]);
        assert_eq!((store.remove(&a), store.remove(&a)), (Ok(true), Ok(false)));
        assert_eq!((store.read(&a), store.read(&b)), (Err(StoreError::Missing(a)), Ok(vec![])));
    }

    #[test]
    fn files_of_dropped_stores_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["policy-a.tmp", "policy-b.bin", "policy-c.txt", "other.tmp"];
        left.iter().for_each(|name| fs::write(dir.path().join(name), []).unwrap());
        let mut store = DiskStore::open(dir.path()).unwrap();
        assert_eq!(files(dir.path()), ["other.tmp", "policy-b.bin", "policy-c.txt"]);
        store.put(&id("a"), vec![1]).unwrap();
        store.clear().unwrap();
        drop(store);
        assert_eq!(files(dir.path()), ["other.tmp", "policy-c.txt"]);

        let (mut a, b) = (DiskStore::temporary().unwrap(), DiskStore::temporary().unwrap());
        assert_ne!(a.dir, b.dir);
        a.put(&id("a"), vec![1]).unwrap();
        let dir = a.dir.clone();
        assert_eq!(files(&dir), ["policy-a.bin"]);
        drop(a);
        assert!(!dir.exists() && b.dir.exists());
    }

    #[test]
    fn no_id_leaves_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DiskStore::open(dir.path().join("store")).unwrap();
        let long = "x".repeat(10_000);
        let longer = "x".repeat(10_001);
        let hostile =
            ["", ".", "..", "../up", "/etc/passwd", "a/b", "a\\b", "A", "a", "con", "nul.", "%41", "ä", "\0", "\n"];
        let names: Vec<&str> = hostile.into_iter().chain([long.as_str(), longer.as_str()]).collect();
        for (i, name) in names.iter().enumerate() {
            store.put(&id(name), vec![i as u8]).unwrap();
            assert_eq!(store.path(&id(name)).parent(), Some(store.dir.as_path()));
        }
        for (i, name) in names.iter().enumerate() {
            assert_eq!(store.read(&id(name)), Ok(vec![i as u8]), "{name:?}");
        }
        assert_eq!(files(dir.path()), ["store"]);
        // Also on file systems that ignore case.
        let found: BTreeSet<String> = files(&store.dir).iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(found.len(), names.len());
    }

    #[test]
    fn the_map_finds_damage() {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::open(dir.path()).unwrap();
        let (a, b) = (id("a"), id("b"));
        let path = store.path(&a);
        let random = || -> Box<dyn Policy> { Box::new(RandomPolicy::new(2, 7)) };
        let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
        let mut map = PolicyMap::bounded(limits, store, move |_, spec| Ok(PolicyEntry::new(spec.to_owned(), random())));
        for id in [&a, &b] {
            map.insert(id.clone(), PolicyEntry::new("random", random())).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            for bytes in [&damaged[..], &whole[..at]] {
                fs::write(&path, bytes).unwrap();
                assert!(map.policy_mut(&a).is_err(), "byte {at}");
            }
        }
        fs::write(&path, whole).unwrap();
        assert!(map.policy_mut(&a).is_ok());
    }

    #[test]
    fn a_disk_that_fails_keeps_what_it_had() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DiskStore::open(dir.path()).unwrap();
        let a = id("a");
        store.put(&a, vec![1]).unwrap();
        // A directory blocks the file's name.
        fs::create_dir(store.path(&a).with_added_extension("tmp")).unwrap();
        assert!(matches!(store.put(&a, vec![2]), Err(StoreError::Failed { .. })));
        assert_eq!(store.read(&a), Ok(vec![1]));
        assert!(DiskStore::open(store.path(&a)).is_err());
    }
}

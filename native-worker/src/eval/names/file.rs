//! The file of a name: the process that has it, and its address.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{ENDING, EvalNames, LOOK_AGAIN};
use crate::private_file;

/// The content of a name's file.
#[derive(Serialize, Deserialize)]
pub(crate) struct NameAddress {
    pub(crate) port: u16,
    pub(crate) token: String,
    /// Lets users find the process.
    pub(crate) pid: u32,
    /// The environment that it plays.
    #[serde(default)]
    pub(crate) env: Option<String>,
}

/// A name that this process holds, until this is dropped or the process ends in any way.
pub(crate) struct Name {
    pub(crate) file: PathBuf,
    /// `None` once the name was given up: then the file may be that of another process.
    lock: Mutex<Option<File>>,
}

impl Name {
    /// Takes a name; `None` if another process has it.
    pub(crate) fn take(names: &EvalNames, name: &str) -> io::Result<Option<Self>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&names.dir)?;
        let lock = names.dir.join(format!("{name}.lock"));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        let patience = Instant::now() + ENDING;
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    let name = Self { file: names.dir.join(format!("{name}.json")), lock: Mutex::new(Some(lock)) };
                    // The file of a previous holder is stale.
                    let _ = fs::remove_file(&name.file);
                    return Ok(Some(name));
                }
                // A process that checks for a worker holds the lock for a moment.
                Err(TryLockError::WouldBlock) if names.address(name).is_some() || Instant::now() >= patience => {
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Writes the worker's address atomically, replacing a stale file.
    pub(crate) fn write(&self, address: &NameAddress) -> io::Result<()> {
        private_file::write(&self.file, &serde_json::to_vec(address)?)
    }

    /// Releases the name, once.
    pub(crate) fn give_up(&self) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lock) = lock {
            let _ = fs::remove_file(&self.file);
            let _ = lock.unlock();
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Reads an address; `None` for a file of another user, or one that others may read: another user may have written it.
pub(crate) fn read(file: &Path) -> Option<NameAddress> {
    let file = File::open(file).ok()?;
    let about = file.metadata().ok()?;
    if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_was_given_up_leaves_the_file_of_its_next_holder() {
        let dir = tempfile::tempdir().unwrap();
        let names = EvalNames::new(dir.path());
        let first = Name::take(&names, "a").unwrap().expect("it is free");
        first.give_up();
        let second = Name::take(&names, "a").unwrap().expect("it is free again");
        second.write(&NameAddress { port: 1, token: String::new(), pid: 2, env: None }).unwrap();
        drop(first);
        assert!(second.file.exists());
        drop(second);
        assert_eq!(names.list(), Vec::<String>::new());
    }
}

//! Persistent tokens: a file of their hashes, which hub and command line write and the hub watches.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rollmesh_core::{
    hub::{HubTokens, TokensFull},
    protocol::{Role, Token, TokenGrant, TokenHash, TokenId},
};
use serde::{Deserialize, Serialize};

use super::random_token;
use crate::{files::if_exists, private_file};

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The token file. Reading it does not give access, since it holds hashes only.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    rows: Vec<(TokenHash, TokenGrant)>,
    /// The version of the file that these rows were read from.
    seen: Option<Stamp>,
    /// The error of the latest attempt to follow the file, which is reported once.
    reported: Option<String>,
}

/// Distinguishes versions of a file, also by its permissions: a file may be refused for these alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    length: u64,
    /// Mode, and the time of the last change of contents or attributes, in seconds and nanoseconds.
    #[cfg(unix)]
    attributes: (u32, i64, i64),
}

impl Stamp {
    /// Returns the stamp of the file at this path; `None` if there is none.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let Some(metadata) = if_exists(fs::metadata(path))? else { return Ok(None) };
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        Ok(Some(Self {
            modified: metadata.modified()?,
            length: metadata.len(),
            #[cfg(unix)]
            attributes: (metadata.mode(), metadata.ctime(), metadata.ctime_nsec()),
        }))
    }
}

/// An error of reading or writing tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The operating system reported an error.
    #[error("cannot use {0}: {1}")]
    Io(PathBuf, io::Error),
    /// Other users may read the file, and perhaps write it.
    #[error("{0} is open to other users; chmod 600 makes it private")]
    Public(PathBuf),
    /// The file has another format.
    #[error("{0} is no file of tokens: {1}")]
    Format(PathBuf, String),
    /// The maximum number of tokens is reached.
    #[error(transparent)]
    Full(#[from] TokensFull),
    /// No token has this id.
    #[error("there is no token {0}; `rollmesh tokens list` names all")]
    Unknown(TokenId),
    /// The system's random number generator failed.
    #[error("the system has no randomness for a token: {0}")]
    Randomness(io::Error),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tokens: Vec<StoredToken>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredToken {
    sha256: String,
    role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

/// Returns the role with this name.
pub(crate) fn role_of(name: &str) -> Option<Role> {
    Role::ALL.iter().copied().find(|role| role.name() == name)
}

impl TokenFile {
    /// Reads the file; if it does not exist, there are no tokens yet.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub(crate) fn open(path: &Path) -> Result<Self, TokenFileError> {
        let mut file = Self { path: path.to_owned(), rows: Vec::new(), seen: None, reported: None };
        file.read_if_changed()?;
        Ok(file)
    }

    /// Reads the file again if it has changed; returns whether it has. A file that cannot be read is tried again each time.
    ///
    /// # Errors
    /// [`TokenFileError`], once until another error or a success; the tokens stay as before.
    pub(crate) fn follow(&mut self) -> Result<bool, TokenFileError> {
        let followed = self.read_if_changed();
        let error = followed.as_ref().err().map(ToString::to_string);
        if error.is_some() && error == self.reported {
            return Ok(false);
        }
        self.reported = error;
        followed
    }

    fn read_if_changed(&mut self) -> Result<bool, TokenFileError> {
        let found = self.find()?;
        if found == self.seen {
            return Ok(false);
        }
        self.read(found)?;
        Ok(true)
    }

    /// Reads this version of the file, or a newer one; `None` if it does not exist.
    fn read(&mut self, found: Option<Stamp>) -> Result<(), TokenFileError> {
        let failed = |error| TokenFileError::Io(self.path.clone(), error);
        if found.is_none() {
            self.rows.clear();
            self.seen = None;
            return Ok(());
        }
        if private_file::is_public(&self.path).map_err(failed)? {
            return Err(TokenFileError::Public(self.path.clone()));
        }
        let format = |error: &dyn std::fmt::Display| TokenFileError::Format(self.path.clone(), error.to_string());
        let text = fs::read_to_string(&self.path).map_err(failed)?;
        let file: File = serde_json::from_str(&text).map_err(|error| format(&error))?;
        if file.tokens.len() > HubTokens::MAX {
            return Err(TokenFileError::Full(TokensFull));
        }
        let row = |row: StoredToken| {
            let hash = TokenHash::from_hex(&row.sha256).map_err(|_| format(&"'sha256' has 64 hexadecimal digits"))?;
            let role = role_of(&row.role)
                .ok_or_else(|| format(&"'role' is viewer, operator, worker, client, launcher or relay"))?;
            Ok((hash, TokenGrant { role, child: None, expires: row.expires }))
        };
        self.rows = file.tokens.into_iter().map(row).collect::<Result<_, TokenFileError>>()?;
        // Only now: a file that was refused is read again, even if nothing but its permissions changes.
        self.seen = found;
        Ok(())
    }

    fn find(&self) -> Result<Option<Stamp>, TokenFileError> {
        Stamp::of(&self.path).map_err(|error| TokenFileError::Io(self.path.clone(), error))
    }

    pub(crate) fn rows(&self) -> &[(TokenHash, TokenGrant)] {
        &self.rows
    }

    /// Creates a token that expires after `seconds`, or never.
    ///
    /// # Errors
    /// [`TokenFileError`]; then no token was created.
    pub(crate) fn create(&mut self, role: Role, seconds: Option<u64>) -> Result<(Token, TokenGrant), TokenFileError> {
        self.change(|rows, now| {
            rows.retain(|(_, grant)| !grant.is_over(now));
            if rows.len() >= HubTokens::MAX {
                return Err(TokenFileError::Full(TokensFull));
            }
            let token = random_token().map_err(TokenFileError::Randomness)?;
            let grant = TokenGrant { role, child: None, expires: seconds.map(|seconds| now.saturating_add(seconds)) };
            rows.push((TokenHash::of(&token), grant));
            Ok((token, grant))
        })
    }

    /// Revokes a token.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub(crate) fn revoke(&mut self, id: TokenId) -> Result<(), TokenFileError> {
        self.change(|rows, _| {
            let before = rows.len();
            rows.retain(|(hash, _)| hash.id() != id);
            if rows.len() == before { Err(TokenFileError::Unknown(id)) } else { Ok(()) }
        })
    }

    /// Creates a token with the same role and remaining lifetime; the old one expires after `seconds`.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub(crate) fn rotate(&mut self, id: TokenId, seconds: u64) -> Result<(Token, TokenGrant), TokenFileError> {
        self.change(|rows, now| {
            let found = rows.iter_mut().find(|(hash, _)| hash.id() == id);
            let (_, old) = found.ok_or(TokenFileError::Unknown(id))?;
            let (role, left) = (old.role, old.expires.map(|expires| expires.saturating_sub(now)));
            let end = now.saturating_add(seconds);
            old.expires = Some(old.expires.map_or(end, |expires| expires.min(end)));
            // Both are saved together.
            let token = random_token().map_err(TokenFileError::Randomness)?;
            let grant = TokenGrant { role, child: None, expires: left.map(|left| now.saturating_add(left)) };
            rows.push((TokenHash::of(&token), grant));
            Ok((token, grant))
        })
    }

    /// Changes the file's current content under a lock. After an error the file and the tokens in memory are as before.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Vec<(TokenHash, TokenGrant)>, u64) -> Result<T, TokenFileError>,
    ) -> Result<T, TokenFileError> {
        let failed = |error| TokenFileError::Io(self.path.clone(), error);
        if let Some(directory) = self.path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut lock = self.path.as_os_str().to_owned();
        lock.push(".lock");
        let lock = Path::new(&lock);
        let _held = private_file::lock(lock).map_err(failed)?;
        // Root may create tokens for a hub that runs as another user, and that writes both files, too.
        private_file::leave_to_folder(lock).map_err(failed)?;
        self.read(self.find()?)?;
        let mut rows = self.rows.clone();
        let changed = change(&mut rows, now())?;
        self.save(&rows)?;
        self.rows = rows;
        Ok(changed)
    }

    fn save(&mut self, rows: &[(TokenHash, TokenGrant)]) -> Result<(), TokenFileError> {
        let failed = |error| TokenFileError::Io(self.path.clone(), error);
        let row = |(hash, grant): &(TokenHash, TokenGrant)| StoredToken {
            sha256: hash.to_hex(),
            role: grant.role.name().into(),
            expires: grant.expires,
        };
        let file = File { tokens: rows.iter().map(row).collect() };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        private_file::write(&self.path, &text).map_err(failed)?;
        private_file::leave_to_folder(&self.path).map_err(failed)?;
        self.seen = self.find()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_kept_as_hashes_and_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/tokens.json");
        let mut file = TokenFile::open(&path).unwrap();
        let mut other = TokenFile::open(&path).unwrap();
        let (token, grant) = file.create(Role::Worker, Some(60)).unwrap();
        assert!(grant.expires.is_some_and(|expires| expires.abs_diff(now() + 60) < 5));
        assert!(!fs::read_to_string(&path).unwrap().contains(&token.to_hex()));
        assert!(other.follow().unwrap() && !other.follow().unwrap());
        assert_eq!(other.rows(), [(TokenHash::of(&token), grant)]);
        #[cfg(unix)]
        assert!(!private_file::is_public(&path).unwrap());

        let old = TokenHash::of(&token).id();
        let (_, second) = other.rotate(old, 5).unwrap();
        assert_eq!(second.role, Role::Worker);
        file.follow().unwrap();
        let ends: Vec<u64> = file.rows().iter().filter_map(|(_, grant)| grant.expires).collect();
        assert!(ends[0] <= now() + 5 && ends[1] > now() + 50, "{ends:?}");
        file.revoke(old).unwrap();
        assert!(matches!(file.revoke(old), Err(TokenFileError::Unknown(id)) if id == old));
        assert_eq!(TokenFile::open(&path).unwrap().rows().len(), 1);
    }

    /// Checks files of root, which alone can create files for another user; other users check that their files stay
    /// their own.
    #[cfg(unix)]
    #[test]
    fn files_of_root_belong_to_the_owner_of_their_folder() {
        use std::os::unix::fs::{MetadataExt as _, chown, symlink};
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let user = match fs::metadata(directory.path()).unwrap().uid() {
            0 => 65_534,
            user => user,
        };
        chown(directory.path(), Some(user), None).unwrap();
        let path = directory.path().join("tokens.json");
        TokenFile::open(&path).unwrap().create(Role::Worker, None).unwrap();
        let owners = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().uid());
        assert_eq!(owners.collect::<Vec<_>>(), [user; 2], "the tokens and their lock");

        let (lock, target) = (directory.path().join("tokens.json.lock"), other.path().join("target"));
        fs::write(&target, "").unwrap();
        let owner = fs::metadata(&target).unwrap().uid();
        fs::remove_file(&lock).unwrap();
        symlink(&target, &lock).unwrap();
        TokenFile::open(&path).unwrap().create(Role::Worker, None).unwrap();
        assert_eq!(fs::metadata(&target).unwrap().uid(), owner, "links are not followed");
    }

    #[cfg(unix)]
    #[test]
    fn revocation_in_refused_file_holds_once_the_file_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        let mut file = TokenFile::open(&path).unwrap();
        file.create(Role::Worker, None).unwrap();
        fs::write(&path, r#"{"tokens": []}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(file.follow(), Err(TokenFileError::Public(_))));
        assert!(matches!(file.follow(), Ok(false)), "the same error is reported once");
        assert_eq!(file.rows().len(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(file.follow().unwrap() && !file.follow().unwrap());
        assert!(file.rows().is_empty());
        // The same error is worth a report after a success.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(file.follow(), Err(TokenFileError::Public(_))));
    }

    #[test]
    fn concurrent_writers_lose_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        let write = || {
            let mut file = TokenFile::open(&path).unwrap();
            (0..20).for_each(|_| _ = file.create(Role::Viewer, None).unwrap());
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(write))));
        assert_eq!(TokenFile::open(&path).unwrap().rows().len(), 80);
    }

    #[test]
    fn files_of_others_are_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        let open = |text: &str| {
            private_file::write(&path, text.as_bytes()).unwrap();
            TokenFile::open(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(open(r#"{"tokens": []}"#), Ok(()));
        for (text, reason) in [
            ("no", "expected"),
            (r#"{"tokens": [{"sha256": "ab", "role": "worker"}]}"#, "64 hexadecimal digits"),
            (&format!(r#"{{"tokens": [{{"sha256": "{}", "role": "king"}}]}}"#, "ab".repeat(32)), "viewer, operator"),
        ] {
            assert!(open(text).unwrap_err().contains(reason), "{text}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            assert!(matches!(TokenFile::open(&path), Err(TokenFileError::Public(_))));
        }
    }
}

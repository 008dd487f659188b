//! The hub's own tokens, kept in the run directory and readable by its owner only: workers that hold one reconnect after the
//! hub was restarted.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use rollmesh_core::protocol::{Role, Token, TokenHash, TokenId};

use super::{random_token, token_file::TokenFileError};
use crate::{files::if_exists, private_file};

/// One token per role. Unlike the file of `--tokens`, this file holds the tokens themselves, since the hub prints them.
#[derive(Debug, Default)]
pub(super) struct RunTokens {
    /// `None` if the tokens end with the hub.
    path: Option<PathBuf>,
    /// In hexadecimal digits, by the name of the role.
    tokens: BTreeMap<String, String>,
}

impl RunTokens {
    /// Reads the file; if it does not exist, there are no tokens yet.
    ///
    /// # Errors
    /// [`TokenFileError`], also for a file that other users may read.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, TokenFileError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let failed = |error| TokenFileError::Io(path.into(), error);
        let text = if_exists(fs::read_to_string(path)).map_err(failed)?.unwrap_or_else(|| "{}".into());
        if path.exists() && private_file::is_public(path).map_err(failed)? {
            return Err(TokenFileError::Public(path.into()));
        }
        let tokens =
            serde_json::from_str(&text).map_err(|error| TokenFileError::Format(path.into(), error.to_string()))?;
        Ok(Self { path: Some(path.into()), tokens })
    }

    /// Returns the token of each role: from the file, or a new one, which has been saved when this returns.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub(super) fn of_roles<const N: usize>(&mut self, roles: [Role; N]) -> Result<[Token; N], TokenFileError> {
        let before = self.tokens.len();
        let mut tokens = Vec::with_capacity(N);
        for role in roles {
            tokens.push(match self.tokens.get(role.name()) {
                Some(hex) => self.read(hex)?,
                None => random_token().map_err(TokenFileError::Randomness)?,
            });
            self.tokens.insert(role.name().into(), tokens[tokens.len() - 1].to_hex());
        }
        if self.tokens.len() > before {
            self.save()?;
        }
        Ok(tokens.try_into().expect("one token per role"))
    }

    /// Replaces the token with this id, or removes it so that a later hub creates a new one. Other tokens stay.
    pub(super) fn replace(&mut self, id: TokenId, by: Option<&Token>) {
        let is_it = |hex: &String| self.read(hex).is_ok_and(|token| TokenHash::of(&token).id() == id);
        let Some(role) = self.tokens.iter().find(|(_, hex)| is_it(hex)).map(|(role, _)| role.clone()) else { return };
        match by {
            Some(token) => self.tokens.insert(role, token.to_hex()),
            None => self.tokens.remove(&role),
        };
        // A revoked token must not become valid again: if the file cannot be written, it is deleted.
        if let (Err(_), Some(path)) = (self.save(), &self.path) {
            let _ = fs::remove_file(path);
        }
    }

    fn read(&self, hex: &str) -> Result<Token, TokenFileError> {
        let path = || self.path.clone().unwrap_or_default();
        Token::from_hex(hex).map_err(|error| TokenFileError::Format(path(), error.to_string()))
    }

    fn save(&self) -> Result<(), TokenFileError> {
        let Some(path) = &self.path else { return Ok(()) };
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            private_file::write(path, &serde_json::to_vec_pretty(&self.tokens)?)
        };
        write().map_err(|error| TokenFileError::Io(path.clone(), error))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ROLES: [Role; 2] = [Role::Worker, Role::Operator];

    #[test]
    fn tokens_survive_until_they_are_revoked_and_only_their_owner_reads_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/hub_tokens.json");
        let open = || RunTokens::open(Some(&path)).unwrap();
        let [worker, operator] = open().of_roles(ROLES).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open().of_roles(ROLES).unwrap(), [worker, operator]);

        let mut tokens = open();
        tokens.replace(TokenHash::of(&worker).id(), None);
        tokens.replace(TokenHash::of(&operator).id(), Some(&worker));
        let [new, rotated] = open().of_roles(ROLES).unwrap();
        assert_ne!(new, worker);
        assert_eq!(rotated, worker);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(RunTokens::open(Some(&path)), Err(TokenFileError::Public(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, r#"{"worker": "abc"}"#).unwrap();
        assert!(matches!(open().of_roles(ROLES), Err(TokenFileError::Format(..))));
    }
}

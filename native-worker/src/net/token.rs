//! Reading tokens from the environment or a file, never from a command line, which every process can read.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rollmesh_core::protocol::{Token, TokenTextError};
use tokio::time::{Interval, interval};

use super::TOKEN_VARIABLE;

/// Interval at which a followed file is read.
const INTERVAL: Duration = Duration::from_secs(2);

/// An error of reading a token. It does not contain the text that was found instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The environment variable is not set.
    #[error(
        "{TOKEN_VARIABLE} is not set: the hub prints its tokens when it starts; --token-file reads one from a file"
    )]
    Missing,
    /// The environment variable is not a token.
    #[error("{TOKEN_VARIABLE}: {0}")]
    Environment(TokenTextError),
    /// The file cannot be read.
    #[error("cannot read a token from {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file's content is not a token.
    #[error("{path}: {source}")]
    FileText {
        /// The file.
        path: PathBuf,
        /// The expected format.
        source: TokenTextError,
    },
}

/// Returns the token of the environment variable `ROLLMESH_TOKEN`.
///
/// # Errors
/// [`TokenError`] when there is none.
pub fn token_from_env() -> Result<Token, TokenError> {
    let text = env::var(TOKEN_VARIABLE).map_err(|_| TokenError::Missing)?;
    Token::from_hex(text.trim()).map_err(TokenError::Environment)
}

/// Returns the token in a file, which contains nothing else; `-` is the first line of standard input.
///
/// # Errors
/// [`TokenError`] when there is none.
pub fn token_from_file(path: &Path) -> Result<Token, TokenError> {
    let failed = |source| TokenError::File { path: path.into(), source };
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_line(&mut text).map_err(failed)?;
    } else {
        text = fs::read_to_string(path).map_err(failed)?;
    }
    Token::from_hex(text.trim()).map_err(|source| TokenError::FileText { path: path.into(), source })
}

/// The file of a token, which may get another one.
#[derive(Debug)]
pub(crate) struct FollowedToken {
    file: Option<PathBuf>,
    latest: Token,
    ticks: Interval,
}

impl FollowedToken {
    /// Begins with this token, and follows the file if there is one. A process has one of these for all its connections, so
    /// that none misses a change.
    pub(crate) fn new(token: Token, file: Option<PathBuf>) -> Self {
        Self { file, latest: token, ticks: interval(INTERVAL) }
    }

    /// Reads the file and returns its token. A file that has none for a moment is being written: the token stays.
    pub(crate) fn latest(&mut self) -> Token {
        self.latest = self.file.as_deref().and_then(|file| token_from_file(file).ok()).unwrap_or(self.latest);
        self.latest
    }

    /// Waits for another token. Nothing is lost if this is cancelled, provided that the next `Hello` claims the latest one.
    pub(crate) async fn next(&mut self) -> Token {
        if self.file.is_none() {
            return std::future::pending().await;
        }
        loop {
            self.ticks.tick().await;
            let before = self.latest;
            if self.latest() != before {
                return self.latest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn change_of_the_file_is_seen_whichever_call_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let [first, second, third] = [1, 2, 3].map(|byte| Token::new([byte; 32]));
        let mut tokens = FollowedToken::new(first, Some(file.clone()));
        assert_eq!(tokens.latest(), first, "there is no file");
        // It changes before the first look, while no connection is open.
        fs::write(&file, second.to_hex()).unwrap();
        assert_eq!(tokens.next().await, second);
        fs::write(&file, third.to_hex()).unwrap();
        assert_eq!(tokens.latest(), third);
        fs::write(&file, "").unwrap();
        assert_eq!(tokens.latest(), third, "it is being written");
    }
}

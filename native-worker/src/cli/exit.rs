//! The results of commands.

use std::{
    fmt::{self, Display},
    process::ExitCode,
};

use crate::terminal::printable_lines;

/// An error of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user can fix it: a flag, a file or a name is wrong. Exit code 2.
    Usage(String),
    /// Any other error. Exit code 1.
    Other(String),
    /// A signal ended it early; the text describes the state that it left. Exit code 3.
    Interrupted(String),
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Other(message) | Self::Interrupted(message)) = self;
        f.write_str(message)
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    pub(crate) fn other(message: impl Display) -> Self {
        Self::Other(message.to_string())
    }

    /// Reports the error on standard error.
    pub(crate) fn report(self) -> ExitCode {
        let (what, code) = match self {
            Self::Usage(_) => ("error", 2),
            Self::Other(_) => ("error", 1),
            Self::Interrupted(_) => ("interrupted", 3),
        };
        // Errors contain text of files, which may have control characters.
        eprintln!("{what}: {}", printable_lines(&self.to_string()));
        ExitCode::from(code)
    }
}

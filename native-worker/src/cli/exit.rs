//! How commands end.

use std::{
    fmt::{self, Display},
    process::ExitCode,
};

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user can mend it: a flag, a file or a name is wrong. Exit code 2.
    Usage(String),
    /// Something else went wrong. Exit code 1.
    Other(String),
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Other(message)) = self;
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

    /// Says what went wrong on standard error.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Usage(message) => (message, 2),
            Self::Other(message) => (message, 1),
        };
        eprintln!("error: {message}");
        ExitCode::from(code)
    }
}

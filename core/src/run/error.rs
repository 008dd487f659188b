//! What can be wrong with the description of a run.

use crate::prelude::*;

/// A setting of a run that cannot be followed: its path, its value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunConfigError {
    /// There is no setting of this name.
    #[error("{path}: there is no such setting{hint}")]
    Unknown {
        /// Names of the objects around it and its own, with dots between.
        path: String,
        /// The nearest name that there is, as a question; or nothing.
        hint: String,
    },
    /// It has the wrong type or form.
    #[error("{path}: {reason}")]
    Malformed {
        /// As above.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A number is out of its range.
    #[error("{path} is {found}; it must be {allowed}")]
    Range {
        /// As above.
        path: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        allowed: String,
    },
    /// The settings of the environment are too much for a message.
    #[error("env_config has {0} bytes as JSON; it must have at most {max}", max = super::RunConfig::MAX_ENV_CONFIG_BYTES)]
    EnvConfigTooLong(usize),
    /// A setting of one machine came over the wire.
    #[error("{0} belongs to one machine and is not taken from the wire: set it where the worker or the hub is started")]
    HostSetting(&'static str),
    /// A setting that this kind of run does not support: one over leases, or one that reads files.
    #[error("{path}: {reason}")]
    NotLeased {
        /// As above.
        path: &'static str,
        /// Why not, and what to do.
        reason: String,
    },
}

impl RunConfigError {
    pub(crate) fn malformed(path: &str, reason: impl core::fmt::Display) -> Self {
        Self::Malformed { path: path.into(), reason: reason.to_string() }
    }

    pub(crate) fn range(path: &'static str, found: impl core::fmt::Display, allowed: impl Into<String>) -> Self {
        Self::Range { path, found: found.to_string(), allowed: allowed.into() }
    }
}

//! Defines the errors in the description of a run.

use crate::prelude::*;

/// An invalid setting of a run: its path, its value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunConfigError {
    /// The setting is unknown.
    #[error("{path}: there is no such setting{hint}")]
    Unknown {
        /// The setting's path: the names of the enclosing objects and its own, separated by dots.
        path: String,
        /// The most similar known name, as a question; or empty.
        hint: String,
    },
    /// The setting belongs to a run, and was given for a worker alone.
    #[error("{0} is a setting of a run, not of a worker: leave it out, or use `rollmesh train`")]
    NotOfWorkers(String),
    /// The setting has the wrong type or form.
    #[error("{path}: {reason}")]
    Malformed {
        /// The setting's path.
        path: String,
        /// The cause.
        reason: String,
    },
    /// A value is not allowed.
    #[error("{path} is {found}; it must be {allowed}")]
    Range {
        /// The path of the setting, or of the part of its value that is not allowed.
        path: String,
        /// The value found.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// The settings of the environment exceed the size of a message.
    #[error("env_config has {0} bytes as JSON; it must have at most {max}", max = super::RunConfig::MAX_ENV_CONFIG_BYTES)]
    EnvConfigTooLong(usize),
    /// A message contained a setting that belongs to one machine.
    #[error("{0} belongs to one machine and is not taken from the wire: set it where the worker or the hub is started")]
    HostSetting(&'static str),
    /// The kind of run, over leases or from files, does not support the setting.
    #[error("{path}: {reason}")]
    NotLeased {
        /// The setting's path.
        path: &'static str,
        /// The reason and the remedy.
        reason: String,
    },
}

impl RunConfigError {
    pub(crate) fn malformed(path: &str, reason: impl core::fmt::Display) -> Self {
        Self::Malformed { path: path.into(), reason: reason.to_string() }
    }

    pub(crate) fn range(path: impl Into<String>, found: impl core::fmt::Display, allowed: impl Into<String>) -> Self {
        Self::Range { path: path.into(), found: found.to_string(), allowed: allowed.into() }
    }
}

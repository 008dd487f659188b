//! Errors of drivers.

use std::time::Duration;

use rollmesh_core::env::{EnvError, ExternalError};

/// An error of a driver's call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalEnvError {
    /// The call was refused, and nothing has changed.
    #[error(transparent)]
    Episode(#[from] ExternalError),
    /// Sampling has stopped or is too slow. The request remains: continue waiting, or abandon the episode.
    #[error("episode {id}: the sampler has not {what} within {timeout:?}; is a worker sampling?")]
    Timeout {
        /// The episode.
        id: u64,
        /// `chosen actions` or `taken the turns before`.
        what: &'static str,
        /// The time for which the driver has waited.
        timeout: Duration,
    },
    /// Actions have another element type.
    #[error("actions are {found}, not {wanted}")]
    WrongType {
        /// Type of the environment's actions.
        found: &'static str,
        /// The requested type.
        wanted: &'static str,
    },
    /// Invalid spaces, or an invalid number of lanes.
    #[error(transparent)]
    Spaces(EnvError),
    /// The driver's thread could not be started.
    #[error("the driver's thread cannot be started: {0}")]
    Thread(String),
}

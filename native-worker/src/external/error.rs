//! What drivers are told.

use std::time::Duration;

use rollmesh_core::env::{EnvError, ExternalError};

/// Why a driver's call had no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExternalEnvError {
    /// It was refused, and nothing has changed.
    #[error(transparent)]
    Episode(#[from] ExternalError),
    /// Nobody samples, or not fast enough. What was asked for still is: wait on, or abandon the episode.
    #[error("episode {id}: the sampler has not {what} within {timeout:?}; is somebody sampling?")]
    Timeout {
        /// The episode.
        id: u64,
        /// `chosen actions` or `taken the turns before`.
        what: &'static str,
        /// How long the driver has waited.
        timeout: Duration,
    },
    /// Actions have another element type.
    #[error("actions are {found}, not {wanted}")]
    WrongType {
        /// Type of the environment's actions.
        found: &'static str,
        /// The type that was asked for.
        wanted: &'static str,
    },
    /// Spaces that make no sense, or a wrong number of lanes.
    #[error(transparent)]
    Spaces(EnvError),
    /// The driver's thread could not be started.
    #[error("the driver's thread cannot be started: {0}")]
    Thread(String),
}

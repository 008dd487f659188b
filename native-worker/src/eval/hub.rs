//! Evaluation workers that are found through a hub, on this machine or another one.

use rollmesh_core::{
    evaluation::{EvalWorkerError, check_name},
    protocol::Token,
};
use serde::{Deserialize, Serialize};

use super::{EvalWorker, there::There};
use crate::control::{ControlError, HubUrl, Trust, token_from_env};

/// A hub through which evaluation workers are found, from any machine.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rollmesh::{
///     eval::{EvalHub, EvalNames},
///     train::RunConfig,
/// };
///
/// // ROLLMESH_TOKEN holds a token of a worker, as `rollmesh tokens create --role worker` makes one.
/// let hub = EvalHub::from_env("wss://hub.example:7878")?;
/// // Here …
/// EvalNames::of_user().with_hub(hub.clone()).create("judge", &RunConfig::new("CartPole-v1"))?;
/// // … and anywhere else:
/// let mut worker = hub.find("judge")?;
/// worker.submit(None, 500, true, true)?;
/// println!("{:?}", worker.poll(Duration::from_secs(30))?.map(|found| found.reward()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EvalHub {
    /// The hub's address.
    pub url: HubUrl,
    /// A worker token. Never part of an address or of a command line.
    pub token: Token,
    /// The verification of the hub.
    pub trust: Trust,
}

impl EvalHub {
    /// Takes the token from the environment variable `ROLLMESH_TOKEN`.
    ///
    /// # Errors
    /// [`ControlError`] when the address or the token cannot be parsed.
    pub fn from_env(url: &str) -> Result<Self, ControlError> {
        Ok(Self { url: url.parse()?, token: token_from_env()?, trust: Trust::default() })
    }

    /// Returns a new handle of the worker that evaluates under this name at this hub.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        There::find(self, name).map(EvalWorker::over)
    }
}

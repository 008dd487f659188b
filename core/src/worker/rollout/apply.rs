//! Functions that are called with the worker.

use super::RolloutWorker;
use crate::{config::Config, worker::RolloutError};

impl RolloutWorker {
    /// Calls a registered function with this worker. Name and arguments can come from anywhere.
    ///
    /// # Errors
    /// [`RolloutError::Unknown`], [`RolloutError::Callback`].
    pub fn apply(&mut self, name: &str, arguments: &Config) -> Result<Config, RolloutError> {
        let function = self.parts.registry.worker_fn(name)?.clone();
        Ok(function(self, arguments)?)
    }

    /// Calls a function of this program with this worker.
    #[doc(alias = "apply")]
    pub fn apply_fn<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        f(self)
    }

    /// Answers `pong`, so that whoever asks knows that the worker is there.
    #[must_use]
    pub fn ping(&self) -> &'static str {
        "pong"
    }
}

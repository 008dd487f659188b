//! Set-up of a worker in another process.

use super::{CommandError, CommandErrorKind};
use crate::{
    ids::CallId,
    prelude::*,
    protocol::{Kind, Message, message},
    run::{RunConfig, RunConfigError},
    worker::{RolloutConfig, WorkerPlace},
};

/// Settings and place of a worker in another process, which sets it up with the [`Registry`](crate::worker::Registry) of its
/// own program.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias("creation_args", "as_remote"))]
pub struct WorkerSetup {
    /// Its settings.
    pub config: RolloutConfig,
    /// Its place among the workers.
    pub place: WorkerPlace,
}

impl WorkerSetup {
    /// Encodes the message that sets up the worker. It is answered like a call with this id.
    ///
    /// # Errors
    /// [`CommandErrorKind::TooLarge`] for settings above the limit.
    pub fn message(&self, call: CallId) -> Result<Message, CommandError> {
        let config = serde_json::to_string(&self.config).map_err(|why| CommandError::malformed("the settings", why))?;
        if config.len() > Self::MAX_CONFIG_BYTES {
            let why = format!("settings of {} bytes are more than {}", config.len(), Self::MAX_CONFIG_BYTES);
            return Err(CommandError::new(CommandErrorKind::TooLarge, why));
        }
        let WorkerPlace { worker_index, num_workers, recreated_worker, in_evaluation } = self.place;
        Ok(Message::WorkerSetup(message::WorkerSetup {
            call: call.0,
            config,
            worker_index,
            num_workers,
            recreated_worker,
            in_evaluation,
        }))
    }

    /// Decodes an untrusted message.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`], which names the setting that is wrong.
    pub fn read(message: &message::WorkerSetup) -> Result<Self, CommandError> {
        let config = message.config.parse();
        let config = config.map_err(|why: RunConfigError| CommandError::malformed("the settings are wrong", why))?;
        let &message::WorkerSetup { worker_index, num_workers, recreated_worker, in_evaluation, .. } = message;
        Ok(Self { config, place: WorkerPlace { worker_index, num_workers, recreated_worker, in_evaluation } })
    }

    /// Checks that the settings name no files, folders and environment variables, which belong to the worker's machine.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`], which names the first that they do.
    pub fn refuse_host_settings(&self) -> Result<(), CommandError> {
        let found = RunConfig { rollout: self.config.clone(), ..RunConfig::default() }.refuse_host_settings();
        found.map_err(|why| CommandError::malformed("the settings are wrong", why))
    }

    /// Puts the outputs, which the settings name, below a directory of the worker's machine.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`], which names an output that is no name, or another setting that belongs to one machine.
    pub fn place_outputs(&mut self, root: &str) -> Result<(), CommandError> {
        self.config.place_outputs(root).map_err(|why| CommandError::malformed("the settings are wrong", why))
    }

    const MAX_CONFIG_BYTES: usize = Kind::WorkerSetup.body_cap() as usize - 64;
}

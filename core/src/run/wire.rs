//! Sends a description to workers, without the settings that belong to one machine.

use super::{HostConfig, RolloutConfig, RunConfig, RunConfigError, schema};
use crate::{
    config::{Config, ConfigError},
    prelude::*,
};

impl RunConfig {
    /// Maximum size of a description on the wire in bytes.
    pub const MAX_WIRE_BYTES: usize = 48 << 10;

    /// Returns the description without the settings of this machine.
    #[must_use]
    pub fn for_wire(&self) -> Self {
        let host = RolloutConfig::default();
        let rollout = RolloutConfig {
            output: host.output,
            log_dir: host.log_dir,
            monitor_path: host.monitor_path,
            extra_environs: host.extra_environs,
            remote_env_memory_mb: host.remote_env_memory_mb,
            io_config: self.rollout.io_config.clone().without(&[schema::DATASET_PATHS.1]),
            ..self.rollout.clone()
        };
        Self { rollout, host: HostConfig::default(), num_slots: Some(self.num_slots()), ..self.clone() }
    }

    /// Encodes the description as JSON text for the wire.
    #[must_use]
    pub fn to_wire(&self) -> String {
        // The numbers are known to be finite, and all other values are valid JSON.
        serde_json::to_string(&self.for_wire()).unwrap_or_default()
    }

    /// Checks that no setting belongs to one machine.
    ///
    /// # Errors
    /// [`RunConfigError::HostSetting`] names the first one that does.
    pub fn refuse_host_settings(&self) -> Result<(), RunConfigError> {
        schema::refuse_host_settings(&self.settings()?)
    }

    /// Reads the complete description from a hub.
    ///
    /// # Errors
    /// [`RunConfigError`]; [`RunConfigError::HostSetting`] for a setting that belongs to one machine.
    pub fn from_wire(text: &str) -> Result<Self, RunConfigError> {
        // The description already includes its preset.
        let settings = settings_of(text)?.with("preset", "none");
        Self::of_settings(&settings.map_err(|error| RunConfigError::malformed("settings", error))?)
    }

    /// Reads an operator's settings, over the defaults and the preset. An output has a name instead of a path, for a directory
    /// within that of the run.
    ///
    /// # Errors
    /// The errors of [`from_wire`](Self::from_wire).
    pub fn of_wire_settings(text: &str) -> Result<Self, RunConfigError> {
        let settings = config_of(text)?;
        schema::refuse_paths(&settings)?;
        let run = Self::of_settings(&settings)?;
        run.check_leased().map(|()| run)
    }
}

impl RolloutConfig {
    /// Puts the outputs, which settings from another machine name, below a directory of this machine.
    ///
    /// # Errors
    /// [`RunConfigError::Range`] for an output that is no [name](schema::is_output_name), and
    /// [`RunConfigError::HostSetting`] for any other setting that belongs to one machine.
    pub fn place_outputs(&mut self, root: &str) -> Result<(), RunConfigError> {
        schema::refuse_paths(&Config::of(self).map_err(|error| RunConfigError::malformed("settings", error))?)?;
        for name in [&mut self.output, &mut self.monitor_path].into_iter().flatten() {
            *name = format!("{root}/{name}");
        }
        Ok(())
    }
}

/// Reads settings from the wire, which must not belong to one machine.
fn settings_of(text: &str) -> Result<Config, RunConfigError> {
    let settings = config_of(text)?;
    schema::refuse_host_settings(&settings)?;
    Ok(settings)
}

fn config_of(text: &str) -> Result<Config, RunConfigError> {
    let max = RunConfig::MAX_WIRE_BYTES;
    if text.len() > max {
        return Err(RunConfigError::malformed("settings", format!("{} bytes; at most {max} are read", text.len())));
    }
    text.parse().map_err(|error: ConfigError| RunConfigError::malformed("settings", error))
}

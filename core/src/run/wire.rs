//! A description on its way to workers: without what belongs to one machine.

use super::{HostConfig, RolloutConfig, RunConfig, RunConfigError, schema};
use crate::{
    config::{Config, ConfigError},
    prelude::*,
};

impl RunConfig {
    /// The most bytes of a description on the wire.
    pub const MAX_WIRE_BYTES: usize = 48 << 10;

    /// The description without the settings of this machine.
    #[must_use]
    pub fn for_wire(&self) -> Self {
        let RolloutConfig { output, log_dir, monitor_path, extra_environs, .. } = RolloutConfig::default();
        let rollout = RolloutConfig { output, log_dir, monitor_path, extra_environs, ..self.rollout.clone() };
        Self { rollout, host: HostConfig::default(), num_slots: Some(self.num_slots()), ..self.clone() }
    }

    /// As JSON text for the wire.
    #[must_use]
    pub fn to_wire(&self) -> String {
        // Numbers were checked to be finite, the rest is always JSON.
        serde_json::to_string(&self.for_wire()).unwrap_or_default()
    }

    /// Checks that nothing is set that belongs to one machine.
    ///
    /// # Errors
    /// [`RunConfigError::HostSetting`] names the first setting that does.
    pub fn refuse_host_settings(&self) -> Result<(), RunConfigError> {
        schema::refuse_host_settings(&self.settings()?)
    }

    /// Reads the complete description that a hub sent.
    ///
    /// # Errors
    /// [`RunConfigError`]; [`RunConfigError::HostSetting`] for a setting that belongs to one machine.
    pub fn from_wire(text: &str) -> Result<Self, RunConfigError> {
        // Its preset is written out.
        let settings = settings_of(text)?.with("preset", "none");
        Self::of_settings(&settings.map_err(|error| RunConfigError::malformed("settings", error))?)
    }

    /// Reads the settings that an operator sent, over the defaults and the preset.
    ///
    /// # Errors
    /// As [`from_wire`](Self::from_wire).
    pub fn of_wire_settings(text: &str) -> Result<Self, RunConfigError> {
        let run = Self::of_settings(&settings_of(text)?)?;
        run.check_leased().map(|()| run)
    }
}

/// Settings from the wire, of which none belongs to one machine.
fn settings_of(text: &str) -> Result<Config, RunConfigError> {
    let max = RunConfig::MAX_WIRE_BYTES;
    if text.len() > max {
        return Err(RunConfigError::malformed("settings", format!("{} bytes; at most {max} are read", text.len())));
    }
    let settings = text.parse().map_err(|error: ConfigError| RunConfigError::malformed("settings", error))?;
    schema::refuse_host_settings(&settings)?;
    Ok(settings)
}

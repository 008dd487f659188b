//! Reads settings into a description; errors name the path of the invalid setting.

use serde_json::Value;

use super::{RunConfig, RunConfigError, presets, schema};
use crate::{config::Config, prelude::*};

/// Alternative names of settings.
pub(super) const ALIASES: [(&str, &str); 1] = [("num_envs_per_worker", "num_envs")];

impl RunConfig {
    /// Reads settings over the defaults and, unless they have `preset = "none"`, over the preset of their environment and
    /// algorithm, or the preset of runs that train from files. Nested objects are merged, too.
    ///
    /// # Errors
    /// [`RunConfigError`] names the path of a setting that does not exist, is malformed or is out of its range.
    pub fn of_settings(settings: &Config) -> Result<Self, RunConfigError> {
        let settings = renamed(settings);
        let usual = settings_of(&Self::default())?;
        schema::check(&settings)?;
        let said = parsed(&usual.merged(&settings))?;
        if said.preset == "none" {
            return said.checked();
        }
        let algorithm = said.algorithm.as_deref();
        let preset =
            if said.reads_input() { presets::from_files(algorithm) } else { presets::of(said.env(), algorithm) };
        parsed(&usual.merged(&preset).merged(&settings))?.checked()
    }

    /// Returns these settings overridden by others; presets do not apply.
    ///
    /// # Errors
    /// The errors of [`of_settings`](Self::of_settings).
    pub fn merged(&self, settings: &Config) -> Result<Self, RunConfigError> {
        let settings = renamed(settings);
        schema::check(&settings)?;
        parsed(&settings_of(self)?.merged(&settings))?.checked()
    }

    /// Returns all settings.
    ///
    /// # Errors
    /// [`RunConfigError::Malformed`] for numbers that JSON cannot represent.
    pub fn settings(&self) -> Result<Config, RunConfigError> {
        settings_of(self)
    }

    fn checked(self) -> Result<Self, RunConfigError> {
        self.check().map(|()| self)
    }
}

fn settings_of(config: &RunConfig) -> Result<Config, RunConfigError> {
    Config::of(config).map_err(|error| RunConfigError::malformed("settings", error))
}

fn renamed(settings: &Config) -> Config {
    ALIASES.into_iter().fold(settings.clone(), |settings, (alias, name)| match settings.get::<Value>(alias) {
        Ok(Some(value)) => settings.clone().without(&[alias]).with(name, value).unwrap_or(settings),
        _ => settings,
    })
}

/// Reads a whole description; an error names the first setting that cannot be read on its own.
fn parsed(settings: &Config) -> Result<RunConfig, RunConfigError> {
    let read = |settings: &Config| settings.parse::<RunConfig>();
    let error = match read(settings) {
        Ok(config) => return Ok(config),
        Err(error) => error,
    };
    let usual = settings_of(&RunConfig::default())?;
    for name in settings.names() {
        let Ok(Some(value)) = settings.get::<Value>(name) else { continue };
        let Ok(alone) = usual.clone().without(&[name]).with(name, value) else { continue };
        if let Err(error) = read(&alone) {
            return Err(malformed(name, &error));
        }
    }
    Err(malformed("settings", &error))
}

fn malformed(path: &str, error: &crate::config::ConfigError) -> RunConfigError {
    let text = error.to_string();
    let reason = text.strip_prefix("the settings are wrong: ").unwrap_or(&text);
    RunConfigError::malformed(path, reason)
}

//! Reads settings into a description; errors name the path of the invalid setting.

use core::str::FromStr;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{RolloutConfig, RunConfig, RunConfigError, presets, schema};
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
        let said: Self = parsed(&usual.merged(&settings))?;
        if said.preset == "none" {
            return said.checked();
        }
        parsed::<Self>(&usual.merged(&presets::of(&said)).merged(&settings))?.checked()
    }

    /// Returns these settings overridden by others; presets do not apply.
    ///
    /// # Errors
    /// The errors of [`of_settings`](Self::of_settings).
    pub fn merged(&self, settings: &Config) -> Result<Self, RunConfigError> {
        let settings = renamed(settings);
        schema::check_without_models(&settings)?;
        parsed::<Self>(&settings_of(self)?.merged(&settings))?.checked()
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

impl RolloutConfig {
    /// Reads the settings of a worker over the defaults.
    ///
    /// # Errors
    /// [`RunConfigError`] names the path of a setting that does not exist, is malformed, is out of its range, or belongs to
    /// a run instead of a worker.
    pub fn of_settings(settings: &Config) -> Result<Self, RunConfigError> {
        let settings = renamed(settings);
        schema::check(&settings)?;
        match setting_of_run(&settings)? {
            Some(path) => Err(RunConfigError::NotOfWorkers(path.into())),
            None => parsed::<Self>(&settings_of(&Self::default())?.merged(&settings)),
        }
    }
}

impl FromStr for RolloutConfig {
    type Err = RunConfigError;

    /// Reads the settings of a worker, a JSON object; see [`of_settings`](Self::of_settings).
    fn from_str(text: &str) -> Result<Self, RunConfigError> {
        let settings: Config = text.parse().map_err(|error| RunConfigError::malformed("settings", error))?;
        Self::of_settings(&settings)
    }
}

/// Returns the first setting that a worker has not.
fn setting_of_run(settings: &Config) -> Result<Option<&str>, RunConfigError> {
    let known = settings_of(&RolloutConfig::default())?;
    Ok(settings.names().find(|name| known.names().all(|known| known != *name)))
}

fn settings_of(config: &impl Serialize) -> Result<Config, RunConfigError> {
    Config::of(config).map_err(|error| RunConfigError::malformed("settings", error))
}

fn renamed(settings: &Config) -> Config {
    ALIASES.into_iter().fold(settings.clone(), |settings, (alias, name)| match settings.get::<Value>(alias) {
        Ok(Some(value)) => settings.clone().without(&[alias]).with(name, value).unwrap_or(settings),
        _ => settings,
    })
}

/// Reads a whole description; an error names the first setting that cannot be read on its own, or the entry of a group.
fn parsed<T: Default + Serialize + DeserializeOwned>(settings: &Config) -> Result<T, RunConfigError> {
    let error = match settings.parse::<T>() {
        Ok(config) => return Ok(config),
        Err(error) => error,
    };
    let usual = settings_of(&T::default())?;
    let read_alone = |name: &str, value: &Value| match usual.clone().without(&[name]).with(name, value) {
        Ok(alone) => alone.parse::<T>().map(drop),
        Err(_) => Ok(()),
    };
    for name in settings.names() {
        let Ok(Some(value)) = settings.get::<Value>(name) else { continue };
        let Err(error) = read_alone(name, &value) else { continue };
        for (entry, value) in value.as_object().into_iter().flatten() {
            if let Err(error) = read_alone(name, &json!({ entry: value })) {
                return Err(malformed(&format!("{name}.{entry}"), &error));
            }
        }
        return Err(malformed(name, &error));
    }
    Err(malformed("settings", &error))
}

fn malformed(path: &str, error: &crate::config::ConfigError) -> RunConfigError {
    let text = error.to_string();
    let reason = text.strip_prefix("the settings are wrong: ").unwrap_or(&text);
    RunConfigError::malformed(path, reason)
}

//! Defines settings of an environment, a policy or a model, for code that this crate does not know.
//!
//! ```
//! use rollmesh_core::config::Config;
//!
//! let common: Config = r#"{"gamma": 0.99, "model": {"fcnet_hiddens": [64, 64]}}"#.parse()?;
//! let own: Config = r#"{"gamma": 0.95, "model": {"use_lstm": true}}"#.parse()?;
//! let merged = common.merged(&own);
//! assert_eq!(merged.get::<f64>("gamma")?, Some(0.95));
//! assert_eq!(merged.to_string(), r#"{"gamma":0.95,"model":{"fcnet_hiddens":[64,64],"use_lstm":true}}"#);
//! # Ok::<(), rollmesh_core::config::ConfigError>(())
//! ```

use core::{cmp::Reverse, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::prelude::*;

/// Returns the known name that is most similar to a misspelt one, if any is: of names that are equally similar the last one.
pub(crate) fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.chars().count() / 2).min(3);
    let distances = known.into_iter().map(|known| (distance(name, known), Reverse(known)));
    distances.min().filter(|(distance, _)| *distance <= most).map(|(_, Reverse(known))| known)
}

/// Returns what follows the name of an unknown setting in an error: the most similar known one as a question, or all of them.
pub(crate) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match similar(name, known.clone()) {
        Some(known) => format!("; did you mean {known}?"),
        None => format!("; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// Returns the edit distance of two names, whatever their case (Levenshtein: "Binary codes capable of correcting deletions,
/// insertions and reversals", 1966).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Returns the values within an object, each with the names of the objects around it joined by `separator`. An empty object is
/// a value.
#[must_use]
pub fn leaves<'a>(value: &'a Value, separator: &str) -> Vec<(String, &'a Value)> {
    let Some(object) = value.as_object().filter(|object| !object.is_empty()) else {
        return vec![(String::new(), value)];
    };
    let inner = |(name, value): (&String, &'a Value)| {
        let with_outer = |(inner, value): (String, _)| match &*inner {
            "" => (name.clone(), value),
            inner => (format!("{name}{separator}{inner}"), value),
        };
        leaves(value, separator).into_iter().map(with_outer).collect::<Vec<_>>()
    };
    object.iter().flat_map(inner).collect()
}

/// A JSON object. Names are sorted, so equal settings have equal texts. Cheap to clone.
///
/// Serialises as an object in human-readable formats, and as a string with its JSON text in others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias("env_config", "policy_config", "model_config"))]
pub struct Config(Arc<Map<String, Value>>);

/// The reason why settings are invalid for the code that reads them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not a JSON object.
    #[error("settings must be a JSON object: {0}")]
    NoObject(String),
    /// A setting has the wrong form.
    #[error("the setting '{name}' is wrong: {reason}")]
    BadValue {
        /// Name of the setting.
        name: String,
        /// The cause.
        reason: String,
    },
    /// No code reads the setting: most likely a misspelt name.
    #[error("there is no setting '{name}'; known are: {known}")]
    Unknown {
        /// Name of the setting, or its beginning.
        name: String,
        /// The known settings.
        known: String,
    },
    /// The settings as a whole have the wrong form.
    #[error("the settings are wrong: {0}")]
    BadSettings(String),
    /// The value cannot be written as JSON.
    #[error("the setting '{name}' cannot be stored: {reason}")]
    NoJson {
        /// Name of the setting.
        name: String,
        /// The cause.
        reason: String,
    },
}

impl ConfigError {
    /// Returns the message for settings in the group at this path, in the words of [`RunConfigError`](crate::run::RunConfigError).
    #[must_use]
    pub fn at(&self, path: &str) -> String {
        match self {
            Self::BadValue { name, reason } => format!("{path}.{name}: {reason}"),
            Self::Unknown { name, known } => {
                format!("{path}.{name}: there is no such setting{}", hint(name, known.split(", ")))
            }
            Self::BadSettings(reason) => format!("{path}: {reason}"),
            other => format!("{path}: {other}"),
        }
    }
}

impl Config {
    /// Creates empty settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates settings from a value that serialises as an object.
    ///
    /// # Errors
    /// [`ConfigError::NoObject`].
    pub fn of<T: Serialize>(settings: &T) -> Result<Self, ConfigError> {
        match serde_json::to_value(settings) {
            Ok(Value::Object(map)) => Ok(Self(Arc::new(map))),
            Ok(other) => Err(ConfigError::NoObject(other.to_string())),
            Err(error) => Err(ConfigError::NoObject(error.to_string())),
        }
    }

    /// Sets one setting.
    ///
    /// # Errors
    /// [`ConfigError::NoJson`].
    pub fn with<T: Serialize>(mut self, name: &str, value: T) -> Result<Self, ConfigError> {
        let no_json = |error: serde_json::Error| ConfigError::NoJson { name: name.into(), reason: error.to_string() };
        let value = serde_json::to_value(value).map_err(no_json)?;
        Arc::make_mut(&mut self.0).insert(name.into(), value);
        Ok(self)
    }

    /// Sets one setting by its path of names separated by dots; other settings stay.
    #[must_use]
    pub fn with_at(&self, path: &str, value: Value) -> Self {
        let (names, name) = path.rsplit_once('.').map_or((None, path), |(names, name)| (Some(names), name));
        let leaf = Map::from_iter([(name.into(), value)]);
        let wrap = |within, name: &str| Map::from_iter([(name.into(), Value::Object(within))]);
        let nested = names.into_iter().flat_map(|names| names.rsplit('.')).fold(leaf, wrap);
        self.merged(&Self(Arc::new(nested)))
    }

    /// Returns one setting, or none if it is absent.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] if it has another form.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ConfigError> {
        let bad = |error: serde_json::Error| ConfigError::BadValue { name: name.into(), reason: plain(&error) };
        self.0.get(name).map(|value| serde_json::from_value(value.clone()).map_err(bad)).transpose()
    }

    /// Deserialises all settings into one value.
    ///
    /// # Errors
    /// [`ConfigError::BadSettings`], which names the missing or wrong setting.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        serde_json::from_value(Value::Object((*self.0).clone()))
            .map_err(|error| ConfigError::BadSettings(plain(&error)))
    }

    /// Checks that there are no settings other than these.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`], which names the first unknown setting and lists the known ones.
    pub fn check_known(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.names().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(name) => Err(ConfigError::Unknown {
                name: name.chars().take(64).collect(),
                known: if known.is_empty() { "none".into() } else { known.join(", ") },
            }),
        }
    }

    /// Returns these settings overridden by others; nested objects are merged in the same way.
    #[doc(alias = "merge_dicts")]
    #[must_use]
    pub fn merged(&self, over: &Self) -> Self {
        let mut merged = (*self.0).clone();
        merge(&mut merged, &over.0);
        Self(Arc::new(merged))
    }

    /// Returns these settings without some of them.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        if names.iter().any(|name| self.0.contains_key(*name)) {
            Arc::make_mut(&mut self.0).retain(|name, _| !names.contains(&name.as_str()));
        }
        self
    }

    /// Iterates over the names of the settings, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns true without settings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the text of an error without the names of Rust's types.
pub(crate) fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return text };
    let expected = match expected {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("a nonzero ") => "a whole number other than 0",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("enum ") => "one of its names",
        _ => return text,
    };
    format!("{found}, expected {expected}")
}

fn merge(into: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (name, value) in over {
        match (into.get_mut(name), value) {
            (Some(Value::Object(into)), Value::Object(over)) => merge(into, over),
            _ => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self(Arc::new(map))),
            Ok(_) => Err(ConfigError::NoObject(text.chars().take(64).collect())),
            Err(error) => Err(ConfigError::NoObject(error.to_string())),
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An object of JSON values can always be written as text.
        f.write_str(&serde_json::to_string(&*self.0).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { self.0.serialize(serializer) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Ok(Self(Arc::new(Map::deserialize(deserializer)?)))
        } else {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_keeps_everything() {
        let config = Config::new().with("size", 3).unwrap().with("map", vec!["SF", "HG"]).unwrap();
        let bytes = postcard::to_allocvec(&config).unwrap();
        assert_eq!(postcard::from_bytes::<Config>(&bytes).unwrap(), config);
        assert_eq!(serde_json::from_str::<Config>(&config.to_string()).unwrap(), config);
    }

    #[test]
    fn settings_are_removed_by_name() {
        let config: Config = r#"{"a": 1, "b": 2, "c": 3}"#.parse().unwrap();
        assert_eq!(config.clone().without(&["a", "c", "d"]).to_string(), r#"{"b":2}"#);
        assert_eq!(config.clone().without(&["d"]), config);
    }

    #[test]
    fn error_names_the_wrong_setting() {
        let config: Config = r#"{"num_cars": "many"}"#.parse().unwrap();
        let error = config.get::<u32>("num_cars").unwrap_err().to_string();
        assert!(error.starts_with("the setting 'num_cars' is wrong: invalid type"), "{error}");
        assert!(error.ends_with("expected a whole number of at least 0"), "{error}");
        let error = config.get::<BTreeMap<String, f64>>("num_cars").unwrap_err().to_string();
        assert!(error.ends_with("expected an object"), "{error}");
        assert_eq!(config.get::<u32>("lights"), Ok(None));
        assert!("[1]".parse::<Config>().is_err() && "{".parse::<Config>().is_err());
        assert!(Config::of(&3).is_err());
        let error = config.check_known(&["num_lights"]).unwrap_err().to_string();
        assert_eq!(error, "there is no setting 'num_cars'; known are: num_lights");
        assert_eq!(config.check_known(&["num_lights", "num_cars"]), Ok(()));
        for (known, hint) in [("num_lights", "known are num_lights"), ("num_car", "did you mean num_car?")] {
            let error = config.check_known(&[known]).unwrap_err().at("env_config");
            assert_eq!(error, format!("env_config.num_cars: there is no such setting; {hint}"));
        }
    }

    /// Checks that numbers keep their bits: settings pass through several processes on their way to an environment, and a
    /// number that changed a little each time would give another environment.
    #[test]
    fn numbers_keep_their_bits() {
        for number in [0.1 + 0.2, 1e-7 / 3.0, 5e-324, 122.416_294_033_786_58, f64::MAX] {
            let config: Config = Config::new().with("number", number).unwrap().to_string().parse().unwrap();
            assert_eq!(config.get::<f64>("number").unwrap().map(f64::to_bits), Some(number.to_bits()));
        }
    }
}

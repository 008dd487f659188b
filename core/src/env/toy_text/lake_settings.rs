//! Settings of FrozenLake, under Gymnasium's names.

use super::{FrozenLakeMap, FrozenLakeOptions, Mdp};
use crate::{
    config::{Config, ConfigError},
    env::EnvError,
    prelude::*,
};

/// Settings of FrozenLake.
pub(super) struct LakeSettings {
    map: Option<FrozenLakeMap>,
    options: FrozenLakeOptions,
}

impl LakeSettings {
    /// All settings: `desc`, the rows of a map; `map_name`, `4x4` or `8x8`; and the fields of [`FrozenLakeOptions`].
    pub(super) const NAMES: &[&str] = &["desc", "map_name", "is_slippery", "success_rate", "reward_schedule"];

    pub(super) fn read(config: &Config) -> Result<Self, EnvError> {
        let bad = |name: &str, reason: String| EnvError::Config(ConfigError::BadValue { name: name.into(), reason });
        let mut map = match config.get::<String>("map_name").map_err(EnvError::Config)?.as_deref() {
            None => None,
            Some("4x4") => Some(FrozenLakeMap::small()),
            Some("8x8") => Some(FrozenLakeMap::large()),
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                return Err(bad(
                    "map_name",
                    format!("there is no map '{other}', only 4x4 and 8x8; give its rows as `desc`"),
                ));
            }
        };
        if let Some(rows) = config.get::<Vec<String>>("desc").map_err(EnvError::Config)? {
            let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
            map = Some(FrozenLakeMap::new(&rows).map_err(|error| bad("desc", error.to_string()))?);
        }
        let usual = FrozenLakeOptions::default();
        let options = FrozenLakeOptions {
            is_slippery: config.get("is_slippery").map_err(EnvError::Config)?.unwrap_or(usual.is_slippery),
            success_rate: config.get("success_rate").map_err(EnvError::Config)?.unwrap_or(usual.success_rate),
            reward_schedule: config.get("reward_schedule").map_err(EnvError::Config)?.unwrap_or(usual.reward_schedule),
        };
        if !(0.0..=1.0).contains(&options.success_rate) {
            return Err(bad("success_rate", format!("{} is no probability", options.success_rate)));
        }
        Ok(Self { map, options })
    }

    /// Returns the lake, on the map that the settings name, else on the given one.
    pub(super) fn lake(&self, usual: &FrozenLakeMap) -> Mdp {
        Mdp::frozen_lake(self.map.as_ref().unwrap_or(usual), self.options)
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        env::{EnvContext, EnvRegistry},
        ids::HomeIndex,
        prelude::*,
    };

    /// Returns the number of states of a lake with settings, or the error.
    fn states(env: &str, config: &str) -> Result<String, String> {
        let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
        let context = context.with_config(config.parse().unwrap());
        let spaces = EnvRegistry::builtin().spec(env).unwrap().spaces_in(&context);
        spaces.map(|spaces| spaces.observation.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_choose_the_map() {
        assert_eq!(states("FrozenLake-v1", "{}").unwrap(), "Discrete(16)");
        assert_eq!(states("FrozenLake-v1", r#"{"map_name": "8x8"}"#).unwrap(), "Discrete(64)");
        assert_eq!(states("FrozenLake8x8-v1", r#"{"is_slippery": false}"#).unwrap(), "Discrete(64)");
        assert_eq!(states("FrozenLake8x8-v1", r#"{"desc": ["SFG"]}"#).unwrap(), "Discrete(3)");
    }

    #[test]
    fn error_names_the_wrong_setting() {
        for (config, expected) in [
            (r#"{"mapname": 1}"#, "there is no setting 'mapname'; known are: desc, map_name, is_slippery, "),
            (r#"{"map_name": "9x9"}"#, "the setting 'map_name' is wrong: there is no map '9x9'"),
            (r#"{"map_name": 8}"#, "the setting 'map_name' is wrong: invalid type"),
            (r#"{"desc": ["FG"]}"#, "the setting 'desc' is wrong: the map has no start"),
            (r#"{"success_rate": 2}"#, "the setting 'success_rate' is wrong: 2 is no probability"),
        ] {
            let error = states("FrozenLake-v1", config).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = states("CartPole-v1", r#"{"gravity": 1}"#).unwrap_err();
        assert_eq!(error, "there is no setting 'gravity'; known are: none");
    }
}

//! Settings of a model.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{
    config::{Config, ConfigError},
    prelude::*,
};

/// Settings of the networks of [`NetPolicy`](super::NetPolicy), under RLlib's names: the object `model` among a policy's
/// settings.
///
/// Settings that are left out have their defaults, and there are no others. RLlib's defaults are wider, 256 everywhere.
///
/// ```
/// use rollmesh_core::{config::Config, policy::ModelConfig};
///
/// let config: Config = r#"{"gamma": 0.95, "model": {"use_lstm": true, "lstm_cell_size": 32}}"#.parse()?;
/// let model = ModelConfig::of(&config)?;
/// assert_eq!((model.fcnet_hiddens.as_slice(), model.max_seq_len.get()), (&[64, 64][..], 20));
///
/// let config: Config = r#"{"model": {"fcnet_hidden": [8]}}"#.parse()?;
/// let error = ModelConfig::of(&config).unwrap_err().to_string();
/// assert!(error.contains("unknown field `fcnet_hidden`, expected one of `fcnet_hiddens`, `use_lstm`"));
/// # Ok::<(), rollmesh_core::config::ConfigError>(())
/// ```
#[doc(alias("MODEL_DEFAULTS", "model_config"))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Widths of the hidden layers, each followed by tanh.
    pub fcnet_hiddens: Vec<u32>,
    /// Whether there is an LSTM between the hidden layers and the heads.
    pub use_lstm: bool,
    /// Cells of the LSTM.
    pub lstm_cell_size: NonZeroU32,
    /// The longest sequence that a recurrent policy learns from, in steps.
    pub max_seq_len: NonZeroU32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        const CELLS: NonZeroU32 = NonZeroU32::new(64).unwrap();
        const STEPS: NonZeroU32 = NonZeroU32::new(20).unwrap();
        Self { fcnet_hiddens: vec![64, 64], use_lstm: false, lstm_cell_size: CELLS, max_seq_len: STEPS }
    }
}

impl ModelConfig {
    /// Hidden layers of these widths, and no memory.
    #[must_use]
    pub fn of_widths(hidden: &[u32]) -> Self {
        Self { fcnet_hiddens: hidden.to_vec(), ..Self::default() }
    }

    /// The object `model` of a policy's settings, or the defaults without one.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`], which names what is wrong and lists the settings that there are.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        Ok(config.get("model")?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(model: &str) -> Result<ModelConfig, ConfigError> {
        ModelConfig::of(&format!(r#"{{"model": {model}}}"#).parse().unwrap())
    }

    #[test]
    fn settings_come_back() {
        let model = ModelConfig { fcnet_hiddens: vec![3], use_lstm: true, ..ModelConfig::default() };
        assert_eq!(read(&Config::of(&model).unwrap().to_string()), Ok(model));
        assert_eq!(ModelConfig::of(&Config::new()), Ok(ModelConfig::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |model: &str| read(model).unwrap_err().to_string();
        let unknown = error(r#"{"lstm": true}"#);
        for name in ["fcnet_hiddens", "use_lstm", "lstm_cell_size", "max_seq_len"] {
            assert!(unknown.contains(name), "{unknown}");
        }
        for bad in [r#"{"lstm_cell_size": 0}"#, r#"{"max_seq_len": 0}"#, r#"{"fcnet_hiddens": [-1]}"#, "7"] {
            assert!(error(bad).starts_with("the setting 'model' is wrong: invalid"), "{}", error(bad));
        }
    }
}

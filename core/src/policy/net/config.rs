//! Settings of a model.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::CustomModel;
use crate::{
    config::{Config, ConfigError},
    kernels::nets::Activation,
    prelude::*,
};

/// Settings of the networks of [`NetPolicy`](super::NetPolicy), under RLlib's names: the object `model` among a policy's
/// settings.
///
/// Settings that are absent have their defaults, and there are no others. RLlib's defaults are wider, 256 everywhere.
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
/// assert!(error.contains("unknown field `fcnet_hidden`, expected one of `custom_model`, `fcnet_hiddens`"));
/// # Ok::<(), rollmesh_core::config::ConfigError>(())
/// ```
#[doc(alias("MODEL_DEFAULTS", "model_config"))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Hidden layers of the user's own, instead of those that the following settings describe: a description, or the name
    /// of a registered one. Inputs from the previous step, first weights and standard deviations follow the settings below.
    pub custom_model: Option<CustomModel>,
    /// Widths of the hidden layers, after the convolutions if there are any.
    pub fcnet_hiddens: Vec<u32>,
    /// The activation of each hidden layer.
    #[serde(with = "activation")]
    pub fcnet_activation: Activation,
    /// Whether each hidden layer's outputs are normalised before its activation.
    pub fcnet_use_layernorm: bool,
    /// Convolutions of images, observations in boxes of three dimensions: height, width and channels. With `None` images are
    /// vectors.
    pub conv_filters: Option<ConvFilters>,
    /// The activation of each convolution.
    #[serde(with = "activation")]
    pub conv_activation: Activation,
    /// Widths of more hidden layers, after `fcnet_hiddens` and before the LSTM.
    pub post_fcnet_hiddens: Vec<u32>,
    /// The activation of each of these layers.
    #[serde(with = "activation")]
    pub post_fcnet_activation: Activation,
    /// Whether policy and value are two heads over the same layers, as they always are with an LSTM.
    pub vf_share_layers: bool,
    /// The distribution of the first weights.
    pub weights_initializer: WeightsInitializer,
    /// Whether there is an LSTM between the hidden layers and the heads.
    pub use_lstm: bool,
    /// Cells of the LSTM.
    pub lstm_cell_size: NonZeroU32,
    /// Whether the LSTM, or the gated recurrent units, also see the previous action.
    pub lstm_use_prev_action: bool,
    /// Whether they also see the previous reward.
    pub lstm_use_prev_reward: bool,
    /// Whether there are gated recurrent units there instead.
    pub use_gru: bool,
    /// Cells of these.
    pub gru_cell_size: NonZeroU32,
    /// Whether the standard deviations of actions that are real numbers are weights of their own instead of outputs.
    pub free_log_std: bool,
    /// The longest sequence that a recurrent policy learns from, in steps.
    pub max_seq_len: NonZeroU32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        const CELLS: NonZeroU32 = NonZeroU32::new(64).unwrap();
        const STEPS: NonZeroU32 = NonZeroU32::new(20).unwrap();
        Self {
            custom_model: None,
            fcnet_hiddens: vec![64, 64],
            fcnet_activation: Activation::Tanh,
            fcnet_use_layernorm: false,
            conv_filters: None,
            conv_activation: Activation::Relu,
            post_fcnet_hiddens: Vec::new(),
            post_fcnet_activation: Activation::Relu,
            vf_share_layers: false,
            weights_initializer: WeightsInitializer::GlorotUniform,
            use_lstm: false,
            lstm_cell_size: CELLS,
            lstm_use_prev_action: false,
            lstm_use_prev_reward: false,
            use_gru: false,
            gru_cell_size: CELLS,
            free_log_std: false,
            max_seq_len: STEPS,
        }
    }
}

/// The distribution of a model's first weights. Biases are zero, except that those of forget gates are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsInitializer {
    /// Uniform within bounds that follow from a layer's inputs and outputs (Glorot and Bengio, 2010); the policy's last layer
    /// a hundred times smaller.
    #[default]
    GlorotUniform,
    /// Orthogonal (Saxe, McClelland and Ganguli: "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    /// networks", 2013) with PPO's usual gains: the square root of 2 where an activation follows, 0.01 for the policy's last
    /// layer, 1 for the value's and for an LSTM.
    Orthogonal,
}

impl WeightsInitializer {
    /// The names in settings.
    pub const NAMES: [&'static str; 2] = ["glorot_uniform", "orthogonal"];
}

/// Convolutions, the first one first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "convolutions are auto or a list of [filters, kernel, stride], such as [[16, 3, 1]]")]
pub enum ConvFilters {
    /// Those that suit the size of the images.
    Auto(AutoFilters),
    /// These.
    Filters(Vec<ConvFilter>),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoFilters {
    /// The word.
    Auto,
}

/// One convolution, as RLlib writes it: `[filters, kernel, stride]`, where kernel and stride are `[height, width]` or one
/// number for both.
///
/// Images are padded with zeros so that there are as many places as strides fit into height and width; before the last
/// convolution they are not padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvFilter(pub u32, pub Extent, pub Extent);

/// A height and a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "an extent is a whole number or [height, width]")]
pub enum Extent {
    /// The same number for both.
    Square(u32),
    /// Height and width.
    Sides([u32; 2]),
}

impl Extent {
    pub(super) fn sides(self) -> [usize; 2] {
        let (Self::Square(height) | Self::Sides([height, _])) = self;
        let (Self::Square(width) | Self::Sides([_, width])) = self;
        [height as usize, width as usize]
    }
}

/// Activations by their names.
pub(super) mod activation {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    use crate::{kernels::nets::Activation, prelude::*};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
    pub(in super::super) fn serialize<S: Serializer>(
        activation: &Activation,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(activation.name())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = Activation::ALL.into_iter().find(|activation| activation.name() == name);
        found.ok_or_else(|| de::Error::unknown_variant(&name, &Activation::NAMES))
    }
}

impl ModelConfig {
    /// Creates settings with hidden layers of these widths, and no memory.
    #[must_use]
    pub fn of_widths(hidden: &[u32]) -> Self {
        Self { fcnet_hiddens: hidden.to_vec(), ..Self::default() }
    }

    /// Reads the object `model` of a policy's settings, or the defaults without one.
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
    fn settings_round_trip() {
        let fcnet_activation = Activation::Gelu;
        let filters = vec![ConvFilter(16, Extent::Square(3), Extent::Sides([2, 1]))];
        let model = ModelConfig {
            fcnet_hiddens: vec![3],
            fcnet_activation,
            conv_filters: Some(ConvFilters::Filters(filters)),
            weights_initializer: WeightsInitializer::Orthogonal,
            use_lstm: true,
            ..ModelConfig::default()
        };
        assert_eq!(
            read(r#"{"conv_filters": "auto"}"#).unwrap().conv_filters,
            Some(ConvFilters::Auto(AutoFilters::Auto))
        );
        assert_eq!(read(&Config::of(&model).unwrap().to_string()), Ok(model));
        assert_eq!(ModelConfig::of(&Config::new()), Ok(ModelConfig::default()));
    }

    #[test]
    fn error_names_the_wrong_model_setting() {
        let error = |model: &str| read(model).unwrap_err().to_string();
        let unknown = error(r#"{"lstm": true}"#);
        for name in ["fcnet_hiddens", "use_lstm", "lstm_cell_size", "max_seq_len"] {
            assert!(unknown.contains(name), "{unknown}");
        }
        assert!(error(r#"{"conv_filters": [[16, 3]]}"#).starts_with("the setting 'model' is wrong"));
        for bad in [r#"{"lstm_cell_size": 0}"#, r#"{"max_seq_len": 0}"#, r#"{"fcnet_hiddens": [-1]}"#, "7"] {
            assert!(error(bad).starts_with("the setting 'model' is wrong: invalid"), "{}", error(bad));
        }
        let unknown = error(r#"{"fcnet_activation": "sine"}"#);
        assert!(unknown.contains("unknown variant `sine`, expected one of `tanh`, `relu`, `silu`"), "{unknown}");
    }
}

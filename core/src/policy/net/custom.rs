//! A model of the user's own: layers by description, in settings or under a registered name.

use core::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{
    ModelConfig,
    config::{Extent, activation},
};
use crate::{kernels::nets::Activation, policy::PolicyError, prelude::*};

/// The hidden layers of a model. The last layer of each network, to the parameters of the distribution and to the value,
/// follows the spaces.
///
/// ```
/// use rollmesh_core::policy::{ModelConfig, ModelDescription, ModelSpec};
///
/// let description: ModelDescription = serde_json::from_str(
///     r#"{"trunk": [{"layer": "dense", "outputs": 32, "activation": "silu"}, {"layer": "layer_norm"}],
///         "value": [{"layer": "dense", "outputs": 16, "activation": "tanh"}]}"#,
/// )?;
/// let model = ModelConfig { custom_model: Some(description.into()), ..ModelConfig::default() };
/// let spec = ModelSpec::new(&model, &[4], 2)?;
/// let names: Vec<&str> = spec.layers().map(|layer| &*layer.name).collect();
/// assert_eq!(names, ["encoder.0", "encoder.1", "policy.0", "value.0", "value.1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("custom_model", "ModelV2", "register_custom_model"))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelDescription {
    /// Layers that both networks share. Memory is the last of them.
    pub trunk: Vec<LayerDescription>,
    /// Layers of the policy network before its last one.
    pub policy: Vec<LayerDescription>,
    /// Layers of the value network before its last one.
    pub value: Vec<LayerDescription>,
}

/// A layer of a [`ModelDescription`], see [`LayerKind`](super::LayerKind).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "layer", rename_all = "snake_case", deny_unknown_fields)]
pub enum LayerDescription {
    /// Sums over all inputs.
    Dense {
        /// Numbers that it makes of a row.
        outputs: u32,
        /// The activation, applied to the sums.
        #[serde(with = "activation", default = "linear")]
        activation: Activation,
    },
    /// Sums over the patches of an image, which is the observation or the output of another convolution.
    Conv {
        /// Numbers that it makes of a patch.
        filters: u32,
        /// Height and width of a patch.
        kernel: Extent,
        /// From one patch to the next.
        stride: Extent,
        /// Whether images are padded with zeros to as many places as strides fit into their sides.
        #[serde(default)]
        is_padded: bool,
        /// The activation, applied to the sums.
        #[serde(with = "activation", default = "linear")]
        activation: Activation,
    },
    /// Layer normalisation.
    LayerNorm {
        /// The activation, applied to the results.
        #[serde(with = "activation", default = "linear")]
        activation: Activation,
    },
    /// Long short-term memory.
    Lstm {
        /// Its cells.
        cells: NonZeroU32,
    },
    /// Gated recurrent units.
    Gru {
        /// Their number.
        cells: NonZeroU32,
    },
}

const fn linear() -> Activation {
    Activation::Linear
}

/// The setting `custom_model`: a registered name, or a description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CustomModel {
    /// A name, see [`PolicyRegistry::register_model`](crate::policy::PolicyRegistry::register_model).
    Named(String),
    /// The layers.
    Described(ModelDescription),
}

impl From<ModelDescription> for CustomModel {
    fn from(description: ModelDescription) -> Self {
        Self::Described(description)
    }
}

impl<'de> Deserialize<'de> for CustomModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not untagged: that would hide what is wrong with a description.
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(name) => Ok(Self::Named(name)),
            value => serde_json::from_value(value).map(Self::Described).map_err(de::Error::custom),
        }
    }
}

/// Descriptions of models by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRegistry(BTreeMap<String, ModelDescription>);

impl ModelRegistry {
    /// Adds a description; one of the same name is replaced.
    pub fn register(&mut self, name: impl Into<String>, description: ModelDescription) {
        self.0.insert(name.into(), description);
    }

    /// Replaces the name of a model by its description.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a name that is not registered, which lists those that are.
    pub fn resolved(&self, model: ModelConfig) -> Result<ModelConfig, PolicyError> {
        let Some(CustomModel::Named(name)) = &model.custom_model else { return Ok(model) };
        let description = self.0.get(name).ok_or_else(|| PolicyError::Unsupported {
            wanted: match self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ") {
                known if known.is_empty() => {
                    "a custom_model that the program has registered, of which there is none".into()
                }
                known => format!("a custom_model that the program has registered: {known}"),
            },
            found: format!("'{name}'"),
        })?;
        Ok(ModelConfig { custom_model: Some(description.clone().into()), ..model })
    }
}

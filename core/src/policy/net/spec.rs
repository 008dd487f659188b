//! The specification of a model: its layers, which determine everything else.

use super::{
    Init, LayerKind, LayerSpec, MaskedObs, ModelConfig, PreviousInputs, WeightsInitializer, build, mask::ActionMask,
};
use crate::{
    distribution::ActionDistribution,
    env::EnvSpaces,
    policy::{ObsEncoder, PolicyError, init},
    prelude::*,
    space::Space,
    weights::Weights,
};

/// The layers of a policy: acting, learning, first weights and checks of weights all follow them.
///
/// A policy network and a value network, over the outputs of a trunk that they share or, if the trunk is empty, over the same
/// observations. A layer's tensors are named after it, see [`LayerKind`]. The models that a [`ModelConfig`] describes have
/// the layers
///
/// - without shared layers: convolutions `policy_conv.{i}` if there are any, hidden layers and one to the parameters of the
///   distribution, `policy.{i}`; likewise `value_conv.{i}` and `value.{i}`;
/// - with shared layers: `encoder_conv.{i}`, `encoder.{i}`, `lstm` or `gru` if there is one, and the heads `policy.0` and
///   `value.0`;
///
/// `{network}_norm.{i}` after a hidden layer that is normalised, and `policy` for a free `log_std`.
///
/// ```
/// use rollmesh_core::policy::{ModelConfig, ModelSpec};
///
/// let config: ModelConfig = serde_json::from_str(r#"{"conv_filters": [[16, 3, 1]], "fcnet_hiddens": [128]}"#)?;
/// let spec = ModelSpec::new(&config, &[10, 10, 4], 3)?;
/// assert!(spec.tensors()?.contains(&("policy_conv.0.weight".into(), vec![3, 3, 4, 16])));
/// assert!(spec.tensors()?.contains(&("policy.0.weight".into(), vec![8 * 8 * 16, 128])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("ModelCatalog", "LSTMWrapper", "FullyConnectedNetwork", "VisionNetwork"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Elements of an observation, as the [`ObsEncoder`] gives it, after its action mask.
    pub obs_len: usize,
    /// Elements of the action mask that observations begin with, see [`MaskedObs`]; 0 for observations without.
    pub mask_len: usize,
    /// Layers that both networks share. Memory is the last of them.
    pub trunk: Vec<LayerSpec>,
    /// Layers of the policy network. The last one's outputs are the inputs of the [`ActionDistribution`].
    pub policy: Vec<LayerSpec>,
    /// Layers of the value network. The last one has one output.
    pub value: Vec<LayerSpec>,
    /// The distribution of the first weights.
    pub initializer: WeightsInitializer,
}

impl ModelSpec {
    /// The maximum number of weights of a model.
    pub const MAX_WEIGHTS: usize = 1 << 26;
    /// The maximum number of outputs of a layer, and of numbers in the patches of one image.
    pub const MAX_OUTPUTS: usize = 1 << 20;
    /// The maximum work of making one matrix of weights orthogonal: its longer side times the square of the shorter
    /// one. That takes some seconds.
    pub const MAX_ORTHOGONAL_WORK: u64 = 1 << 32;

    /// Builds the model for an environment's observations and actions.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for spaces that no policy takes and for an action mask that does not fit the actions, or
    /// as [`new`](Self::new).
    pub fn for_spaces(spaces: &EnvSpaces, model: &ModelConfig) -> Result<Self, PolicyError> {
        let distribution = ActionDistribution::for_space(&spaces.action).map_err(|_| PolicyError::Unsupported {
            wanted: "actions of a space with a distribution".into(),
            found: spaces.action.to_string(),
        })?;
        if model.free_log_std && !matches!(distribution, ActionDistribution::DiagGaussian { .. }) {
            let (wanted, found) = ("actions of real numbers with free_log_std".into(), spaces.action.to_string());
            return Err(PolicyError::Unsupported { wanted, found });
        }
        let mask_len = ActionMask::of(&spaces.observation, &spaces.action)?.map_or(0, |mask| mask.len());
        let seen = MaskedObs::of(&spaces.observation).map_or(&spaces.observation, |masked| masked.observations);
        let encoder = ObsEncoder::for_space(seen)?;
        let shape: Vec<usize> = match seen {
            Space::Box(space) => space.shape().dims().iter().map(|&dim| dim as usize).collect(),
            _ => vec![encoder.len()],
        };
        let action_len = ObsEncoder::for_space(&spaces.action)?.len();
        let spec = build::model(model, &shape, distribution.input_len(), action_len)?;
        Self { mask_len, ..spec }.checked()
    }

    /// Builds the model for observations of a shape and a policy network with `dist_inputs_len` outputs. With
    /// `lstm_use_prev_action` an encoded action has as many numbers, as one-hot vectors have.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for convolutions without an image or larger than it, or as [`check`](Self::check).
    pub fn new(model: &ModelConfig, obs_shape: &[usize], dist_inputs_len: usize) -> Result<Self, PolicyError> {
        build::model(model, obs_shape, dist_inputs_len, dist_inputs_len)?.checked()
    }

    fn checked(self) -> Result<Self, PolicyError> {
        self.check().map(|()| self)
    }

    /// Checks that all layers have elements and fit each other, memory stands last in the trunk, and the weights are at most
    /// [`MAX_WEIGHTS`](Self::MAX_WEIGHTS).
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`].
    pub fn check(&self) -> Result<(), PolicyError> {
        let unsupported = |wanted: String, found: String| Err(PolicyError::Unsupported { wanted, found });
        let weights = self.layers().fold(0usize, |sum, layer| sum.saturating_add(layer.num_weights()));
        if weights > Self::MAX_WEIGHTS {
            return unsupported(
                format!("models of at most {} weights", Self::MAX_WEIGHTS),
                format!("one of {weights}"),
            );
        }
        if self.obs_len == 0 || self.layers().any(|layer| layer.outputs() == 0) {
            return unsupported("layers with elements".into(), "one without".into());
        }
        if let Some(layer) = self.layers().find(|layer| layer.outputs() > Self::MAX_OUTPUTS) {
            let found = format!("{} with {}", layer.name, layer.outputs());
            return unsupported(format!("layers of at most {} outputs", Self::MAX_OUTPUTS), found);
        }
        let patches = |layer: &LayerSpec| match layer.kind {
            LayerKind::Conv { shape, .. } => shape.num_patches().saturating_mul(shape.patch_len()),
            _ => 0,
        };
        if let Some(layer) = self.layers().find(|layer| patches(layer) > Self::MAX_OUTPUTS) {
            let wanted = format!("convolutions whose patches have at most {} numbers together", Self::MAX_OUTPUTS);
            let found = format!("{} with {}: use smaller kernels or larger strides", layer.name, patches(layer));
            return unsupported(wanted, found);
        }
        if self.initializer == WeightsInitializer::Orthogonal {
            let work = |(rows, columns): (usize, usize)| {
                let [rows, columns] = [rows as u64, columns as u64];
                rows.saturating_mul(columns).saturating_mul(rows.min(columns))
            };
            let sizes = self.layers().flat_map(LayerSpec::tensor_specs).filter_map(|tensor| match tensor.init {
                Init::Drawn { rows, columns, .. } => Some((rows, columns)),
                _ => None,
            });
            if let Some((rows, columns)) = sizes.into_iter().find(|size| work(*size) > Self::MAX_ORTHOGONAL_WORK) {
                let found = format!("one of {rows}x{columns}: use weights_initializer = \"glorot_uniform\"");
                return unsupported("smaller matrices for orthogonal first weights".into(), found);
            }
        }
        let features = self.trunk.last().map_or(self.obs_len, LayerSpec::outputs);
        for (layers, inputs) in [(&self.trunk, self.obs_len), (&self.policy, features), (&self.value, features)] {
            let before = [inputs].into_iter().chain(layers.iter().map(LayerSpec::outputs));
            for (layer, before) in layers.iter().zip(before) {
                let takes = if let LayerKind::Conv { shape, .. } = layer.kind { shape.inputs() } else { layer.inputs };
                if (layer.inputs, takes) != (before, before) {
                    let found = format!("{} with {takes} inputs after {before} outputs", layer.name);
                    return unsupported("layers that fit each other".into(), found);
                }
            }
        }
        let is_memory = |layer: &LayerSpec| !layer.state_lens().is_empty();
        let before_last = self.trunk.len().saturating_sub(1);
        if self.trunk[..before_last].iter().chain(&self.policy).chain(&self.value).any(is_memory) {
            return unsupported("memory as the last layer of the trunk".into(), "it elsewhere".into());
        }
        if self.policy.is_empty() || self.value.last().map(LayerSpec::outputs) != Some(1) {
            return unsupported("a policy network and a value network with one output".into(), "others".into());
        }
        Ok(())
    }

    /// Iterates over all layers: the trunk's, the policy's, the value's.
    pub fn layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.trunk.iter().chain(&self.policy).chain(&self.value)
    }

    /// Returns the number of outputs of the policy network.
    #[must_use]
    pub fn dist_inputs_len(&self) -> usize {
        self.policy.last().map_or(0, LayerSpec::outputs)
    }

    /// Returns the names and shapes of all tensors of the model.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn tensors(&self) -> Result<Vec<(String, Vec<usize>)>, PolicyError> {
        self.check()?;
        Ok(self.layers().flat_map(LayerSpec::tensors).collect())
    }

    /// Draws first weights of the model, a function of the seed, by the [`WeightsInitializer`].
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn init_weights(&self, seed: u64) -> Result<Weights, PolicyError> {
        self.check()?;
        Ok(init::first_weights(self, seed))
    }

    /// Returns the memory's inputs from the previous step.
    #[must_use]
    pub fn previous(&self) -> PreviousInputs {
        self.trunk.last().map(LayerSpec::previous).unwrap_or_default()
    }

    /// Returns the lengths of the recurrent states: the hidden state, of an LSTM the cells, and the inputs from the
    /// previous step if there are some.
    #[must_use]
    pub fn state_lens(&self) -> Vec<usize> {
        self.trunk.last().map(LayerSpec::state_lens).unwrap_or_default()
    }
}

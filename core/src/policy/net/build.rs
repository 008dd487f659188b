//! From settings to the layers of a model.

use super::{
    CustomModel, LayerDescription, LayerKind, LayerSpec, ModelConfig, ModelSpec, PreviousInputs,
    config::{ConvFilter, ConvFilters, Extent},
};
use crate::{
    kernels::nets::{Activation, ConvShape},
    policy::PolicyError,
    prelude::*,
};

/// Layers, each of which takes the outputs of the one before.
struct Stack {
    layers: Vec<LayerSpec>,
    outputs: usize,
}

/// Builds the layers that settings describe, without checks. `action_len` is the length of an encoded action.
pub(super) fn model(
    model: &ModelConfig,
    obs_shape: &[usize],
    dist_inputs_len: usize,
    action_len: usize,
) -> Result<ModelSpec, PolicyError> {
    let spec = match &model.custom_model {
        Some(custom) => described(custom, model, obs_shape, [dist_inputs_len, action_len]),
        None => configured(model, obs_shape, [dist_inputs_len, action_len]),
    }?;
    if previous(model, action_len) != spec.previous() {
        let wanted = "lstm_use_prev_action and lstm_use_prev_reward with an LSTM or gated recurrent units".into();
        return Err(PolicyError::Unsupported { wanted, found: "a model without memory".into() });
    }
    Ok(spec)
}

/// Builds the layers that all settings but `custom_model` describe.
fn configured(
    model: &ModelConfig,
    obs_shape: &[usize],
    [dist_inputs_len, action_len]: [usize; 2],
) -> Result<ModelSpec, PolicyError> {
    let obs_len = obs_shape.iter().fold(1usize, |product, dim| product.saturating_mul(*dim));
    let convolutions = convolutions(model, obs_shape)?;
    let hidden = |network: &str| {
        let mut stack = Stack { layers: Vec::new(), outputs: obs_len };
        for (i, shape) in convolutions.iter().enumerate() {
            let kind = LayerKind::Conv { shape: *shape, activation: model.conv_activation };
            stack.push(format!("{network}_conv.{i}"), kind);
        }
        let fcnet = model.fcnet_hiddens.iter().map(|width| (*width, model.fcnet_activation));
        let post = model.post_fcnet_hiddens.iter().map(|width| (*width, model.post_fcnet_activation));
        for (i, (width, activation)) in fcnet.chain(post).enumerate() {
            let (name, outputs) = (format!("{network}.{i}"), width as usize);
            if model.fcnet_use_layernorm {
                stack.push(name, LayerKind::Dense { outputs, activation: Activation::Linear });
                stack.push(format!("{network}_norm.{i}"), LayerKind::LayerNorm { activation });
            } else {
                stack.push(name, LayerKind::Dense { outputs, activation });
            }
        }
        stack
    };
    let mut trunk = Stack { layers: Vec::new(), outputs: obs_len };
    let previous = previous(model, action_len);
    let memory = match (model.use_lstm, model.use_gru) {
        (true, true) => {
            let (wanted, found) = ("models with one memory".into(), "one with use_lstm and use_gru".into());
            return Err(PolicyError::Unsupported { wanted, found });
        }
        (true, _) => Some(("lstm", LayerKind::Lstm { cells: model.lstm_cell_size.get() as usize, previous })),
        (_, true) => Some(("gru", LayerKind::Gru { cells: model.gru_cell_size.get() as usize, previous })),
        _ => None,
    };
    let is_shared = model.vf_share_layers || memory.is_some();
    if is_shared {
        trunk = hidden("encoder");
    }
    if let Some((name, kind)) = memory {
        trunk.push(name.into(), kind);
    }
    let head = |network: &str, outputs: usize| {
        let mut stack = if is_shared { Stack { layers: Vec::new(), outputs: trunk.outputs } } else { hidden(network) };
        let number = if is_shared { 0 } else { model.fcnet_hiddens.len() + model.post_fcnet_hiddens.len() };
        stack.push(format!("{network}.{number}"), LayerKind::Dense { outputs, activation: Activation::Linear });
        stack
    };
    let value = head("value", 1).layers;
    let mut policy = head("policy", mean_len(model, dist_inputs_len));
    policy.push_log_std(model);
    let (trunk, policy, initializer) = (trunk.layers, policy.layers, model.weights_initializer);
    Ok(ModelSpec { obs_len, mask_len: 0, trunk, policy, value, initializer })
}

impl Stack {
    fn push(&mut self, name: String, kind: LayerKind) {
        let layer = LayerSpec { name, inputs: self.outputs, kind };
        self.outputs = layer.outputs();
        self.layers.push(layer);
    }

    /// Adds free standard deviations behind the policy's means, if the model has them.
    fn push_log_std(&mut self, model: &ModelConfig) {
        if model.free_log_std {
            self.push("policy".into(), LayerKind::FreeLogStd);
        }
    }
}

/// Returns the memory's inputs from the previous step.
fn previous(model: &ModelConfig, action_len: usize) -> PreviousInputs {
    PreviousInputs {
        action_len: if model.lstm_use_prev_action { action_len } else { 0 },
        reward: model.lstm_use_prev_reward,
    }
}

/// Returns the number of outputs of the policy's last dense layer.
fn mean_len(model: &ModelConfig, dist_inputs_len: usize) -> usize {
    if model.free_log_std { dist_inputs_len / 2 } else { dist_inputs_len }
}

/// Builds the layers of a model of the user's own.
fn described(
    custom: &CustomModel,
    model: &ModelConfig,
    obs_shape: &[usize],
    [dist_inputs_len, action_len]: [usize; 2],
) -> Result<ModelSpec, PolicyError> {
    let CustomModel::Described(description) = custom else {
        let wanted = "a custom_model by its description where no program has registered names".into();
        return Err(PolicyError::Unsupported { wanted, found: format!("{custom:?}") });
    };
    let obs_len = obs_shape.iter().fold(1usize, |product, dim| product.saturating_mul(*dim));
    let begin = |outputs, image| Described { stack: Stack { layers: Vec::new(), outputs }, image };
    let image = <[usize; 3]>::try_from(obs_shape).ok();
    let mut trunk = begin(obs_len, image);
    trunk.push_all("encoder", &description.trunk, previous(model, action_len))?;
    let head = |network: &str, layers: &[LayerDescription], outputs: usize| -> Result<Stack, PolicyError> {
        let mut head = begin(trunk.stack.outputs, trunk.image);
        head.push_all(network, layers, PreviousInputs::default())?;
        let name = format!("{network}.{}", layers.len());
        head.stack.push(name, LayerKind::Dense { outputs, activation: Activation::Linear });
        Ok(head.stack)
    };
    let value = head("value", &description.value, 1)?.layers;
    let mut policy = head("policy", &description.policy, mean_len(model, dist_inputs_len))?;
    policy.push_log_std(model);
    let (trunk, policy, initializer) = (trunk.stack.layers, policy.layers, model.weights_initializer);
    Ok(ModelSpec { obs_len, mask_len: 0, trunk, policy, value, initializer })
}

/// Layers by description, and the image that the latest one makes.
struct Described {
    stack: Stack,
    image: Option<[usize; 3]>,
}

impl Described {
    fn push_all(
        &mut self,
        network: &str,
        layers: &[LayerDescription],
        previous: PreviousInputs,
    ) -> Result<(), PolicyError> {
        for (i, layer) in layers.iter().enumerate() {
            let name = format!("{network}.{i}");
            let image = self.image.take();
            match *layer {
                LayerDescription::Dense { outputs, activation } => {
                    self.stack.push(name, LayerKind::Dense { outputs: outputs as usize, activation });
                }
                LayerDescription::LayerNorm { activation } => {
                    self.image = image;
                    self.stack.push(name, LayerKind::LayerNorm { activation });
                }
                LayerDescription::Conv { filters, kernel, stride, is_padded, activation } => {
                    let filter = ConvFilter(filters, kernel, stride);
                    let shape = image.and_then(|image| convolution(image, filter, is_padded));
                    let shape = shape.ok_or_else(|| PolicyError::Unsupported {
                        wanted: "convolutions over images no smaller than their kernels, with filters and strides"
                            .into(),
                        found: format!("{name} over {image:?}"),
                    })?;
                    self.image = Some([shape.places[0], shape.places[1], shape.filters]);
                    self.stack.push(name, LayerKind::Conv { shape, activation });
                }
                LayerDescription::Lstm { cells } => {
                    self.stack.push("lstm".into(), LayerKind::Lstm { cells: cells.get() as usize, previous });
                }
                LayerDescription::Gru { cells } => {
                    self.stack.push("gru".into(), LayerKind::Gru { cells: cells.get() as usize, previous });
                }
            }
        }
        Ok(())
    }
}

/// Returns the sizes of the convolutions of an image.
fn convolutions(model: &ModelConfig, obs_shape: &[usize]) -> Result<Vec<ConvShape>, PolicyError> {
    let unsupported = |wanted: &str, found: String| Err(PolicyError::Unsupported { wanted: wanted.into(), found });
    let filters = match &model.conv_filters {
        None => return Ok(Vec::new()),
        Some(ConvFilters::Filters(filters)) if filters.is_empty() => return Ok(Vec::new()),
        Some(filters) => filters,
    };
    let &[height, width, channels] = obs_shape else {
        return unsupported(
            "images of height, width and channels for conv_filters",
            format!("observations of shape {obs_shape:?}"),
        );
    };
    let filters = match filters {
        ConvFilters::Filters(filters) => filters.clone(),
        ConvFilters::Auto(_) => match usual(height, width) {
            Some(filters) => filters,
            None => {
                let found = format!("{height}x{width}: list conv_filters as [filters, kernel, stride]");
                let wanted = "images of 480x640, 240x320, 96x96, 84x84, 64x64, 42x42 or 10x10 for conv_filters 'auto'";
                return unsupported(wanted, found);
            }
        },
    };
    let mut input = [height, width, channels];
    let mut shapes = Vec::new();
    for (i, filter) in filters.iter().enumerate() {
        let shape = convolution(input, *filter, i + 1 < filters.len());
        let Some(shape) = shape else {
            let ConvFilter(filters, kernel, stride) = filter;
            let found = format!("[{filters}, {:?}, {:?}] over {input:?}", kernel.sides(), stride.sides());
            return unsupported("convolutions with filters and strides, and kernels no larger than the image", found);
        };
        input = [shape.places[0], shape.places[1], shape.filters];
        shapes.push(shape);
    }
    Ok(shapes)
}

/// Returns RLlib's filters by the size of an image, but for 10x10 those of MinAtar's pictures (Young and Tian: "MinAtar", 2019).
fn usual(height: usize, width: usize) -> Option<Vec<ConvFilter>> {
    let square = |filters, kernel, stride| ConvFilter(filters, Extent::Square(kernel), Extent::Square(stride));
    let wide = |kernel, stride| ConvFilter(16, Extent::Sides(kernel), Extent::Sides(stride));
    match (height, width) {
        (480, 640) => Some(vec![wide([24, 32], [14, 18]), square(32, 6, 4), square(256, 9, 1)]),
        (240, 320) => Some(vec![wide([12, 16], [7, 9]), square(32, 6, 4), square(256, 9, 1)]),
        (96, 96) => Some(vec![square(16, 8, 4), square(32, 4, 2), square(256, 11, 2)]),
        (84, 84) => Some(vec![square(16, 8, 4), square(32, 4, 2), square(256, 11, 1)]),
        (64, 64) => Some([32, 64, 128, 256].map(|filters| square(filters, 4, 2)).into()),
        (42, 42) => Some(vec![square(16, 4, 2), square(32, 4, 2), square(256, 11, 1)]),
        (10, 10) => Some(vec![square(16, 3, 1)]),
        _ => None,
    }
}

/// Returns the shape of a convolution; `None` for invalid sizes.
fn convolution(input: [usize; 3], filter: ConvFilter, is_padded: bool) -> Option<ConvShape> {
    let ConvFilter(filters, kernel, stride) = filter;
    let (kernel, stride) = (kernel.sides(), stride.sides());
    // Padding above (or left), and places.
    let along = |side: usize| {
        let (input, kernel, stride) = (input[side], kernel[side], stride[side]);
        if kernel == 0 || stride == 0 || kernel > input {
            return None;
        }
        if !is_padded {
            return Some((0, (input - kernel) / stride + 1));
        }
        let places = input.div_ceil(stride);
        let padding = ((places - 1) * stride + kernel).saturating_sub(input);
        Some((padding / 2, places))
    };
    let ((above, rows), (left, columns)) = (along(0)?, along(1)?);
    let is_filled = filters > 0 && (rows * columns).checked_mul(filters as usize).is_some();
    let shape =
        ConvShape { input, filters: filters as usize, kernel, stride, padding: [above, left], places: [rows, columns] };
    is_filled.then_some(shape)
}

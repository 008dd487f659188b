//! Policies as ONNX files, for other runtimes.

mod graph;
mod proto;
#[cfg(test)]
mod tests;

use prost::Message as _;
use rollmesh_core::{
    filter::{FilterTensorError, FrozenStat},
    kernels::nets::{Activation, ConvShape, EPSILON},
    policy::{LayerKind, LayerSpec, MASKED_LOGIT, ModelSpec, PolicyError},
    weights::{Weights, WeightsError},
};

use self::{
    graph::{GraphBuilder, float, ints},
    proto::{IR_VERSION, Model, OPSET, OperatorSet},
};

/// An error of exporting a policy to ONNX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The layers do not fit each other.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The weights are those of another model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The weights have damaged statistics of an observation filter.
    #[error(transparent)]
    Filter(#[from] FilterTensorError),
}

/// Encodes the networks of a policy as an ONNX file (operators of version 17).
///
/// | value | shape | what it is |
/// |---|---|---|
/// | input `obs` | `[rows, numbers]` | observations as an [`ObsEncoder`](rollmesh_core::policy::ObsEncoder) makes them: one-hot for discrete spaces, parts one after the other, and with an action mask this first. They are normalised in the graph if there are statistics among the weights |
/// | input `state_in` | `[rows, states]` | of recurrent models: all states one after the other, zeros at the start of an episode; the previous action and reward last, if the model sees them |
/// | output `action_dist_inputs` | `[rows, numbers]` | parameters of the distribution of actions, see [`ActionDistribution`](rollmesh_core::distribution::ActionDistribution); masked |
/// | output `vf_preds` | `[rows, 1]` | values |
/// | output `state_out` | `[rows, states]` | the states after the rows, with zeros for the action and the reward, which the caller writes |
///
/// Outputs are those of the acting policy but for rounding: sums have another order, and observations are normalised in 32
/// bits instead of 64.
///
/// # Errors
/// [`OnnxError::Weights`] when a tensor of the model is missing, [`OnnxError::Policy`] for layers that do not fit each other,
/// [`OnnxError::Filter`].
///
/// ```
/// use rollmesh_core::{env::EnvRegistry, policy::{ModelConfig, ModelSpec}};
/// use rollmesh_learner::to_onnx;
///
/// let spaces = EnvRegistry::builtin().spec("CartPole-v1")?.spaces()?;
/// let spec = ModelSpec::for_spaces(&spaces, &ModelConfig::default())?;
/// let file = to_onnx(&spec, &spec.init_weights(7)?)?;
/// assert!(file.len() > 4 * 2 * (64 * 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("export_policy_model", "onnx"))]
pub fn to_onnx(spec: &ModelSpec, weights: &Weights) -> Result<Vec<u8>, OnnxError> {
    spec.check()?;
    let mut exporter = Exporter { builder: GraphBuilder::default(), weights };
    exporter.networks(spec)?;
    let mut graph = exporter.builder.graph;
    graph.name = "policy".into();
    let model = Model {
        ir_version: IR_VERSION,
        producer_name: "rollmesh".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPSET }],
    };
    Ok(model.encode_to_vec())
}

struct Exporter<'a> {
    builder: GraphBuilder,
    weights: &'a Weights,
}

impl Exporter<'_> {
    fn networks(&mut self, spec: &ModelSpec) -> Result<(), OnnxError> {
        let mut obs = self.builder.input("obs", spec.mask_len + spec.obs_len);
        let mut mask = None;
        if spec.mask_len > 0 {
            let [own, rest] = self.builder.split(&obs, [spec.mask_len, spec.obs_len]);
            (mask, obs) = (Some(own), rest);
        }
        let mut features = self.normalized(obs)?;
        let state_len = spec.state_lens().iter().sum();
        let state = (state_len > 0).then(|| self.builder.input("state_in", state_len));
        let mut after = None;
        for layer in &spec.trunk {
            features = match (layer.kind, &state) {
                (LayerKind::Lstm { .. } | LayerKind::Gru { .. }, Some(state)) => {
                    let (hidden, states) = self.memory(layer, &features, state)?;
                    after = Some(states);
                    hidden
                }
                _ => self.layer(layer, &features)?,
            };
        }
        let [inputs, value] = [&spec.policy, &spec.value]
            .map(|layers| layers.iter().try_fold(features.clone(), |x, layer| self.layer(layer, &x)));
        let mut inputs = inputs?;
        if let Some(mask) = mask {
            let zero = self.builder.floats("zero", &[1], &[0.0]);
            let masked = self.builder.floats("masked_logit", &[1], &[MASKED_LOGIT]);
            let is_closed = self.builder.op("Equal", &[&mask, &zero]);
            inputs = self.builder.op("Where", &[&is_closed, &masked, &inputs]);
        }
        self.builder.output(&inputs, "action_dist_inputs", spec.dist_inputs_len());
        self.builder.output(&value?, "vf_preds", 1);
        if let Some(after) = after {
            self.builder.output(&after, "state_out", state_len);
        }
        Ok(())
    }

    /// Returns the observations, normalised with the statistics among the weights.
    fn normalized(&mut self, obs: String) -> Result<String, OnnxError> {
        let Some(frozen) = FrozenStat::of_weights(self.weights)?.filter(|frozen| frozen.running().n() > 0) else {
            return Ok(obs);
        };
        let (config, mut x) = (frozen.config(), obs);
        let floats = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let (mean, divisors) = (floats(frozen.running().mean()), floats(frozen.denominators()));
        if config.demean {
            let mean = self.builder.floats("filter.mean", &[mean.len()], &mean);
            x = self.builder.op("Sub", &[&x, &mean]);
        }
        if config.destd {
            let divisors = self.builder.floats("filter.divisors", &[divisors.len()], &divisors);
            x = self.builder.op("Div", &[&x, &divisors]);
        }
        if let Some(clip) = config.clip {
            let [low, high] = [("filter.low", -clip), ("filter.high", clip)]
                .map(|(name, limit)| self.builder.floats(name, &[], &[limit as f32]));
            x = self.builder.op("Clip", &[&x, &low, &high]);
        }
        Ok(x)
    }

    /// Adds the tensors of a layer as constants.
    fn tensors<const N: usize>(&mut self, layer: &LayerSpec) -> Result<[String; N], OnnxError> {
        let mut names = [const { String::new() }; N];
        for (out, (name, shape)) in names.iter_mut().zip(layer.tensors()) {
            let values = self.values(&name, &shape)?;
            *out = self.builder.floats(&name, &shape, &values);
        }
        Ok(names)
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, OnnxError> {
        let fits = |dims: &[u32]| dims.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
        let missing = || WeightsError::Missing { wanted: format!("{name} {shape:?}") };
        let tensor = self.weights.tensor(name).filter(|tensor| fits(&tensor.shape)).ok_or_else(missing)?;
        Ok(tensor.values.clone())
    }

    fn layer(&mut self, layer: &LayerSpec, x: &str) -> Result<String, OnnxError> {
        let outputs = match layer.kind {
            LayerKind::Dense { .. } => {
                let [weight, bias] = self.tensors(layer)?;
                self.builder.op("Gemm", &[x, &weight, &bias])
            }
            LayerKind::Conv { shape, .. } => self.convolution(layer, &shape, x)?,
            LayerKind::LayerNorm { .. } => {
                let [weight, bias] = self.tensors(layer)?;
                self.builder.op_with("LayerNormalization", &[x, &weight, &bias], vec![float("epsilon", EPSILON)])
            }
            LayerKind::FreeLogStd => {
                let [log_std] = self.tensors(layer)?;
                let shape = self.builder.op("Shape", &[x]);
                let rows = self.builder.op("Expand", &[&log_std, &shape]);
                self.builder.concat(&[x, &rows])
            }
            // The spec has been checked: memory is the last layer of the trunk.
            LayerKind::Lstm { .. } | LayerKind::Gru { .. } => x.to_owned(),
        };
        Ok(self.activation(layer.activation(), outputs))
    }

    fn activation(&mut self, activation: Activation, x: String) -> String {
        match activation {
            Activation::Linear => x,
            Activation::Tanh => self.builder.op("Tanh", &[&x]),
            Activation::Relu => self.builder.op("Relu", &[&x]),
            Activation::Elu => self.builder.op("Elu", &[&x]),
            Activation::Silu => {
                let share = self.builder.op("Sigmoid", &[&x]);
                self.builder.op("Mul", &[&x, &share])
            }
            Activation::Gelu => {
                let number = self.builder.graph.initializers.len();
                let constant = |builder: &mut GraphBuilder, name: &str, x: f32| {
                    builder.floats(&format!("{name}.{number}"), &[1], &[x])
                };
                let (root, one, half) = (
                    constant(&mut self.builder, "inverse_sqrt_2", core::f32::consts::FRAC_1_SQRT_2),
                    constant(&mut self.builder, "one", 1.0),
                    constant(&mut self.builder, "half", 0.5),
                );
                let scaled = self.builder.op("Mul", &[&x, &root]);
                let erf = self.builder.op("Erf", &[&scaled]);
                let sum = self.builder.op("Add", &[&erf, &one]);
                let share = self.builder.op("Mul", &[&sum, &half]);
                self.builder.op("Mul", &[&x, &share])
            }
        }
    }

    /// Adds a convolution. Channels are the last dimension before and after it, and the first one within.
    fn convolution(&mut self, layer: &LayerSpec, shape: &ConvShape, x: &str) -> Result<String, OnnxError> {
        let ([height, width, channels], [rows, columns]) = (shape.input, shape.places);
        let ([kernel_height, kernel_width], filters) = (shape.kernel, shape.filters);
        let [weight, bias] = <[_; 2]>::try_from(layer.tensors()).expect("a convolution has two tensors");
        let values = self.values(&weight.0, &weight.1)?;
        let (mut transposed, places) = (vec![0.0; values.len()], kernel_height * kernel_width);
        for (i, x) in values.iter().enumerate() {
            let (place, channel, filter) = (i / (channels * filters), i / filters % channels, i % filters);
            transposed[(filter * channels + channel) * places + place] = *x;
        }
        let dims = [filters, channels, kernel_height, kernel_width];
        let weight = self.builder.floats(&weight.0, &dims, &transposed);
        let values = self.values(&bias.0, &bias.1)?;
        let bias = self.builder.floats(&bias.0, &bias.1, &values);
        // The remainder that the strides do not cover is not padded.
        let end = |side: usize| {
            let covered = (shape.places[side] - 1) * shape.stride[side] + shape.kernel[side];
            covered.saturating_sub(shape.input[side] + shape.padding[side])
        };
        let attributes = vec![
            ints("kernel_shape", &shape.kernel),
            ints("strides", &shape.stride),
            ints("pads", &[shape.padding[0], shape.padding[1], end(0), end(1)]),
        ];
        let images = self.builder.reshape(x, &[height, width, channels]);
        let images = self.builder.op_with("Transpose", &[&images], vec![ints("perm", &[0, 3, 1, 2])]);
        let found = self.builder.op_with("Conv", &[&images, &weight, &bias], attributes);
        let found = self.builder.op_with("Transpose", &[&found], vec![ints("perm", &[0, 2, 3, 1])]);
        Ok(self.builder.reshape(&found, &[rows * columns * filters]))
    }

    /// Adds one step of a memory. Returns the hidden state, and all states after it.
    fn memory(&mut self, layer: &LayerSpec, x: &str, state: &str) -> Result<(String, String), OnnxError> {
        let (cells, previous) = (layer.outputs(), layer.previous().len());
        let (mut x, mut own, mut zeros) = (x.to_owned(), state.to_owned(), None);
        if previous > 0 {
            let states = layer.state_lens().iter().sum::<usize>();
            let [before, step] = self.builder.split(state, [states - previous, previous]);
            x = self.builder.concat(&[&x, &step]);
            zeros = Some(self.builder.op("Sub", &[&step, &step]));
            own = before;
        }
        let (hidden, mut after) = match layer.kind {
            LayerKind::Lstm { .. } => self.lstm(layer, cells, &x, &own)?,
            _ => self.gru(layer, cells, &x, &own)?,
        };
        if let Some(zeros) = zeros {
            after = self.builder.concat(&[&after, &zeros]);
        }
        Ok((hidden, after))
    }

    fn lstm(&mut self, layer: &LayerSpec, cells: usize, x: &str, state: &str) -> Result<(String, String), OnnxError> {
        let [weight_ih, weight_hh, bias] = self.tensors(layer)?;
        let builder = &mut self.builder;
        let [hidden, cell] = builder.split(state, [cells; 2]);
        let from_x = builder.op("Gemm", &[x, &weight_ih, &bias]);
        let from_hidden = builder.op("MatMul", &[&hidden, &weight_hh]);
        let sums = builder.op("Add", &[&from_x, &from_hidden]);
        let [input, forget, candidate, output] = builder.split(&sums, [cells; 4]);
        let [input, forget, output] = [input, forget, output].map(|gate| builder.op("Sigmoid", &[&gate]));
        let candidate = builder.op("Tanh", &[&candidate]);
        let (kept, added) = (builder.op("Mul", &[&forget, &cell]), builder.op("Mul", &[&input, &candidate]));
        let cell = builder.op("Add", &[&kept, &added]);
        let shown = builder.op("Tanh", &[&cell]);
        let hidden = builder.op("Mul", &[&output, &shown]);
        let after = builder.concat(&[&hidden, &cell]);
        Ok((hidden, after))
    }

    fn gru(&mut self, layer: &LayerSpec, cells: usize, x: &str, hidden: &str) -> Result<(String, String), OnnxError> {
        let [weight_ih, weight_hh, bias_ih, bias_hh] = self.tensors(layer)?;
        let builder = &mut self.builder;
        let from_x = builder.op("Gemm", &[x, &weight_ih, &bias_ih]);
        let from_hidden = builder.op("Gemm", &[hidden, &weight_hh, &bias_hh]);
        let [reset, update, candidate] = builder.split(&from_x, [cells; 3]);
        let [own_reset, own_update, own] = builder.split(&from_hidden, [cells; 3]);
        let [reset, update] = [(reset, own_reset), (update, own_update)].map(|(a, b)| {
            let sum = builder.op("Add", &[&a, &b]);
            builder.op("Sigmoid", &[&sum])
        });
        let own = builder.op("Mul", &[&reset, &own]);
        let sum = builder.op("Add", &[&candidate, &own]);
        let candidate = builder.op("Tanh", &[&sum]);
        let change = builder.op("Sub", &[hidden, &candidate]);
        let kept = builder.op("Mul", &[&update, &change]);
        let hidden = builder.op("Add", &[&candidate, &kept]);
        Ok((hidden.clone(), hidden))
    }
}

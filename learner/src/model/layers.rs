//! Weights by name, as variables that are trained, and networks of them.

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    kernels::{Kernels, nets::Activation},
    policy::{LayerKind, LayerSpec},
    weights::{self, Weights, WeightsError},
};

use super::{super::ops, Memory, ModelError};

/// Everything that is trained, under the names of the acting policy.
pub(crate) struct Variables<'a> {
    weights: &'a Weights,
    device: &'a Device,
    kernels: Kernels,
    pub(crate) taken: Vec<(String, Var)>,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(weights: &'a Weights, device: &'a Device, kernels: Kernels) -> Self {
        Self { weights, device, kernels, taken: Vec::new() }
    }

    /// Takes the tensor of that name and shape.
    fn take(&mut self, name: String, shape: &[usize]) -> Result<Var, ModelError> {
        let fits = |tensor: &&weights::Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
        let missing = || WeightsError::Missing { wanted: format!("{name} {shape:?}") };
        let tensor = self.weights.tensor(&name).filter(fits).ok_or_else(missing)?;
        let var = Var::from_tensor(&to_device(tensor, self.device)?)?;
        self.taken.push((name, var.clone()));
        Ok(var)
    }
}

/// Copies a tensor of weights to the device.
pub(super) fn to_device(tensor: &weights::Tensor, device: &Device) -> candle_core::Result<Tensor> {
    let shape: Vec<usize> = tensor.shape.iter().map(|&dim| dim as usize).collect();
    Tensor::from_slice(&tensor.values, shape, device)
}

/// Layers, one after the other.
#[derive(Debug)]
pub(crate) struct Network(Vec<Layer>);

#[derive(Debug)]
struct Layer {
    kind: LayerKind,
    /// The variables, in the order of [`LayerSpec::tensors`].
    vars: Vec<Var>,
    kernels: Kernels,
}

impl Network {
    /// Creates a network of layers that have been checked, with their weights.
    pub(crate) fn new(variables: &mut Variables<'_>, layers: &[LayerSpec]) -> Result<Self, ModelError> {
        let layers = layers.iter().map(|spec| {
            let vars = spec.tensors().into_iter().map(|(name, shape)| variables.take(name, &shape));
            Ok(Layer { kind: spec.kind, vars: vars.collect::<Result<_, ModelError>>()?, kernels: variables.kernels })
        });
        Ok(Self(layers.collect::<Result<_, ModelError>>()?))
    }

    /// Returns the outputs `[rows, outputs]` of rows `[rows, inputs]`. Layers with a memory need sequences.
    pub(crate) fn forward(&self, x: &Tensor, memory: Option<&Memory>) -> candle_core::Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward(&x, memory))
    }

    /// Returns the outputs of single steps of rows, without gradients, and the states `[rows, states]` after them, if
    /// there are some `before`. A layer's outputs are freed as soon as the next one has them.
    pub(crate) fn infer(&self, x: &Tensor, before: Option<&Tensor>) -> candle_core::Result<(Tensor, Option<Tensor>)> {
        let (mut x, mut after) = (x.clone(), None);
        for layer in &self.0 {
            let outputs = match (layer.kind, before) {
                (LayerKind::Lstm { .. } | LayerKind::Gru { .. }, Some(before)) => {
                    let (outputs, states) = layer.step(&x, before)?;
                    after = Some(states);
                    outputs
                }
                _ => layer.forward(&x, None)?,
            };
            x = outputs.detach();
        }
        Ok((x, after))
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, memory: Option<&Memory>) -> candle_core::Result<Tensor> {
        match (&self.kind, &self.vars[..], memory) {
            (LayerKind::Dense { activation, .. }, [weight, bias], _) => {
                ops::activate(&ops::linear(x, weight, bias, self.kernels)?, *activation, self.kernels)
            }
            (LayerKind::Conv { shape, activation }, [weight, bias], _) => {
                ops::activate(&ops::convolution(x, weight, bias, shape, self.kernels)?, *activation, self.kernels)
            }
            (LayerKind::Lstm { .. }, [weight_ih, weight_hh, bias], Some(memory)) => {
                let x = ops::linear(&memory.seen(x)?, weight_ih, bias, self.kernels)?;
                ops::lstm(&x, weight_hh, &memory.states, &memory.steps, self.kernels)
            }
            (LayerKind::Gru { .. }, [weight_ih, weight_hh, bias_ih, bias_hh], Some(memory)) => {
                let x = ops::linear(&memory.seen(x)?, weight_ih, bias_ih, self.kernels)?;
                ops::gru(&x, weight_hh, bias_hh, &memory.states, &memory.steps, self.kernels)
            }
            (LayerKind::LayerNorm { activation }, [weight, bias], _) => {
                ops::activate(&ops::layer_norm(x, weight, bias)?, *activation, self.kernels)
            }
            (LayerKind::FreeLogStd, [log_std], _) => Tensor::cat(&[x, &ops::repeat(log_std, x.dim(0)?)?], 1),
            (LayerKind::Lstm { .. } | LayerKind::Gru { .. }, _, None) => {
                candle_core::bail!("a recurrent model needs sequences")
            }
            (kind, vars, _) => candle_core::bail!("{} tensors for {kind:?}", vars.len()),
        }
    }

    /// Computes one step of all rows on the device: outputs `[rows, cells]`, and the states after it as they were
    /// `before`.
    fn step(&self, x: &Tensor, before: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let kernels = self.kernels;
        let tanh = |x: &Tensor| ops::activate(x, Activation::Tanh, kernels);
        // The sigmoid, as far from overflow as tanh is.
        let open = |x: &Tensor| tanh(&x.affine(0.5, 0.0)?)?.affine(0.5, 0.5);
        let part = |sums: &Tensor, cells: usize, k: usize| sums.narrow(1, k * cells, cells)?.contiguous();
        // The states end with the layer's inputs from the previous step. The caller writes that of this step.
        let seen = |x: &Tensor, own: usize, previous: usize| match previous {
            0 => Ok(x.clone()),
            len => Tensor::cat(&[x, &before.narrow(1, own, len)?], 1),
        };
        let after = |parts: &[&Tensor], previous: usize| match previous {
            0 => Tensor::cat(parts, 1),
            len => Tensor::cat(parts, 1)?.pad_with_zeros(1, 0, len),
        };
        match (&self.kind, &self.vars[..]) {
            (&LayerKind::Lstm { cells, previous }, [weight_ih, weight_hh, bias]) => {
                let gate = |sums: &Tensor, k: usize| part(sums, cells, k);
                let (hidden, cell) = (gate(before, 0)?, gate(before, 1)?);
                let x = seen(x, 2 * cells, previous.len())?;
                let sums = (ops::linear(&x, weight_ih, bias, kernels)? + hidden.matmul(weight_hh)?)?;
                let open = |k: usize| open(&gate(&sums, k)?);
                let cell = ((open(1)? * cell)? + (open(0)? * tanh(&gate(&sums, 2)?)?)?)?;
                let hidden = (open(3)? * tanh(&cell)?)?;
                let after = after(&[&hidden, &cell], previous.len())?;
                Ok((hidden, after))
            }
            (&LayerKind::Gru { cells, previous }, [weight_ih, weight_hh, bias_ih, bias_hh]) => {
                let gate = |sums: &Tensor, k: usize| part(sums, cells, k);
                let (x, before) = (seen(x, cells, previous.len())?, &gate(before, 0)?);
                let from_x = ops::linear(&x, weight_ih, bias_ih, kernels)?;
                let from_hidden = ops::linear(before, weight_hh, bias_hh, kernels)?;
                let open = |k: usize| open(&(gate(&from_x, k)? + gate(&from_hidden, k)?)?);
                let candidate = tanh(&(gate(&from_x, 2)? + (open(0)? * gate(&from_hidden, 2)?)?)?)?;
                let hidden = (&candidate + (open(1)? * (before - &candidate)?)?)?;
                let after = after(&[&hidden], previous.len())?;
                Ok((hidden, after))
            }
            (kind, vars) => candle_core::bail!("{} tensors for a step of {kind:?}", vars.len()),
        }
    }
}

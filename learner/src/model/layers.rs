//! Weights by name, as variables that are trained, and the networks made of them.

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    kernels::Kernels,
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

    /// The tensor of that name and shape.
    fn take(&mut self, name: String, shape: &[usize]) -> Result<Var, ModelError> {
        let fits = |tensor: &&weights::Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
        let missing = || WeightsError::Missing { wanted: format!("{name} {shape:?}") };
        let tensor = self.weights.tensor(&name).filter(fits).ok_or_else(missing)?;
        let var = Var::from_tensor(&to_device(tensor, self.device)?)?;
        self.taken.push((name, var.clone()));
        Ok(var)
    }
}

/// A tensor of weights on the device.
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
    /// In the order of [`LayerSpec::tensors`].
    vars: Vec<Var>,
    kernels: Kernels,
}

impl Network {
    /// Layers that have been checked, with their weights.
    pub(crate) fn new(variables: &mut Variables<'_>, layers: &[LayerSpec]) -> Result<Self, ModelError> {
        let layers = layers.iter().map(|spec| {
            let vars = spec.tensors().into_iter().map(|(name, shape)| variables.take(name, &shape));
            Ok(Layer { kind: spec.kind, vars: vars.collect::<Result<_, ModelError>>()?, kernels: variables.kernels })
        });
        Ok(Self(layers.collect::<Result<_, ModelError>>()?))
    }

    /// Outputs `[rows, outputs]` of rows `[rows, inputs]`. Layers with a memory need sequences.
    pub(crate) fn forward(&self, x: &Tensor, memory: Option<&Memory>) -> candle_core::Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward(&x, memory))
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
                let x = ops::linear(x, weight_ih, bias, self.kernels)?;
                ops::lstm(&x, weight_hh, &memory.states, &memory.steps, self.kernels)
            }
            (LayerKind::Gru { .. }, [weight_ih, weight_hh, bias_ih, bias_hh], Some(memory)) => {
                let x = ops::linear(x, weight_ih, bias_ih, self.kernels)?;
                ops::gru(&x, weight_hh, bias_hh, &memory.states, &memory.steps, self.kernels)
            }
            (LayerKind::FreeLogStd, [log_std], _) => Tensor::cat(&[x, &ops::repeat(log_std, x.dim(0)?)?], 1),
            (LayerKind::Lstm { .. } | LayerKind::Gru { .. }, _, None) => {
                candle_core::bail!("a recurrent model needs sequences")
            }
            (kind, vars, _) => candle_core::bail!("{} tensors for {kind:?}", vars.len()),
        }
    }
}

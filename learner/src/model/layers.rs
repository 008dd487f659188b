//! Weights by name, as variables that are trained, and the perceptrons made of them.

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    kernels::Kernels,
    weights::{self, Weights},
};

use super::{super::ops, ModelError};

/// Everything that is trained, under the names of the acting policy.
pub(crate) struct Variables<'a> {
    weights: &'a Weights,
    device: &'a Device,
    pub(super) kernels: Kernels,
    pub(crate) taken: Vec<(String, Var)>,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(weights: &'a Weights, device: &'a Device, kernels: Kernels) -> Self {
        Self { weights, device, kernels, taken: Vec::new() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.tensor(name).is_some()
    }

    /// The tensor of that name, if it fits; `None` stands for any dimension.
    pub(crate) fn take(&mut self, name: &str, shape: &[Option<usize>]) -> Result<Var, ModelError> {
        let tensor = self.weights.tensor(name).ok_or_else(|| ModelError::Layout(format!("'{name}' is missing")))?;
        let fits = |(&found, wanted): (&u32, &Option<usize>)| found > 0 && wanted.is_none_or(|w| w == found as usize);
        if tensor.shape.len() != shape.len() || !tensor.shape.iter().zip(shape).all(fits) {
            let shape = &tensor.shape;
            return Err(ModelError::Layout(format!("'{name}' of shape {shape:?} does not fit its neighbours")));
        }
        let var = Var::from_tensor(&to_device(tensor, self.device)?)?;
        self.taken.push((name.to_owned(), var.clone()));
        Ok(var)
    }
}

/// A tensor of weights on the device.
pub(super) fn to_device(tensor: &weights::Tensor, device: &Device) -> candle_core::Result<Tensor> {
    let shape: Vec<usize> = tensor.shape.iter().map(|&dim| dim as usize).collect();
    Tensor::from_slice(&tensor.values, shape, device)
}

/// Linear layers with tanh between them.
#[derive(Debug)]
pub(crate) struct Mlp {
    layers: Vec<Layer>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    kernels: Kernels,
}

#[derive(Debug)]
struct Layer {
    weight: Var,
    bias: Var,
}

impl Mlp {
    /// The layers `{network}.0`, `{network}.1`, …, at least one; the first takes that many numbers, if it is known.
    pub(crate) fn new(variables: &mut Variables<'_>, network: &str, inputs: Option<usize>) -> Result<Self, ModelError> {
        let mut mlp = Self { layers: Vec::new(), inputs: 0, outputs: 0, kernels: variables.kernels };
        let mut below = inputs;
        loop {
            let i = mlp.layers.len();
            let weight = variables.take(&format!("{network}.{i}.weight"), &[below, None])?;
            let (rows, columns) = weight.dims2()?;
            let bias = variables.take(&format!("{network}.{i}.bias"), &[Some(columns)])?;
            if i == 0 {
                mlp.inputs = rows;
            }
            mlp.outputs = columns;
            mlp.layers.push(Layer { weight, bias });
            below = Some(columns);
            if !variables.has(&format!("{network}.{}.weight", i + 1)) {
                return Ok(mlp);
            }
        }
    }

    /// The last layer is linear.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.run(x, |x| x)
    }

    /// [`forward`](Self::forward) without gradients: a layer's outputs are freed as soon as the next one has them.
    pub(crate) fn infer(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.run(x, |x| x.detach())
    }

    fn run(&self, x: &Tensor, keep: impl Fn(Tensor) -> Tensor) -> candle_core::Result<Tensor> {
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            x = ops::linear(&x, &layer.weight, &layer.bias, self.kernels)?;
            if i + 1 < self.layers.len() {
                x = ops::tanh(&x, self.kernels)?;
            }
            x = keep(x);
        }
        Ok(x)
    }
}

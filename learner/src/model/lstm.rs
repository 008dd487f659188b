//! Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates, Gers et al., 2000) between encoder and
//! heads.

use candle_core::{Tensor, Var};
use rollmesh_core::kernels::Kernels;

use super::{
    super::ops::{self, Steps},
    ModelError,
    layers::{Mlp, Variables},
};

/// What a recurrent model needs to know of rows besides observations. The rows stand step by step: the first steps of
/// all sequences, then the second steps, and so on. Sequences are sorted by length, the longest first, so that those
/// that have a step are the first ones, and there are no rows without a step.
#[derive(Clone, Debug)]
pub(in super::super) struct Memory {
    /// How many sequences have a first step, a second one, and so on.
    pub(in super::super) steps: Steps,
    /// States before the first steps, `[sequences, 2 hidden]`: hidden states, then cells.
    pub(in super::super) states: Tensor,
}

/// Tanh layers, if there are any, and the memory after them.
#[derive(Debug)]
pub(super) struct Lstm {
    encoder: Option<Mlp>,
    weight_ih: Var,
    weight_hh: Var,
    bias: Var,
    kernels: Kernels,
}

impl Lstm {
    pub(super) fn new(variables: &mut Variables<'_>) -> Result<Self, ModelError> {
        let has_encoder = variables.has("encoder.0.weight");
        let encoder = has_encoder.then(|| Mlp::new(variables, "encoder", None)).transpose()?;
        let weight_ih = variables.take("lstm.weight_ih", &[encoder.as_ref().map(|e| e.outputs), None])?;
        let gates = weight_ih.dim(1)?;
        if gates % 4 != 0 {
            return Err(ModelError::Layout(format!("'lstm.weight_ih' has {gates} columns, which are no four gates")));
        }
        let weight_hh = variables.take("lstm.weight_hh", &[Some(gates / 4), Some(gates)])?;
        let bias = variables.take("lstm.bias", &[Some(gates)])?;
        Ok(Self { encoder, weight_ih, weight_hh, bias, kernels: variables.kernels })
    }

    pub(super) fn inputs(&self) -> candle_core::Result<usize> {
        self.encoder.as_ref().map_or_else(|| self.weight_ih.dim(0), |encoder| Ok(encoder.inputs))
    }

    /// Numbers in a hidden state, and in a cell.
    pub(super) fn hidden(&self) -> candle_core::Result<usize> {
        self.weight_hh.dim(0)
    }

    /// Hidden states after each row, `[rows, hidden]`.
    pub(super) fn forward(&self, obs: &Tensor, memory: &Memory) -> candle_core::Result<Tensor> {
        ops::lstm(&self.inputs_of_gates(obs)?, &self.weight_hh, &memory.states, &memory.steps, self.kernels)
    }

    /// One step of all rows without leaving the device: hidden states `[rows, hidden]`, and hidden states with cells
    /// `[rows, 2 hidden]`, as they were `before`. No gradient is taken of it.
    pub(super) fn step(&self, obs: &Tensor, before: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let cells = self.hidden()?;
        let (hidden, cell) = (before.narrow(1, 0, cells)?.contiguous()?, before.narrow(1, cells, cells)?);
        let sums = (self.inputs_of_gates(obs)? + hidden.matmul(&self.weight_hh)?)?;
        let gate = |k: usize| sums.narrow(1, k * cells, cells)?.contiguous();
        let tanh = |x: &Tensor| ops::tanh(x, self.kernels);
        // The sigmoid, as far from overflow as tanh is.
        let open = |k: usize| tanh(&gate(k)?.affine(0.5, 0.0)?)?.affine(0.5, 0.5);
        let cell = ((open(1)? * cell)? + (open(0)? * tanh(&gate(2)?)?)?)?;
        let hidden = (open(3)? * tanh(&cell)?)?;
        let after = Tensor::cat(&[&hidden, &cell], 1)?;
        Ok((hidden, after))
    }

    /// What observations add to the gates, `[rows, 4 hidden]`.
    fn inputs_of_gates(&self, obs: &Tensor) -> candle_core::Result<Tensor> {
        let encoded = |encoder: &Mlp| ops::tanh(&encoder.forward(obs)?, self.kernels);
        let encoded = self.encoder.as_ref().map(encoded).transpose()?;
        ops::linear(encoded.as_ref().unwrap_or(obs), &self.weight_ih, &self.bias, self.kernels)
    }
}

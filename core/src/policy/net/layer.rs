//! One layer of a model: its computation, and the names and shapes of its tensors.

use crate::{
    kernels::nets::{Activation, ConvShape},
    prelude::*,
};

/// A layer of a [`ModelSpec`](super::ModelSpec).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// The prefix of its tensors' names: a network and a number, for example `policy.0`, or a network alone, as `lstm`.
    pub name: String,
    /// The number of inputs per row.
    pub inputs: usize,
    /// Its computation.
    pub kind: LayerKind,
}

/// The computation of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Sums over all inputs. Tensors `weight` `[inputs, outputs]` and `bias` `[outputs]`.
    Dense {
        /// The number of outputs per row.
        outputs: usize,
        /// The activation, applied to the sums.
        activation: Activation,
    },
    /// Sums over the patches of an image. Tensors `weight` `[kernel height, kernel width, channels, filters]` and `bias`
    /// `[filters]`.
    Conv {
        /// Sizes.
        shape: ConvShape,
        /// The activation, applied to the sums.
        activation: Activation,
    },
    /// Layer normalisation (Ba, Kiros and Hinton: "Layer normalization", 2016) with PyTorch's epsilon, 1e-5. Tensors `weight`
    /// and `bias` `[inputs]`.
    LayerNorm {
        /// The activation, applied to the results.
        activation: Activation,
    },
    /// Long short-term memory (Hochreiter and Schmidhuber: "Long short-term memory", 1997). Tensors `weight_ih` `[inputs, 4
    /// cells]`, `weight_hh` `[cells, 4 cells]` and `bias` `[4 cells]` with the gates in the order input, forget, cell, output,
    /// as PyTorch has them.
    Lstm {
        /// Cells, and numbers of a hidden state.
        cells: usize,
        /// Inputs from the previous step, after the others.
        previous: PreviousInputs,
    },
    /// Gated recurrent units (Cho et al.: "Learning phrase representations using RNN encoder-decoder", 2014), as PyTorch has
    /// them. Tensors `weight_ih` `[inputs, 3 cells]`, `weight_hh` `[cells, 3 cells]`, `bias_ih` and `bias_hh` `[3 cells]` with
    /// the gates in the order reset, update, candidate.
    Gru {
        /// Cells, and numbers of a hidden state.
        cells: usize,
        /// Inputs from the previous step, after the others.
        previous: PreviousInputs,
    },
    /// The inputs, and after them the logarithms of standard deviations that do not depend on them: one for each input. Tensor
    /// `log_std` `[inputs]`.
    FreeLogStd,
}

/// Inputs of a memory from the previous step, which stand at the end of its states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreviousInputs {
    /// Numbers of the encoded action; 0 without it.
    pub action_len: usize,
    /// Whether the reward is one of them.
    pub reward: bool,
}

impl PreviousInputs {
    /// Returns the number of inputs.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is a number of inputs")]
    pub const fn len(self) -> usize {
        self.action_len.saturating_add(self.reward as usize)
    }
}

/// A tensor of a layer, and from where its first values come.
#[derive(Clone, Debug)]
pub(in crate::policy) struct TensorSpec {
    pub(in crate::policy) name: String,
    pub(in crate::policy) shape: Vec<usize>,
    pub(in crate::policy) init: Init,
}

/// First values of a tensor.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) enum Init {
    /// Drawn for a matrix `[rows, columns]`.
    Drawn {
        rows: usize,
        columns: usize,
        /// Inputs and outputs of a neuron.
        fans: [usize; 2],
        /// The number of the matrix within its layer.
        number: u32,
    },
    Zeros,
    Ones,
    /// Ones for the second of four gates, the one that forgets, which so begins open (Jozefowicz, Zaremba and Sutskever: "An
    /// empirical exploration of recurrent network architectures", 2015).
    ForgetGates,
}

impl LayerSpec {
    /// Returns the number of outputs per row.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self.kind {
            LayerKind::Dense { outputs, .. } => outputs,
            LayerKind::Conv { shape, .. } => shape.outputs(),
            LayerKind::Lstm { cells, .. } | LayerKind::Gru { cells, .. } => cells,
            LayerKind::LayerNorm { .. } => self.inputs,
            LayerKind::FreeLogStd => self.inputs.saturating_mul(2),
        }
    }

    /// Returns the activation.
    #[must_use]
    pub fn activation(&self) -> Activation {
        match self.kind {
            LayerKind::Dense { activation, .. }
            | LayerKind::Conv { activation, .. }
            | LayerKind::LayerNorm { activation } => activation,
            _ => Activation::Linear,
        }
    }

    /// Returns the lengths of its states.
    #[must_use]
    pub fn state_lens(&self) -> Vec<usize> {
        let mut lens = match self.kind {
            LayerKind::Lstm { cells, .. } => vec![cells; 2],
            LayerKind::Gru { cells, .. } => vec![cells],
            _ => Vec::new(),
        };
        lens.extend(Some(self.previous().len()).filter(|len| *len > 0));
        lens
    }

    /// Returns its inputs from the previous step.
    #[must_use]
    pub fn previous(&self) -> PreviousInputs {
        match self.kind {
            LayerKind::Lstm { previous, .. } | LayerKind::Gru { previous, .. } => previous,
            _ => PreviousInputs::default(),
        }
    }

    /// Returns the number of weights between inputs and outputs; saturated where there are too many.
    pub(in crate::policy) fn num_weights(&self) -> usize {
        let product = |sizes: &[usize]| sizes.iter().fold(1usize, |product, size| product.saturating_mul(*size));
        match self.kind {
            LayerKind::Dense { outputs, .. } => product(&[self.inputs, outputs]),
            LayerKind::Conv { shape, .. } => {
                product(&[shape.kernel[0], shape.kernel[1], shape.input[2], shape.filters])
            }
            LayerKind::Lstm { cells, previous } => {
                product(&[self.inputs.saturating_add(previous.len()).saturating_add(cells), 4, cells])
            }
            LayerKind::Gru { cells, previous } => {
                product(&[self.inputs.saturating_add(previous.len()).saturating_add(cells), 3, cells])
            }
            LayerKind::LayerNorm { .. } | LayerKind::FreeLogStd => 0,
        }
    }

    /// Returns the names and shapes of its tensors.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.tensor_specs().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
    }

    pub(in crate::policy) fn tensor_specs(&self) -> Vec<TensorSpec> {
        let tensor = |name: &str, shape: &[usize], init| TensorSpec {
            name: format!("{}.{name}", self.name),
            shape: shape.to_vec(),
            init,
        };
        let drawn = |rows, columns, number| Init::Drawn { rows, columns, fans: [rows, columns], number };
        let inputs = self.inputs + self.previous().len();
        match self.kind {
            LayerKind::Dense { outputs, .. } => vec![
                tensor("weight", &[inputs, outputs], drawn(inputs, outputs, 0)),
                tensor("bias", &[outputs], Init::Zeros),
            ],
            LayerKind::Conv { shape, .. } => {
                let ([height, width], filters) = (shape.kernel, shape.filters);
                let (rows, fan_out) = (shape.patch_len(), height * width * filters);
                let init = Init::Drawn { rows, columns: filters, fans: [rows, fan_out], number: 0 };
                vec![
                    tensor("weight", &[height, width, shape.input[2], filters], init),
                    tensor("bias", &[filters], Init::Zeros),
                ]
            }
            LayerKind::LayerNorm { .. } => {
                vec![tensor("weight", &[inputs], Init::Ones), tensor("bias", &[inputs], Init::Zeros)]
            }
            LayerKind::Lstm { cells, .. } => vec![
                tensor("weight_ih", &[inputs, 4 * cells], drawn(inputs, 4 * cells, 0)),
                tensor("weight_hh", &[cells, 4 * cells], drawn(cells, 4 * cells, 1)),
                tensor("bias", &[4 * cells], Init::ForgetGates),
            ],
            LayerKind::Gru { cells, .. } => vec![
                tensor("weight_ih", &[inputs, 3 * cells], drawn(inputs, 3 * cells, 0)),
                tensor("weight_hh", &[cells, 3 * cells], drawn(cells, 3 * cells, 1)),
                tensor("bias_ih", &[3 * cells], Init::Zeros),
                tensor("bias_hh", &[3 * cells], Init::Zeros),
            ],
            LayerKind::FreeLogStd => vec![tensor("log_std", &[inputs], Init::Zeros)],
        }
    }
}

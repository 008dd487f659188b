//! What a model looks like: its layers, and the names and shapes of their tensors.

use super::ModelConfig;
use crate::{
    distribution::ActionDistribution,
    env::EnvSpaces,
    policy::{ObsEncoder, PolicyError, init},
    prelude::*,
    weights::Weights,
};

/// Shape of the networks of a policy.
///
/// Without LSTM, a policy and a value network with the same hidden layers, of their own: tensors `policy.{i}.weight`
/// `[inputs, outputs]` and `policy.{i}.bias` `[outputs]`, likewise `value.…`, with tanh between layers.
///
/// With LSTM, one network (Hochreiter and Schmidhuber: "Long short-term memory", 1997) with two heads: hidden layers
/// `encoder.{i}.…`, each followed by tanh; `lstm.weight_ih` `[inputs, 4 cells]`, `lstm.weight_hh` `[cells, 4 cells]` and
/// `lstm.bias` `[4 cells]` with the gates in the order input, forget, cell, output, as PyTorch has them; and the heads
/// `policy.0.…` and `value.0.…` over the cells' outputs.
#[doc(alias("ModelCatalog", "LSTMWrapper", "FullyConnectedNetwork"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Elements of an observation, as the [`ObsEncoder`] gives it.
    pub obs_len: usize,
    /// Outputs of the policy's head: the inputs of the [`ActionDistribution`].
    pub dist_inputs_len: usize,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
    /// Cells of the LSTM, if there is one.
    pub lstm_cell_size: Option<u32>,
}

/// One matrix of weights, and from where its first values come.
pub(in crate::policy) struct Matrix {
    pub(in crate::policy) name: String,
    pub(in crate::policy) inputs: usize,
    pub(in crate::policy) outputs: usize,
    /// Number of its network and, in it, of its layer.
    pub(in crate::policy) address: (u32, u32),
    /// Whether actions come from it.
    pub(in crate::policy) head: bool,
}

/// A row of biases.
pub(in crate::policy) struct Bias {
    pub(in crate::policy) name: String,
    pub(in crate::policy) len: usize,
    /// Whether they are the biases of an LSTM's gates.
    pub(in crate::policy) gates: bool,
}

impl ModelSpec {
    /// The most weights of a model.
    pub const MAX_WEIGHTS: usize = 1 << 26;

    /// The model for an environment's observations and actions.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for spaces that no policy takes (tuples and dicts must be
    /// [preprocessed](crate::preprocess)), or as [`check`](Self::check).
    pub fn for_spaces(spaces: &EnvSpaces, model: &ModelConfig) -> Result<Self, PolicyError> {
        let distribution = ActionDistribution::for_space(&spaces.action).map_err(|error| PolicyError::Unsupported {
            wanted: "actions to choose from".into(),
            found: error.to_string(),
        })?;
        let spec = Self {
            obs_len: ObsEncoder::for_space(&spaces.observation)?.len(),
            dist_inputs_len: distribution.input_len(),
            hidden: model.fcnet_hiddens.clone(),
            lstm_cell_size: model.use_lstm.then(|| model.lstm_cell_size.get()),
        };
        spec.check()?;
        Ok(spec)
    }

    /// Checks that all layers have elements and the weights are at most [`MAX_WEIGHTS`](Self::MAX_WEIGHTS).
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`].
    pub fn check(&self) -> Result<(), PolicyError> {
        let unsupported = |wanted: String, found: String| Err(PolicyError::Unsupported { wanted, found });
        let cells = self.lstm_cell_size.map(|cells| cells as usize);
        if self.widths().chain([self.dist_inputs_len]).chain(cells).any(|width| width == 0) {
            return unsupported("layers with elements".into(), "one without".into());
        }
        // Saturated where there are too many.
        let product = |(inputs, outputs): (usize, usize)| inputs.saturating_mul(outputs);
        let pairs = self.widths().zip(self.widths().skip(1));
        let hidden = pairs.fold(0usize, |sum, pair| sum.saturating_add(product(pair)));
        let last = self.widths().last().unwrap_or(self.obs_len);
        let heads = self.dist_inputs_len.saturating_add(1);
        let weights = match cells {
            None => product((last, heads)).saturating_add(hidden.saturating_mul(2)),
            Some(cells) => {
                let gates = product((last.saturating_add(cells), cells.saturating_mul(4)));
                product((cells, heads)).saturating_add(gates).saturating_add(hidden)
            }
        };
        if weights > Self::MAX_WEIGHTS {
            return unsupported(
                format!("models of at most {} weights", Self::MAX_WEIGHTS),
                format!("one of {weights}"),
            );
        }
        Ok(())
    }

    /// Names and shapes of all tensors of the model.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn tensors(&self) -> Result<Vec<(String, Vec<u32>)>, PolicyError> {
        self.check()?;
        let weights = self.matrices().into_iter().map(|m| (m.name, vec![m.inputs as u32, m.outputs as u32]));
        Ok(weights.chain(self.biases().into_iter().map(|bias| (bias.name, vec![bias.len as u32]))).collect())
    }

    /// First weights of the model, a function of the seed: uniform as Glorot and Bengio (2010) propose, the policy's
    /// last layer small; biases zero, but one at forget gates, which so begin open (Jozefowicz, Zaremba and Sutskever:
    /// "An empirical exploration of recurrent network architectures", 2015).
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn init_weights(&self, seed: u64) -> Result<Weights, PolicyError> {
        self.check()?;
        Ok(init::first_weights(self, seed))
    }

    /// Lengths of the recurrent states, hidden and cell.
    pub(super) fn state_lens(&self) -> Vec<usize> {
        self.lstm_cell_size.map(|cells| vec![cells as usize; 2]).unwrap_or_default()
    }

    /// Widths before the first layer and after each hidden one.
    fn widths(&self) -> impl Iterator<Item = usize> {
        [self.obs_len].into_iter().chain(self.hidden.iter().map(|&width| width as usize))
    }

    /// Dense networks by name and number, with the widths between their layers.
    pub(super) fn networks(&self) -> [(&'static str, u32, Vec<usize>); 3] {
        let with = |last: usize| self.widths().chain([last]).collect();
        let [policy, value, encoder] = match self.lstm_cell_size.map(|cells| cells as usize) {
            None => [with(self.dist_inputs_len), with(1), Vec::new()],
            Some(cells) => [vec![cells, self.dist_inputs_len], vec![cells, 1], self.widths().collect()],
        };
        [("policy", 0, policy), ("value", 1, value), ("encoder", 2, encoder)]
    }

    /// Inputs and cells of the LSTM.
    pub(super) fn lstm(&self) -> Option<(usize, usize)> {
        let inputs = self.widths().last().unwrap_or(self.obs_len);
        self.lstm_cell_size.map(|cells| (inputs, cells as usize))
    }

    pub(in crate::policy) fn matrices(&self) -> Vec<Matrix> {
        let mut matrices = Vec::new();
        for (name, number, widths) in self.networks() {
            let last = widths.len().saturating_sub(2);
            matrices.extend(widths.windows(2).enumerate().map(|(i, pair)| Matrix {
                name: format!("{name}.{i}.weight"),
                inputs: pair[0],
                outputs: pair[1],
                address: (number, i as u32),
                head: name == "policy" && i == last,
            }));
        }
        if let Some((inputs, cells)) = self.lstm() {
            let matrix = |name: &str, inputs, i| Matrix {
                name: name.into(),
                inputs,
                outputs: 4 * cells,
                address: (3, i),
                head: false,
            };
            matrices.extend([matrix("lstm.weight_ih", inputs, 0), matrix("lstm.weight_hh", cells, 1)]);
        }
        matrices
    }

    pub(in crate::policy) fn biases(&self) -> Vec<Bias> {
        let mut biases = Vec::new();
        for (name, _, widths) in self.networks() {
            let outputs = widths.iter().skip(1).enumerate();
            biases.extend(outputs.map(|(i, &len)| Bias { name: format!("{name}.{i}.bias"), len, gates: false }));
        }
        biases.extend(self.lstm().map(|(_, cells)| Bias { name: "lstm.bias".into(), len: 4 * cells, gates: true }));
        biases
    }
}

//! The networks with their weights: a row in; parameters of a distribution, a value and states out.

use super::{
    ModelSpec,
    layer::{Layer, Others},
};
use crate::{
    math,
    policy::mlp::find,
    prelude::*,
    weights::{Weights, WeightsError},
};

/// See [`ModelSpec`].
#[derive(Clone, Debug)]
pub(super) struct Model {
    policy: Vec<Layer>,
    value: Vec<Layer>,
    /// What stands between observations and both networks, if anything does.
    memory: Option<Memory>,
}

/// An LSTM and what is before it.
#[derive(Clone, Debug)]
struct Memory {
    encoder: Vec<Layer>,
    /// Over the encoder's outputs and, after them, the hidden state.
    gates: Layer,
    cells: usize,
}

/// What a row needs while it is worked on, and its results. Grows to the widest layer and stays so.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    buffers: Buffers,
    sums: Vec<f32>,
    /// States after the row: the hidden one, then the cells'.
    pub(super) state: Vec<f32>,
}

/// What goes into a layer, and what comes out.
#[derive(Clone, Debug, Default)]
struct Buffers {
    input: Vec<f32>,
    others: Others,
    output: Vec<f32>,
}

impl Model {
    /// The spec has been checked.
    ///
    /// # Errors
    /// [`WeightsError::Missing`].
    pub(super) fn pack(spec: &ModelSpec, weights: &Weights) -> Result<Self, WeightsError> {
        let layer = |name: &str, i: usize, inputs: usize, outputs: usize| {
            let weight = find(weights, format!("{name}.{i}.weight"), &[inputs, outputs])?;
            let bias = find(weights, format!("{name}.{i}.bias"), &[outputs])?;
            Ok::<_, WeightsError>(Layer::pack(&[&weight.values], &bias.values))
        };
        let layers = |(name, _, widths): (&str, u32, Vec<usize>)| {
            widths
                .windows(2)
                .enumerate()
                .map(|(i, pair)| layer(name, i, pair[0], pair[1]))
                .collect::<Result<Vec<_>, _>>()
        };
        let [policy, value, encoder] = spec.networks().map(layers);
        let gates = |(inputs, cells): (usize, usize)| {
            let input = find(weights, "lstm.weight_ih".into(), &[inputs, 4 * cells])?;
            let hidden = find(weights, "lstm.weight_hh".into(), &[cells, 4 * cells])?;
            let bias = find(weights, "lstm.bias".into(), &[4 * cells])?;
            Ok::<_, WeightsError>((Layer::pack(&[&input.values, &hidden.values], &bias.values), cells))
        };
        let (encoder, gates) = (encoder?, spec.lstm().map(gates).transpose()?);
        Ok(Self {
            policy: policy?,
            value: value?,
            memory: gates.map(|(gates, cells)| Memory { encoder, gates, cells }),
        })
    }

    /// Parameters of the distribution of actions, after [`remember`](Self::remember) if the model has memory.
    pub(super) fn dist_inputs<'a>(&self, obs: &[f32], scratch: &'a mut Scratch) -> &'a [f32] {
        self.head(&self.policy, obs, scratch)
    }

    /// The value of an observation, likewise.
    pub(super) fn value(&self, obs: &[f32], scratch: &mut Scratch) -> f32 {
        self.head(&self.value, obs, scratch).first().copied().unwrap_or(0.0)
    }

    fn head<'a>(&self, layers: &[Layer], obs: &[f32], scratch: &'a mut Scratch) -> &'a [f32] {
        let features = match &self.memory {
            None => obs,
            Some(memory) => scratch.state.get(..memory.cells).unwrap_or(&[]),
        };
        scratch.buffers.run(layers, features, false)
    }

    /// One step of the memory, if there is one: from the state before to the one after, in `scratch`.
    pub(super) fn remember(&self, obs: &[f32], state: &[f32], scratch: &mut Scratch) {
        scratch.state.clear();
        let Some(Memory { encoder, gates, cells }) = &self.memory else { return };
        let Scratch { buffers, sums, state: next } = scratch;
        buffers.run(encoder, obs, true);
        let (hidden, cell) = state.split_at(*cells.min(&state.len()));
        buffers.input.extend_from_slice(hidden);
        gates.forward(&buffers.input, &mut buffers.others, sums);
        next.resize(2 * cells, 0.0);
        let (next_hidden, next_cell) = next.split_at_mut(*cells);
        let mut gates = sums.chunks_exact(*cells);
        let mut gate = || gates.next().unwrap_or(&[]);
        let sums = gate().iter().zip(gate()).zip(gate().iter().zip(gate()));
        let states = cell.iter().zip(next_hidden.iter_mut().zip(next_cell));
        for (((input, forget), (candidate, output)), (cell, (next_hidden, next_cell))) in sums.zip(states) {
            *next_cell = math::sigmoid(*forget) * cell + math::sigmoid(*input) * math::tanh(*candidate);
            *next_hidden = math::sigmoid(*output) * math::tanh(*next_cell);
        }
    }
}

impl Buffers {
    /// The outputs of layers with tanh between them, and after the last one if `tanh_last`. They stay in `input`.
    fn run(&mut self, layers: &[Layer], input: &[f32], tanh_last: bool) -> &[f32] {
        self.input.clear();
        self.input.extend_from_slice(input);
        for (i, layer) in layers.iter().enumerate() {
            layer.forward(&self.input, &mut self.others, &mut self.output);
            if tanh_last || i + 1 < layers.len() {
                self.output.iter_mut().for_each(|x| *x = math::tanh(*x));
            }
            core::mem::swap(&mut self.input, &mut self.output);
        }
        &self.input
    }
}

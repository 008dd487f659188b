//! Forward pass of the acting networks.
//!
//! Each sum starts with the bias and takes the inputs in their order, for one row and for many, so a row's result depends
//! on nothing but the row. Rows are worked on in tiles of some rows and some outputs; outputs are the lanes.

mod activation;
mod conv;
mod dense;
mod memory;
mod norm;
#[cfg(test)]
mod tests;

pub use activation::Activation;
pub use conv::{Conv, ConvShape};
pub use dense::Dense;
pub use memory::{Memory, MemoryKind};
pub use norm::{EPSILON, LayerNorm, layer_norm, layer_norm_back, layer_norm_weight_grads};

use self::{
    conv::ConvBuffers,
    dense::{Few, PANEL, Rows, stride},
    memory::MemoryBuffers,
};
use alloc::{vec, vec::Vec};

/// Rows that go through all layers together, so that what is between the layers stays in the cache.
const CHUNK: usize = 64;

/// Rows of fewer numbers are not looked at for zeros.
const SPARSE: usize = 32;

/// Numbers of a row that are skipped together, if they are all 0.
const BLOCK: usize = 16;

/// A layer with its weights.
#[derive(Clone, Debug)]
pub enum Layer {
    /// Sums over all numbers of a row, and their activation.
    Dense(Dense, Activation),
    /// Sums over the patches of an image, and their activation.
    Conv(Conv, Activation),
    /// Memory. It may only be the last layer of a trunk.
    Memory(Memory),
    /// Layer normalisation, and the activation of its results.
    Norm(LayerNorm, Activation),
    /// The given number of a row's numbers, and after them numbers that are the same for every row.
    Append(usize, Vec<f32>),
}

impl Layer {
    /// Returns the number of inputs per row.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        match self {
            Self::Dense(dense, _) => dense.inputs(),
            Self::Conv(conv, _) => conv.shape().inputs(),
            Self::Memory(memory) => memory.inputs(),
            Self::Norm(norm, _) => norm.width(),
            Self::Append(inputs, _) => *inputs,
        }
    }

    /// Returns the number of outputs per row.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        match self {
            Self::Dense(dense, _) => dense.outputs(),
            Self::Conv(conv, _) => conv.shape().outputs(),
            Self::Memory(memory) => memory.cells(),
            Self::Norm(norm, _) => norm.width(),
            Self::Append(inputs, values) => *inputs + values.len(),
        }
    }

    /// Takes other weights of the same shape: matrices that stand one below the other, and biases, or the numbers that are
    /// appended. The caller has checked the lengths.
    pub fn repack(&mut self, matrices: &[&[f32]], bias: &[f32]) {
        match self {
            Self::Dense(dense, _) => dense.repack(matrices, bias),
            Self::Conv(conv, _) => conv.filters_mut().repack(matrices, bias),
            Self::Memory(memory) => memory.gates_mut().repack(matrices, bias),
            Self::Norm(norm, _) => norm.repack(matrices.first().copied().unwrap_or_default(), bias),
            Self::Append(_, values) => values.copy_from_slice(bias),
        }
    }

    /// Returns the activation that is applied to its sums.
    const fn activation(&self) -> Activation {
        match self {
            Self::Dense(_, activation) | Self::Conv(_, activation) | Self::Norm(_, activation) => *activation,
            Self::Memory(_) | Self::Append(..) => Activation::Linear,
        }
    }

    /// Returns the length of a row of its results: the outputs, and after them whatever else is a state.
    const fn row_len(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.state_len(),
            _ => self.outputs(),
        }
    }
}

/// A policy network and a value network over the outputs of a trunk that they share, or over the same observations.
#[derive(Clone, Debug)]
pub struct Networks {
    /// Layers that both networks share; none if each has its own.
    pub trunk: Vec<Layer>,
    /// Layers of the policy network, at least one.
    pub policy: Vec<Layer>,
    /// Layers of the value network, at least one; the last has one output.
    pub value: Vec<Layer>,
}

impl Networks {
    /// Returns the number of elements of an observation.
    #[must_use]
    pub fn obs_len(&self) -> usize {
        self.trunk.first().or_else(|| self.policy.first()).map_or(0, Layer::inputs)
    }

    /// Returns the number of outputs of the policy network.
    #[must_use]
    pub fn dist_inputs_len(&self) -> usize {
        self.policy.last().map_or(0, Layer::outputs)
    }

    /// Returns the length of a row's state, see [`MemoryKind`].
    #[must_use]
    pub fn state_len(&self) -> usize {
        match self.trunk.last() {
            Some(Layer::Memory(memory)) => memory.state_len(),
            _ => 0,
        }
    }
}

/// The inputs of networks, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Observations.
    pub obs: &'a [f32],
    /// States before them; empty without memory.
    pub state: &'a [f32],
}

/// The buffers for the outputs, row-major.
#[derive(Debug)]
pub struct Output<'a> {
    /// Outputs of the policy network, or empty: then it is left out.
    pub dist_inputs: &'a mut [f32],
    /// Estimates, one for each row.
    pub values: &'a mut [f32],
    /// States after the rows, or empty.
    pub state: &'a mut [f32],
}

/// Memory that [`forward`] needs meanwhile. It grows to what the networks take and stays so.
#[derive(Clone, Debug, Default)]
pub struct NetBuffers {
    trunk: Buffers,
    heads: Buffers,
    others: Others,
    conv: ConvBuffers,
    memory: MemoryBuffers,
}

/// The inputs and outputs of a layer.
#[derive(Clone, Debug, Default)]
struct Buffers {
    input: Vec<f32>,
    output: Vec<f32>,
}

/// Inputs that are not 0 and where they stand, row after row.
#[derive(Clone, Debug, Default)]
struct Others {
    entries: Vec<(u32, f32)>,
    /// The end of each row's entries.
    ends: Vec<usize>,
    /// Whether they are most of the rows: processing all inputs is as fast then.
    are_many: bool,
}

/// Sends rows through the networks. The caller has checked the lengths.
///
/// Sums of `ROWS` rows (4 or 16) and `LANES` outputs (a divisor of 16) are kept in registers together; neither changes a
/// bit.
#[inline(always)]
pub fn forward<const ROWS: usize, const LANES: usize>(
    nets: &Networks,
    input: Input<'_>,
    buffers: &mut NetBuffers,
    out: Output<'_>,
) {
    let (obs_len, dist_inputs_len, state_len) = (nets.obs_len(), nets.dist_inputs_len(), nets.state_len());
    let NetBuffers { trunk, heads, others, conv, memory } = buffers;
    let mut dist_inputs = out.dist_inputs.chunks_mut((CHUNK * dist_inputs_len).max(1));
    let mut next = out.state.chunks_mut((CHUNK * state_len).max(1));
    for (chunk, values) in out.values.chunks_mut(CHUNK).enumerate() {
        let (first, count) = (chunk * CHUNK, values.len());
        let obs = Rows { values: &input.obs[first * obs_len..][..count * obs_len], stride: obs_len };
        let state = &input.state[first * state_len..][..count * state_len];
        let mut scratch = Scratch { others, conv, memory, state, count };
        let over_obs = match nets.trunk.first() {
            None => [nets.value.first(), nets.policy.first()],
            trunk => [trunk, None],
        };
        if over_obs.iter().any(|layer| matches!(layer, Some(Layer::Dense(..)))) {
            scratch.others.find(obs, obs_len, count);
        }
        let mut features_stride = None;
        // A loop, so that the layers are compiled once for all.
        let parts = [
            (&nets.trunk, next.next(), state_len),
            (&nets.value, Some(values), 1),
            (&nets.policy, dist_inputs.next(), dist_inputs_len),
        ];
        for (part, (layers, out, width)) in parts.into_iter().enumerate() {
            if layers.is_empty() || (part > 0 && out.is_none()) {
                continue;
            }
            let (from, buffers) = match features_stride {
                Some(stride) => (Rows { values: &trunk.input, stride }, &mut *heads),
                None if part > 0 => (obs, &mut *heads),
                None => (obs, &mut *trunk),
            };
            let found = buffers.run::<ROWS, LANES>(layers, from, &mut scratch);
            if let Some(out) = out {
                for row in 0..count {
                    out[row * width..][..width].copy_from_slice(found.row(row, width));
                }
            }
            if part == 0 {
                features_stride = Some(found.stride);
                scratch.others.are_many = true;
            }
        }
    }
}

/// Sends rows, row-major, through one layer: `output` gets its outputs. The caller has checked the lengths.
///
/// A learner's matrix products are this: the product of `a` and `b` has the rows of `a` sent through a layer with the weights
/// `b` and the bias 0.
#[inline(always)]
pub fn linear<const ROWS: usize, const LANES: usize>(dense: &Dense, input: &[f32], output: &mut [f32]) {
    let (inputs, outputs) = (dense.inputs(), dense.outputs());
    let count = output.len() / outputs.max(1);
    let input = Rows { values: input, stride: inputs };
    if outputs.is_multiple_of(PANEL) {
        return dense.forward::<ROWS, LANES>(input, count, output, outputs);
    }
    // Whole panels have no place between the outputs of two rows.
    let mut chunk = vec![0.0; count.min(CHUNK) * stride(outputs)];
    for (first, output) in (0..).step_by(CHUNK).zip(output.chunks_mut(CHUNK * outputs)) {
        dense.forward::<ROWS, LANES>(input.skip(first), output.len() / outputs, &mut chunk, stride(outputs));
        let rows = output.chunks_exact_mut(outputs).zip(chunk.chunks(stride(outputs)));
        rows.for_each(|(output, row)| output.copy_from_slice(&row[..outputs]));
    }
}

/// The parameters and memory that layers need, except rows and buffers.
struct Scratch<'a> {
    others: &'a mut Others,
    conv: &'a mut ConvBuffers,
    memory: &'a mut MemoryBuffers,
    /// States before the rows.
    state: &'a [f32],
    count: usize,
}

impl Buffers {
    /// Computes the outputs of layers, at least one. They stay in `input`.
    #[inline(always)]
    fn run<const ROWS: usize, const LANES: usize>(
        &mut self,
        layers: &[Layer],
        from: Rows<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Rows<'_> {
        let (mut found_stride, count) = (0, scratch.count);
        for (i, layer) in layers.iter().enumerate() {
            let input = if i == 0 { from } else { Rows { values: &self.input, stride: found_stride } };
            found_stride = stride(layer.row_len());
            reserve(&mut self.output, count * found_stride);
            let (output, activation) = (&mut self.output[..count * found_stride], layer.activation());
            match layer {
                Layer::Conv(conv, _) => conv.forward::<ROWS, LANES>(input, count, scratch.conv, output),
                Layer::Dense(dense, _) => {
                    let others = Some(&*scratch.others).filter(|others| i == 0 && !others.are_many);
                    through::<ROWS, LANES>(dense, input, others, count, output);
                }
                Layer::Memory(memory) => memory.forward::<ROWS, LANES>(input, i == 0, scratch, output),
                Layer::Norm(norm, _) => norm.forward(input, count, output, found_stride),
                Layer::Append(inputs, values) => {
                    for (row, output) in output.chunks_exact_mut(found_stride).enumerate() {
                        output[..*inputs].copy_from_slice(input.row(row, *inputs));
                        output[*inputs..][..values.len()].copy_from_slice(values);
                    }
                }
            }
            if activation != Activation::Linear {
                let width = layer.row_len().next_multiple_of(PANEL);
                // By indices, see `Dense::forward_row`. Whole panels: a loop without a rest.
                for row in 0..count {
                    activation.apply_panels(output[row * found_stride..][..width].as_chunks_mut::<PANEL>().0);
                }
            }
            core::mem::swap(&mut self.input, &mut self.output);
        }
        Rows { values: &self.input, stride: found_stride }
    }
}

/// Applies a layer to rows, with only the numbers that are not 0 if these are given.
#[inline(always)]
fn through<const ROWS: usize, const LANES: usize>(
    dense: &Dense,
    input: Rows<'_>,
    others: Option<&Others>,
    count: usize,
    output: &mut [f32],
) {
    let Some(others) = others.filter(|_| dense.skips_zeros()) else {
        return dense.forward::<ROWS, LANES>(input, count, output, stride(dense.outputs()));
    };
    let mut first = 0;
    for (row, end) in output.chunks_exact_mut(stride(dense.outputs())).zip(&others.ends) {
        dense.forward_row(&Few(&others.entries[first..*end]), row);
        first = *end;
    }
}

impl Others {
    /// Looks for them, unless the rows are short or most numbers are not 0.
    #[inline(always)]
    fn find(&mut self, input: Rows<'_>, width: usize, count: usize) {
        let rows = || input.values.chunks(input.stride).take(count).map(|row| &row[..width]);
        let others = |row: &[f32]| row.iter().map(|x| u32::from(*x != 0.0)).sum::<u32>() as usize;
        self.are_many = width < SPARSE || rows().map(others).sum::<usize>() > count * (width / 2);
        if self.are_many {
            return;
        }
        // As many as there can be, and a row: all are written, and those that are 0 are written over.
        let most = count * (width / 2) + width;
        if self.entries.len() < most {
            self.entries.resize(most, (0, 0.0));
        }
        self.ends.clear();
        let mut len = 0;
        for row in rows() {
            for (block, numbers) in row.chunks(BLOCK).enumerate() {
                // Most are empty as a whole.
                if numbers.iter().fold(0, |bits, x| bits | x.to_bits() << 1) == 0 {
                    continue;
                }
                for (i, x) in numbers.iter().enumerate() {
                    self.entries[len] = ((block * BLOCK + i) as u32, *x);
                    len += usize::from(*x != 0.0);
                }
            }
            self.ends.push(len);
        }
    }
}

/// Grows the buffer to this many elements if it has fewer.
#[inline(always)]
fn reserve(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}

//! Forward pass of the acting networks.
//!
//! Each sum starts with the bias and takes the inputs in their order, for one row and for many, so a row's result depends
//! on nothing but the row. Rows are worked on in tiles of some rows and some outputs; outputs are the lanes.

mod dense;
#[cfg(test)]
mod tests;

pub use dense::Dense;

use self::dense::{Few, PANEL, Rows, stride};
use alloc::{vec, vec::Vec};

use crate::math;

/// Rows that go through all layers together, so that what is between the layers stays in the cache.
const CHUNK: usize = 64;

/// Rows of fewer numbers are not looked at for zeros.
const SPARSE: usize = 32;

/// Numbers of a row that are left out together, if they can be.
const BLOCK: usize = 16;

/// A policy network and a value network: tanh between layers, none after the last. Over the same observations, or over
/// the cells of one LSTM.
#[derive(Clone, Debug)]
pub struct Networks {
    /// Layers before the LSTM, each followed by tanh; none without it.
    pub encoder: Vec<Dense>,
    /// The LSTM's gates over the encoder's outputs and, after them, the hidden state: all input gates, then the forget
    /// gates, the cells and the output gates.
    pub gates: Option<Dense>,
    /// Layers of the policy network, at least one.
    pub policy: Vec<Dense>,
    /// Layers of the value network, at least one; the last has one output.
    pub value: Vec<Dense>,
}

impl Networks {
    /// Elements of an observation.
    #[must_use]
    pub fn obs_len(&self) -> usize {
        match (self.encoder.first(), &self.gates) {
            (Some(layer), _) => layer.inputs(),
            (None, Some(gates)) => gates.inputs() - self.cells(),
            (None, None) => self.policy.first().map_or(0, Dense::inputs),
        }
    }

    /// Outputs of the policy network.
    #[must_use]
    pub fn dist_inputs_len(&self) -> usize {
        self.policy.last().map_or(0, Dense::outputs)
    }

    /// Cells of the LSTM. A row's state has twice as many numbers: the hidden state, then the cells'.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.gates.as_ref().map_or(0, |gates| gates.outputs() / 4)
    }
}

/// What goes into networks, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Observations.
    pub obs: &'a [f32],
    /// States before them; empty without LSTM.
    pub state: &'a [f32],
}

/// Where the outputs go, row-major.
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
pub struct Room {
    layers: Layers,
    state: Vec<f32>,
    others: Others,
}

/// What goes into a layer, and what comes out.
#[derive(Clone, Debug, Default)]
struct Layers {
    input: Vec<f32>,
    output: Vec<f32>,
}

/// Inputs that are not 0 and where they stand, row after row.
#[derive(Clone, Debug, Default)]
struct Others {
    entries: Vec<(u32, f32)>,
    /// Where each row's entries end.
    ends: Vec<usize>,
    /// Whether they are most of the rows: then all inputs are as quickly done.
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
    room: &mut Room,
    out: Output<'_>,
) {
    let (obs_len, dist_inputs_len, state_len) = (nets.obs_len(), nets.dist_inputs_len(), 2 * nets.cells());
    let mut dist_inputs = out.dist_inputs.chunks_mut((CHUNK * dist_inputs_len).max(1));
    let mut next = out.state.chunks_mut((CHUNK * state_len).max(1));
    for (chunk, values) in out.values.chunks_mut(CHUNK).enumerate() {
        let (first, count) = (chunk * CHUNK, values.len());
        let obs = &input.obs[first * obs_len..][..count * obs_len];
        let state = &input.state[first * state_len..][..count * state_len];
        let Room { layers, state: after, others } = room;
        let mut features = Rows { values: obs, stride: obs_len };
        match &nets.gates {
            None => others.find(features, obs_len, count),
            Some(gates) => {
                remember::<ROWS, LANES>(
                    &nets.encoder,
                    gates,
                    features,
                    state,
                    count,
                    (&mut *layers, &mut *others),
                    after,
                );
                others.are_many = true;
                features = Rows { values: after, stride: stride(state_len) };
                let rows = after.chunks(stride(state_len));
                next.next().unwrap_or_default().chunks_exact_mut(state_len).zip(rows).for_each(|(out, row)| {
                    out.copy_from_slice(&row[..state_len]);
                });
            }
        }
        let found = layers.run::<ROWS, LANES>(&nets.value, features, others, count, false);
        values.iter_mut().enumerate().for_each(|(row, value)| *value = found.values[row * found.stride]);
        if let Some(dist_inputs) = dist_inputs.next() {
            let found = layers.run::<ROWS, LANES>(&nets.policy, features, others, count, false);
            for row in 0..count {
                let (out, row) = (&mut dist_inputs[row * dist_inputs_len..], found.row(row, dist_inputs_len));
                out.iter_mut().zip(row).for_each(|(out, x)| *out = *x);
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

/// Hyperbolic tangent of every number.
#[inline(always)]
pub fn tanh(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = math::tanh(*x));
}

/// One step of the LSTM: from the states before to those after, at a distance of [`stride`].
#[inline(always)]
fn remember<const ROWS: usize, const LANES: usize>(
    encoder: &[Dense],
    gates: &Dense,
    obs: Rows<'_>,
    before: &[f32],
    count: usize,
    (layers, others): (&mut Layers, &mut Others),
    after: &mut Vec<f32>,
) {
    let cells = gates.outputs() / 4;
    let (width, joined) = (gates.inputs() - cells, stride(gates.inputs()));
    // The encoder's outputs, and beside them the hidden states.
    if encoder.is_empty() {
        reserve(&mut layers.output, count * joined);
        let rows = layers.output.chunks_mut(joined).zip(obs.values.chunks(obs.stride));
        rows.take(count).for_each(|(row, obs)| row[..width].copy_from_slice(&obs[..width]));
    } else {
        others.find(obs, obs.stride, count);
        layers.run::<ROWS, LANES>(encoder, obs, others, count, true);
        reserve(&mut layers.output, count * joined);
        let rows = layers.output.chunks_mut(joined).zip(layers.input.chunks(stride(width)));
        rows.take(count).for_each(|(row, found)| row[..width].copy_from_slice(&found[..width]));
    }
    let rows = layers.output.chunks_mut(joined).zip(before.chunks_exact(2 * cells));
    rows.for_each(|(row, before)| row[width..][..cells].copy_from_slice(&before[..cells]));
    core::mem::swap(&mut layers.input, &mut layers.output);
    let input = Rows { values: &layers.input, stride: joined };
    if encoder.is_empty() {
        others.find(input, gates.inputs(), count);
    } else {
        others.are_many = true;
    }
    layer::<ROWS, LANES>(gates, input, others, count, &mut layers.output);
    reserve(after, count * stride(2 * cells));
    let rows = before.chunks_exact(2 * cells).zip(after.chunks_mut(stride(2 * cells)));
    for (sums, (before, after)) in layers.output.chunks_mut(stride(4 * cells)).zip(rows) {
        // Step by step: a loop over all of it has too many places in memory to become one over vectors.
        let (both, rest) = sums[..4 * cells].split_at_mut(2 * cells);
        let (candidate, output) = rest.split_at_mut(cells);
        both.iter_mut().for_each(|x| *x = math::sigmoid(*x));
        candidate.iter_mut().for_each(|x| *x = math::tanh(*x));
        output.iter_mut().for_each(|x| *x = math::sigmoid(*x));
        let (input, forget) = both.split_at(cells);
        let (hidden, cell) = after[..2 * cells].split_at_mut(cells);
        for (((cell, before), forget), (input, candidate)) in
            cell.iter_mut().zip(&before[cells..]).zip(forget).zip(input.iter().zip(&*candidate))
        {
            *cell = forget * before + input * candidate;
        }
        let hidden = hidden.iter_mut().zip(cell).zip(output);
        hidden.for_each(|((hidden, cell), output)| *hidden = *output * math::tanh(*cell));
    }
}

impl Layers {
    /// The outputs of layers with tanh between them, and after the last one if `tanh_last`. They stay in `input`.
    #[inline(always)]
    fn run<const ROWS: usize, const LANES: usize>(
        &mut self,
        layers: &[Dense],
        input: Rows<'_>,
        others: &Others,
        count: usize,
        tanh_last: bool,
    ) -> Rows<'_> {
        let mut width = 0;
        for (i, dense) in layers.iter().enumerate() {
            let last = i + 1 == layers.len();
            if i == 0 {
                layer::<ROWS, LANES>(dense, input, others, count, &mut self.output);
            } else {
                let input = Rows { values: &self.input, stride: stride(width) };
                reserve(&mut self.output, count * stride(dense.outputs()));
                dense.forward::<ROWS, LANES>(input, count, &mut self.output, stride(dense.outputs()));
            }
            width = dense.outputs();
            if tanh_last || !last {
                for row in 0..count {
                    let row = &mut self.output[row * stride(width)..][..width.next_multiple_of(PANEL)];
                    let (panels, _) = row.as_chunks_mut::<PANEL>();
                    panels.iter_mut().for_each(|panel| panel.iter_mut().for_each(|x| *x = math::tanh(*x)));
                }
            }
            core::mem::swap(&mut self.input, &mut self.output);
        }
        Rows { values: &self.input, stride: stride(width) }
    }
}

/// Rows through a layer, without the zeros where they are many.
#[inline(always)]
fn layer<const ROWS: usize, const LANES: usize>(
    dense: &Dense,
    input: Rows<'_>,
    others: &Others,
    count: usize,
    output: &mut Vec<f32>,
) {
    reserve(output, count * stride(dense.outputs()));
    if others.are_many || !dense.skips_zeros() {
        return dense.forward::<ROWS, LANES>(input, count, output, stride(dense.outputs()));
    }
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

//! Layers with a memory.

use alloc::vec::Vec;

use super::{Dense, Scratch, dense::Rows, reserve, stride, through};
use crate::math;

/// Layers with a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Long short-term memory (Hochreiter and Schmidhuber, 1997). Its gates are all input gates, then the forget gates, the
    /// cells and the output gates. A row's state is the hidden state, then the cells.
    Lstm,
    /// Gated recurrent units (Cho et al., 2014), as PyTorch has them. Its gates are all reset gates, then the update gates,
    /// the inputs' part of the candidates, and the hidden states' part. A row's state is the hidden state.
    Gru,
}

/// A layer with a memory: four gates for each cell, over the inputs, the numbers of the previous step and the hidden state.
///
/// The numbers of the previous step stand at the end of the state before the step. The caller writes them: those of the state
/// after it are zeros.
#[derive(Clone, Debug)]
pub struct Memory {
    kind: MemoryKind,
    gates: Dense,
    previous: usize,
}

/// Memory that layers with a memory need meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryBuffers {
    /// Inputs, and after them the previous step and the hidden states.
    joined: Vec<f32>,
    gates: Vec<f32>,
}

impl Memory {
    /// Creates a memory with these gates that takes this many numbers of the previous step.
    #[must_use]
    pub const fn new(kind: MemoryKind, gates: Dense, previous: usize) -> Self {
        Self { kind, gates, previous }
    }

    /// Returns the number of inputs per row.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.gates.inputs() - self.cells() - self.previous
    }

    /// Returns the number of cells, which is the length of a hidden state.
    #[must_use]
    pub const fn cells(&self) -> usize {
        self.gates.outputs() / 4
    }

    pub(super) const fn state_len(&self) -> usize {
        let own = match self.kind {
            MemoryKind::Lstm => 2 * self.cells(),
            MemoryKind::Gru => self.cells(),
        };
        own + self.previous
    }

    pub(super) const fn gates_mut(&mut self) -> &mut Dense {
        &mut self.gates
    }

    /// Computes one step: from the states before to those after, at a distance of [`stride`].
    #[inline(always)]
    pub(super) fn forward<const ROWS: usize, const LANES: usize>(
        &self,
        input: Rows<'_>,
        is_first: bool,
        scratch: &mut Scratch<'_>,
        after: &mut [f32],
    ) {
        let Scratch { others, memory: MemoryBuffers { joined, gates }, state: before, count, .. } = scratch;
        let (count, cells, width, state_len) = (*count, self.cells(), self.inputs(), self.state_len());
        let own_len = state_len - self.previous;
        let joined_stride = stride(self.gates.inputs());
        reserve(joined, count * joined_stride);
        for (row, before) in before.chunks_exact(state_len).enumerate() {
            let joined = &mut joined[row * joined_stride..][..self.gates.inputs()];
            joined[..width].copy_from_slice(input.row(row, width));
            joined[width..][..self.previous].copy_from_slice(&before[own_len..]);
            joined[width + self.previous..].copy_from_slice(&before[..cells]);
        }
        let input = Rows { values: joined, stride: joined_stride };
        let mut found = None;
        if is_first {
            others.find(input, self.gates.inputs(), count);
            found = Some(&**others).filter(|others| !others.are_many);
        }
        reserve(gates, count * stride(4 * cells));
        through::<ROWS, LANES>(&self.gates, input, found, count, gates);
        for after in after.chunks_mut(stride(state_len)) {
            after[own_len..state_len].fill(0.0);
        }
        let rows = before.chunks_exact(state_len).zip(after.chunks_mut(stride(state_len)));
        let rows = gates.chunks_mut(stride(4 * cells)).zip(rows);
        // The match around the loop: within it, one of the steps is no loop over vectors.
        match self.kind {
            MemoryKind::Lstm => rows.for_each(|(sums, (before, after))| lstm_step(cells, sums, before, after)),
            MemoryKind::Gru => rows.for_each(|(sums, (before, after))| gru_step(cells, sums, before, after)),
        }
    }
}

/// Computes a row's next state from the sums of its gates and the state before.
#[inline(always)]
fn lstm_step(cells: usize, sums: &mut [f32], before: &[f32], after: &mut [f32]) {
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

/// Does the same as [`lstm_step`] for gated recurrent units.
#[inline(always)]
fn gru_step(cells: usize, sums: &mut [f32], before: &[f32], after: &mut [f32]) {
    let (both, rest) = sums[..4 * cells].split_at_mut(2 * cells);
    let (candidate, own) = rest.split_at_mut(cells);
    both.iter_mut().for_each(|x| *x = math::sigmoid(*x));
    let (reset, update) = both.split_at(cells);
    for ((candidate, own), reset) in candidate.iter_mut().zip(&*own).zip(reset) {
        *candidate = math::tanh(*candidate + reset * own);
    }
    for (((after, before), update), candidate) in after.iter_mut().zip(before).zip(update).zip(&*candidate) {
        *after = (1.0 - update) * candidate + update * before;
    }
}

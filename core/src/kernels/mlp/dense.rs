//! One layer, over a block of rows and over a single one.

use super::{LANES, Lane};
use crate::prelude::*;

/// Outputs whose sums for a block of rows are kept in registers together.
const GROUP: usize = 4;

/// Panels whose sums for a single row are kept in registers together: those of one would wait for each other.
const WIDE: usize = 4 * LANES;

/// A dense layer, packed for the kernel.
#[derive(Clone, Debug)]
pub struct Dense {
    inputs: usize,
    outputs: usize,
    /// For each panel of as many outputs as there are lanes, for each input: the panel's weights; filled up with zeros.
    panels: Vec<Lane>,
    /// Filled up with zeros to whole panels.
    bias: Vec<f32>,
}

impl Dense {
    /// Packs weights given as `[inputs][outputs]`. The caller has checked the lengths.
    #[must_use]
    pub fn pack(inputs: usize, outputs: usize, weights: &[f32], bias: &[f32]) -> Self {
        let mut dense = Self { inputs, outputs, panels: Vec::new(), bias: Vec::new() };
        dense.repack(weights, bias);
        dense
    }

    /// Takes other weights of the same shape. The caller has checked the lengths.
    pub fn repack(&mut self, weights: &[f32], bias: &[f32]) {
        self.bias.clear();
        self.bias.extend_from_slice(bias);
        self.bias.resize(self.outputs.next_multiple_of(LANES), 0.0);
        self.panels.clear();
        self.panels.reserve_exact(self.outputs.div_ceil(LANES) * self.inputs);
        for first in (0..self.outputs).step_by(LANES) {
            self.panels.extend(weights.chunks_exact(self.outputs).map(|row| {
                let rest = row.get(first..).unwrap_or_default();
                rest.first_chunk().copied().unwrap_or_else(|| filled_up(rest))
            }));
        }
    }

    /// Numbers that it takes of a row.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers that it makes of a row.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    #[inline(always)]
    pub(super) fn forward(&self, input: &[Lane], output: &mut [Lane]) {
        let input = &input[..self.inputs];
        let (bias, _) = self.bias.as_chunks::<GROUP>();
        let (output, _) = output.as_chunks_mut::<GROUP>();
        let groups = bias.iter().zip(output).take(self.outputs.div_ceil(GROUP));
        for (g, (bias, out)) in groups.enumerate() {
            let panel = g / (LANES / GROUP) * self.inputs;
            let (first, weights) = (g % (LANES / GROUP) * GROUP, &self.panels[panel..panel + self.inputs]);
            // Four separate sums: as an array of arrays they are taken apart into single numbers and never
            // become vectors again.
            let (mut a, mut b) = ([bias[0]; LANES], [bias[1]; LANES]);
            let (mut c, mut d) = ([bias[2]; LANES], [bias[3]; LANES]);
            for (x, w) in input.iter().zip(weights) {
                let w = &w[first..first + GROUP];
                add_product(&mut a, w[0], x);
                add_product(&mut b, w[1], x);
                add_product(&mut c, w[2], x);
                add_product(&mut d, w[3], x);
            }
            *out = [a, b, c, d];
        }
    }

    /// [`forward`](Self::forward) of a single row, with outputs as lanes.
    #[inline(always)]
    pub(super) fn forward_row(&self, input: &[f32], output: &mut [Lane]) {
        let input = &input[..self.inputs];
        let (bias, _) = self.bias.as_chunks::<LANES>();
        let output = output[..bias.len()].chunks_mut(WIDE / LANES);
        let panels = self.panels.chunks(WIDE / LANES * self.inputs).zip(bias.chunks(WIDE / LANES));
        for ((weights, bias), out) in panels.zip(output) {
            let (Ok(out), &[mut a, mut b, mut c, mut d]) = (<&mut [Lane; 4]>::try_from(&mut *out), bias) else {
                for ((weights, bias), out) in weights.chunks_exact(self.inputs).zip(bias).zip(out) {
                    let mut sum = *bias;
                    input.iter().zip(weights).for_each(|(x, w)| add_product(&mut sum, *x, w));
                    *out = sum;
                }
                continue;
            };
            let (first, second) = weights.split_at(2 * self.inputs);
            let ((p, q), (r, s)) = (first.split_at(self.inputs), second.split_at(self.inputs));
            for ((((x, p), q), r), s) in input.iter().zip(p).zip(q).zip(r).zip(s) {
                add_product(&mut a, *x, p);
                add_product(&mut b, *x, q);
                add_product(&mut c, *x, r);
                add_product(&mut d, *x, s);
            }
            *out = [a, b, c, d];
        }
    }
}

fn filled_up(weights: &[f32]) -> Lane {
    core::array::from_fn(|k| weights.get(k).copied().unwrap_or(0.0))
}

#[inline(always)]
fn add_product(sum: &mut Lane, weight: f32, x: &Lane) {
    for l in 0..LANES {
        sum[l] += weight * x[l];
    }
}

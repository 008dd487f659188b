//! One dense layer, row by row.

use crate::prelude::*;

/// Outputs whose sums are kept in registers together.
const LANES: usize = 16;

/// A dense layer of any width.
///
/// Each sum starts with the bias and takes the inputs in their order, as in the acting kernel
/// ([`kernels::mlp`](crate::kernels::mlp)), so both give the same bits. Lanes are outputs here, so a single row costs no
/// more than its part of a batch.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    inputs: usize,
    outputs: usize,
    /// For each panel of outputs, for each input: the panel's weights; filled up with zeros.
    panels: Vec<[f32; LANES]>,
    /// Likewise.
    bias: Vec<[f32; LANES]>,
}

impl Layer {
    /// Packs weights given as `[inputs][outputs]`, at least one of each; the matrices stand one below the other. The
    /// caller has checked the lengths.
    pub(super) fn pack(matrices: &[&[f32]], bias: &[f32]) -> Self {
        let outputs = bias.len().max(1);
        let rows = || matrices.iter().flat_map(|matrix| matrix.chunks_exact(outputs));
        let panel = |row: &[f32], first| core::array::from_fn(|k| row.get(first + k).copied().unwrap_or(0.0));
        let firsts = (0..outputs).step_by(LANES);
        Self {
            inputs: rows().count().max(1),
            outputs,
            panels: firsts.clone().flat_map(|first| rows().map(move |row| panel(row, first))).collect(),
            bias: firsts.map(|first| panel(bias, first)).collect(),
        }
    }

    /// One row through the layer; what was in `output` before is gone.
    pub(super) fn forward(&self, input: &[f32], output: &mut Vec<f32>) {
        output.clear();
        for (weights, bias) in self.panels.chunks_exact(self.inputs).zip(&self.bias) {
            let mut sums = *bias;
            for (x, weights) in input.iter().zip(weights) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += weight * x;
                }
            }
            let left = self.outputs.saturating_sub(output.len());
            output.extend_from_slice(&sums[..left.min(LANES)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_definition() {
        // More than a panel, and not whole ones.
        let (upper, lower): (Vec<f32>, Vec<f32>) = ((0..37).map(|i| i as f32).collect(), vec![-2.0; 37]);
        let bias: Vec<f32> = (0..37).map(|i| 0.5 * i as f32).collect();
        let layer = Layer::pack(&[&upper, &lower], &bias);
        let mut output = vec![7.0; 3];
        layer.forward(&[3.0, 0.25], &mut output);
        let expected: Vec<f32> = (0..37).map(|i| 3.5 * i as f32 - 0.5).collect();
        assert_eq!(output, expected);
    }
}

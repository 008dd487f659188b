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
    /// Whether inputs that are 0 may be left out, as most of a one-hot vector's or of a picture's are: weights are
    /// finite, so their products are zeros, which change no sum but one that is -0. Sums become that only by beginning so.
    skips_zeros: bool,
}

/// Inputs and where they stand.
pub(super) type Others = Vec<(usize, f32)>;

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
            skips_zeros: bias.iter().all(|b| b.to_bits() != (-0.0f32).to_bits()),
        }
    }

    /// One row through the layer; what was in `output` before is gone. `others` is room for the inputs that are not 0.
    pub(super) fn forward(&self, input: &[f32], others: &mut Others, output: &mut Vec<f32>) {
        output.clear();
        others.clear();
        let zeros = input.iter().filter(|x| **x == 0.0).count();
        let sparse = self.skips_zeros && zeros > input.len() / 2;
        if sparse {
            others.extend(input.iter().copied().enumerate().filter(|(_, x)| *x != 0.0));
        }
        for (weights, bias) in self.panels.chunks_exact(self.inputs).zip(&self.bias) {
            // Two loops, since a branch within one keeps the sums from staying in registers.
            let sums = match sparse {
                true => others.iter().filter_map(|(i, x)| Some((x, weights.get(*i)?))).fold(*bias, add_product),
                false => input.iter().zip(weights).fold(*bias, add_product),
            };
            let left = self.outputs.saturating_sub(output.len());
            output.extend_from_slice(&sums[..left.min(LANES)]);
        }
    }
}

#[inline(always)]
fn add_product(mut sums: [f32; LANES], (x, weights): (&f32, &[f32; LANES])) -> [f32; LANES] {
    for l in 0..LANES {
        sums[l] += weights[l] * x;
    }
    sums
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
        layer.forward(&[3.0, 0.25], &mut Vec::new(), &mut output);
        let expected: Vec<f32> = (0..37).map(|i| 3.5 * i as f32 - 0.5).collect();
        assert_eq!(output, expected);
    }

    #[test]
    fn zeros_are_left_out_where_no_bit_changes() {
        let weights = [1.0, -1.0, 0.0, -0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::MAX, -f32::MAX];
        for bias in [0.0, -0.0, 1.5, -f32::MIN_POSITIVE] {
            for inputs in [[0.0, -0.0], [-0.0, -0.0], [0.0, 1e-9], [-1e-9, 0.0], [0.0, f32::MAX]] {
                let layer = Layer::pack(&[&weights, &weights.map(|w| -w)], &[bias; 8]);
                let mut output = Vec::new();
                layer.forward(&inputs, &mut Vec::new(), &mut output);
                let sums = weights.map(|w| (bias + w * inputs[0] + -w * inputs[1]).to_bits());
                assert_eq!(output.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), sums, "{bias} {inputs:?}");
            }
        }
    }
}

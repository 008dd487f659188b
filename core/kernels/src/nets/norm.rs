//! Layer normalisation.

use alloc::vec::Vec;

use super::dense::Rows;
use crate::math;

/// Partial sums of a row: their number is the same for vectors of any width, and so are the sums.
const LANES: usize = 16;

/// The number added to the variance, so that rows of equal numbers have a result: PyTorch's default.
pub const EPSILON: f32 = 1e-5;

/// Layer normalisation (Ba, Kiros and Hinton: "Layer normalization", 2016): each row minus its mean, divided by its standard
/// deviation, times a weight and plus a bias for each number.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl LayerNorm {
    /// Creates it with as many weights as biases.
    #[must_use]
    pub fn new(weight: &[f32], bias: &[f32]) -> Self {
        Self { weight: weight.to_vec(), bias: bias.to_vec() }
    }

    /// Takes other weights and biases of the same number.
    pub(super) fn repack(&mut self, weight: &[f32], bias: &[f32]) {
        self.weight.copy_from_slice(weight);
        self.bias.copy_from_slice(bias);
    }

    /// Returns the number of elements of a row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.bias.len()
    }

    /// Normalises rows into others, at a distance of `stride` each.
    #[inline(always)]
    pub(super) fn forward(&self, input: Rows<'_>, count: usize, output: &mut [f32], stride: usize) {
        let width = self.width();
        for row in 0..count {
            normalize(input.row(row, width), &self.weight, &self.bias, &mut output[row * stride..][..width]);
        }
    }
}

/// Normalises rows, row-major, of as many numbers as there are weights and biases.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let width = weight.len().max(1);
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
    rows.for_each(|(x, y)| normalize(x, weight, bias, y));
}

/// Replaces gradients of [`layer_norm`]'s results by those of `x`.
pub fn layer_norm_back(x: &[f32], weight: &[f32], grads: &mut [f32]) {
    let width = weight.len().max(1);
    for (x, grads) in x.chunks_exact(width).zip(grads.chunks_exact_mut(width)) {
        let (mean, scale) = mean_and_scale(x);
        grads.iter_mut().zip(weight).for_each(|(grad, weight)| *grad *= weight);
        let along = |i: usize| (x[i] - mean) * scale;
        let total = sum(width, |i| grads[i]) / width as f32;
        let slope = sum(width, |i| grads[i] * along(i)) / width as f32;
        for (i, grad) in grads.iter_mut().enumerate() {
            *grad = scale * (*grad - total - along(i) * slope);
        }
    }
}

/// Adds the gradients of the weights, from the first row to the last.
pub fn layer_norm_weight_grads(x: &[f32], grads: &[f32], weight_grads: &mut [f32]) {
    let width = weight_grads.len().max(1);
    for (x, grads) in x.chunks_exact(width).zip(grads.chunks_exact(width)) {
        let (mean, scale) = mean_and_scale(x);
        for ((weight_grad, grad), x) in weight_grads.iter_mut().zip(grads).zip(x) {
            *weight_grad += grad * ((x - mean) * scale);
        }
    }
}

#[inline(always)]
fn normalize(x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let (mean, scale) = mean_and_scale(x);
    for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
        *y = (x - mean) * scale * weight + bias;
    }
}

/// Returns the mean of a row's numbers, and 1 divided by their standard deviation.
#[inline(always)]
fn mean_and_scale(x: &[f32]) -> (f32, f32) {
    let len = x.len() as f32;
    let mean = sum(x.len(), |i| x[i]) / len;
    let variance = sum(x.len(), |i| (x[i] - mean) * (x[i] - mean)) / len;
    (mean, 1.0 / math::sqrt(variance + EPSILON))
}

/// Adds every sixteenth number to one partial sum, and then the partial sums in order.
#[inline(always)]
fn sum(len: usize, at: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = len - len % LANES;
    let mut first = 0;
    while first < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += at(first + lane);
        }
        first += LANES;
    }
    for i in whole..len {
        lanes[i - whole] += at(i);
    }
    lanes.iter().fold(0.0, |sum, lane| sum + lane)
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn numbers(len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|i| scale * ((i * 37 % 101) as f32 - 47.0) / 25.0).collect()
    }

    #[test]
    fn rows_have_the_mean_of_the_biases_and_equal_numbers_become_them() {
        for width in [1, 3, 16, 33] {
            let x = numbers(4 * width, 30.0);
            let (ones, zeros, mut y) = (vec![1.0; width], vec![0.0; width], vec![9.0; 4 * width]);
            layer_norm(&x, &ones, &zeros, &mut y);
            for row in y.chunks(width) {
                let (mean, variance) = (row.iter().sum::<f32>(), row.iter().map(|y| y * y).sum::<f32>());
                assert!(mean.abs() < 1e-3 * width as f32, "{row:?}");
                assert!(width == 1 || (variance / width as f32 - 1.0).abs() < 1e-3, "{row:?}");
            }
            let (equal, bias) = (vec![3.5; width], numbers(width, 1.0));
            layer_norm(&equal, &ones, &bias, &mut y[..width]);
            assert_eq!(y[..width], bias);
        }
    }

    #[test]
    fn gradients_equal_differences_of_values() {
        for width in [2, 5, 18] {
            let (x, weight, bias) = (numbers(2 * width, 1.0), numbers(width, 0.7), numbers(width, 0.2));
            let outer: Vec<f32> = (0..2 * width).map(|i| (i as f32 * 1.3).sin()).collect();
            let loss = |x: &[f32], weight: &[f32]| {
                let mut y = vec![0.0; x.len()];
                layer_norm(x, weight, &bias, &mut y);
                y.iter().zip(&outer).map(|(y, outer)| f64::from(y * outer)).sum::<f64>()
            };
            let (mut grads, mut weight_grads) = (outer.clone(), vec![0.0; width]);
            layer_norm_back(&x, &weight, &mut grads);
            layer_norm_weight_grads(&x, &outer, &mut weight_grads);
            let step = 1e-2f32;
            let moved = |values: &[f32], i: usize, step: f32| {
                let mut values = values.to_vec();
                values[i] += step;
                values
            };
            for (i, grad) in grads.iter().enumerate() {
                let [above, below] = [step, -step].map(|step| loss(&moved(&x, i, step), &weight));
                let difference = (above - below) / f64::from(2.0 * step);
                assert!((difference - f64::from(*grad)).abs() < 2e-3, "{width} {i}: {grad} {difference}");
            }
            for (i, grad) in weight_grads.iter().enumerate() {
                let [above, below] = [step, -step].map(|step| loss(&x, &moved(&weight, i, step)));
                let difference = (above - below) / f64::from(2.0 * step);
                assert!((difference - f64::from(*grad)).abs() < 2e-3, "{width} {i}");
            }
        }
    }
}

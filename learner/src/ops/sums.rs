//! Sums, exponentials and logarithms with the same bits on every processor: candle's own add up in an order that
//! depends on its vectors, and take transcendental functions from the system.

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};
use rollmesh_core::math;

use super::{compute, contiguous, is_for_kernels};

/// Partial sums.
const LANES: usize = 16;

/// Returns the sums over the last dimension.
pub(crate) fn sum_last(x: &Tensor) -> Result<Tensor> {
    if is_for_kernels(x) { x.contiguous()?.apply_op1(SumsOp { keeps: x.rank() - 1 }) } else { x.sum(D::Minus1) }
}

/// Returns the sum of all elements, without dimension.
pub(crate) fn sum_all(x: &Tensor) -> Result<Tensor> {
    if is_for_kernels(x) { x.contiguous()?.apply_op1(SumsOp { keeps: 0 }) } else { x.sum_all() }
}

/// Returns the mean of all elements, without dimension.
pub(crate) fn mean_all(x: &Tensor) -> Result<Tensor> {
    sum_all(x)?.affine(1.0 / x.elem_count() as f64, 0.0)
}

/// Returns e to the power of every element.
pub(crate) fn exp(x: &Tensor) -> Result<Tensor> {
    if is_for_kernels(x) { x.contiguous()?.apply_op1(Exp) } else { x.exp() }
}

/// Returns the logarithms of the probabilities that logits `[rows, values]` stand for.
pub(crate) fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    if is_for_kernels(logits) {
        return logits.contiguous()?.apply_op1(LogSoftmax);
    }
    // The largest logit only keeps the exponentials in range; its gradient would cancel.
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sum)
}

/// Adds up every sixteenth element, and then these sums in order.
fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    chunks.iter().for_each(|chunk| lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x));
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += x);
    lanes[..values.len().min(LANES)].iter().fold(0.0, |sum, lane| sum + lane)
}

/// Sums over all dimensions but the first ones.
struct SumsOp {
    keeps: usize,
}

impl CustomOp1 for SumsOp {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (kept, summed) = layout.dims().split_at(self.keeps);
        let (rows, len) = (kept.iter().product(), summed.iter().product::<usize>());
        let x = contiguous(x, layout)?;
        let sums: Vec<f32> = (0..rows).map(|row| sum(&x[row * len..][..len])).collect();
        Ok((CpuStorage::F32(sums), kept.into()))
    }

    fn bwd(&self, x: &Tensor, _sums: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let ones = vec![1; x.rank() - self.keeps];
        Ok(Some(grad.reshape([&x.dims()[..self.keeps], &ones].concat())?.broadcast_as(x.shape())?))
    }
}

struct Exp;

impl CustomOp1 for Exp {
    fn name(&self) -> &'static str {
        "exp"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let exps = contiguous(x, layout)?.iter().map(|x| math::exp(*x)).collect();
        Ok((CpuStorage::F32(exps), layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, exps: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((grad * exps)?))
    }
}

struct LogSoftmax;

impl CustomOp1 for LogSoftmax {
    fn name(&self) -> &'static str {
        "log-softmax"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, values) = layout.shape().dims2()?;
        let mut logp = contiguous(logits, layout)?.to_vec();
        let mut exps = vec![0.0; values];
        for row in logp.chunks_exact_mut(values.max(1)) {
            let largest = row.iter().fold(f32::NEG_INFINITY, |largest, x| largest.max(*x));
            row.iter_mut().for_each(|x| *x -= largest);
            exps.iter_mut().zip(&*row).for_each(|(exp, x)| *exp = math::exp(*x));
            let log_sum = math::log(sum(&exps));
            row.iter_mut().for_each(|x| *x -= log_sum);
        }
        Ok((CpuStorage::F32(logp), layout.shape().clone()))
    }

    fn bwd(&self, _logits: &Tensor, logp: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grads = compute([&grad.contiguous()?, logp], |[grad, logp]| {
            let (_, values) = logp.layout.shape().dims2()?;
            let mut grads = grad.numbers()?.to_vec();
            let logps = logp.numbers()?.chunks_exact(values.max(1));
            for (grads, logps) in grads.chunks_exact_mut(values.max(1)).zip(logps) {
                let total = sum(grads);
                grads.iter_mut().zip(logps).for_each(|(grad, logp)| *grad -= math::exp(*logp) * total);
            }
            Ok((grads, logp.layout.shape().clone()))
        });
        grads.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn close(a: &Tensor, b: &Tensor) {
        let gap = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(gap < 1e-5, "{a} {b}");
    }

    #[test]
    fn values_and_gradients_equal_candles() {
        let values: Vec<f32> = (0..5 * 19).map(|i| (i as f32 * 1.7).sin()).collect();
        let x = Var::from_slice(&values, (5, 19), &Device::Cpu).unwrap();
        let weights = Tensor::from_vec((0..5).map(|i| i as f32 - 1.5).collect(), 5, &Device::Cpu).unwrap();
        let candles = |x: &Tensor| -> Result<(Tensor, Tensor)> {
            let shifted = x.broadcast_sub(&x.detach().max_keepdim(1)?)?;
            let logp = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(1)?.log()?)?;
            let sums = (logp.exp()? * &logp)?.sum(1)?;
            let total = ((&sums * &weights)?.mean_all()? + x.exp()?.sqr()?.sum_all()?)?;
            Ok((sums, total))
        };
        let ours = |x: &Tensor| -> Result<(Tensor, Tensor)> {
            let logp = log_softmax(x)?;
            let sums = sum_last(&(exp(&logp)? * &logp)?)?;
            let total = (mean_all(&(&sums * &weights)?)? + sum_all(&exp(x)?.sqr()?)?)?;
            Ok((sums, total))
        };
        let ((sums, total), (their_sums, their_total)) = (ours(&x).unwrap(), candles(&x).unwrap());
        close(&sums, &their_sums);
        let (grads, their_grads) = (total.backward().unwrap(), their_total.backward().unwrap());
        close(grads.get(&x).unwrap(), their_grads.get(&x).unwrap());
    }

    #[test]
    fn huge_logits_stay_finite() {
        let logits = Tensor::new(&[[1e4f32, -1e4]], &Device::Cpu).unwrap();
        assert_eq!(log_softmax(&logits).unwrap().to_vec2::<f32>().unwrap(), [[0.0, -2e4]]);
    }
}

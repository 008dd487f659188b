//! Layer normalisation, in the arithmetic of the acting policies.

use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor, bail};
use rollmesh_core::kernels::nets;

use super::{compute, contiguous, is_for_kernels, sum_of_rows};

/// Returns each row of `x` `[rows, width]` minus its mean, divided by its standard deviation, times `weight` `[width]`,
/// plus `bias` `[width]`.
pub(in super::super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if is_for_kernels(x) {
        return x.contiguous()?.apply_op3(weight, bias, LayerNorm);
    }
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centred.broadcast_div(&variance.affine(1.0, nets::EPSILON.into())?.sqrt()?)?;
    normal.broadcast_mul(weight)?.broadcast_add(bias)
}

struct LayerNorm;

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (weight, bias) = (contiguous(weight, weight_layout)?, contiguous(bias, bias_layout)?);
        check_width(x_layout, weight.len())?;
        let x = contiguous(x, x_layout)?;
        let mut y = vec![0.0; x.len()];
        nets::layer_norm(x, weight, bias, &mut y);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _bias: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (x, grad) = (&x.contiguous()?, &grad.contiguous()?);
        let x_grad = compute([grad, x, weight], |[grad, x, weight]| {
            let mut grads = grad.numbers()?.to_vec();
            nets::layer_norm_back(x.numbers()?, weight.numbers()?, &mut grads);
            Ok((grads, x.layout.shape().clone()))
        })?;
        let weight_grad = compute([grad, x], |[grad, x]| {
            let (_, width) = x.layout.shape().dims2()?;
            let mut grads = vec![0.0; width];
            nets::layer_norm_weight_grads(x.numbers()?, grad.numbers()?, &mut grads);
            Ok((grads, width.into()))
        })?;
        Ok((Some(x_grad), Some(weight_grad), Some(sum_of_rows(grad)?)))
    }
}

fn check_width(x: &Layout, wanted: usize) -> Result<()> {
    let (_, width) = x.shape().dims2()?;
    if width == wanted { Ok(()) } else { bail!("rows of {width} numbers for {wanted} weights") }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::{super::candle_only::by_candle, *};

    /// candle's own operations, which GPUs take, are the reference for values and gradients.
    #[test]
    fn values_and_gradients_equal_candles() {
        let wave = |len: usize, scale: f32| (0..len).map(|i| 0.5 + (i as f32 * scale).sin()).collect::<Vec<_>>();
        for (rows, width) in [(1, 2), (5, 19), (64, 33)] {
            let x = Var::from_vec(wave(rows * width, 1.7), (rows, width), &Device::Cpu).unwrap();
            let [weight, bias] =
                [0.9, 2.3].map(|scale| Var::from_vec(wave(width, scale), width, &Device::Cpu).unwrap());
            // Cubed, so that the gradient that comes in differs from element to element and has no sum of 0.
            let loss = |y: &Tensor| (y * y.sqr()?)?.mean_all();
            let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
            let close = |what: &str, ours: &Tensor, theirs: &Tensor| {
                let (gap, size) = (largest(&(ours - theirs).unwrap()).unwrap(), largest(theirs).unwrap());
                assert!(gap < 1e-5 * size.max(1.0), "{what} of {rows}x{width}: {gap} of {size}");
            };
            let ours = layer_norm(&x, &weight, &bias).unwrap();
            let theirs = by_candle(|| layer_norm(&x, &weight, &bias)).unwrap();
            close("values", &ours, &theirs);
            let [ours, theirs] = [ours, theirs].map(|y| loss(&y).unwrap().backward().unwrap());
            for (name, var) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
                close(name, ours.get(var).unwrap(), theirs.get(var).unwrap());
            }
        }
    }
}

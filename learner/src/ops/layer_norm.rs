//! Layer normalisation, in the arithmetic of the acting policies.

use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor, bail};
use rollmesh_core::kernels::nets;

use super::{compute, contiguous, sum_of_rows};

/// Returns each row of `x` `[rows, width]` minus its mean, divided by its standard deviation, times `weight` `[width]`,
/// plus `bias` `[width]`.
pub(in super::super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() {
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

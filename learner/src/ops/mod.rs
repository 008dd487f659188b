//! Operations of candle's autograd that are made for the CPU: the linear layer, tanh and the recurrence of an LSTM.
//!
//! candle's own product asks the system for the number of processors every time, which costs more than a small
//! product, and shares the work among that many threads. These run on the calling thread, so their bits depend on
//! neither. Their tanh is the acting policy's, which also vectorises. On a GPU candle's operations are used,
//! and the recurrence goes through the CPU.

mod lstm;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor};
use multiversion::multiversion;
use ndarray::{Array1, Array2, ArrayView2, Axis, ShapeBuilder, linalg::general_mat_mul};
use rollmesh_core::math;

pub(super) use self::lstm::{Steps, lstm};

/// `x w + b` for `x` `[rows, in]`, `w` `[in, out]`, `b` `[out]`.
pub(super) fn linear(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() { x.apply_op3(w, b, Linear) } else { x.matmul(w)?.broadcast_add(b) }
}

/// Hyperbolic tangent of every element.
pub(super) fn tanh(x: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() { x.apply_op1(Tanh) } else { x.tanh() }
}

struct Linear;

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (matrix(x, x_layout)?, matrix(w, w_layout)?);
        let bias = contiguous(b, b_layout)?;
        let mut y = Vec::with_capacity(x.nrows() * bias.len());
        (0..x.nrows()).for_each(|_| y.extend_from_slice(bias));
        let mut y = Array2::from_shape_vec((x.nrows(), bias.len()), y).map_err(Error::wrap)?;
        general_mat_mul(1.0, &x, &w, 1.0, &mut y);
        Ok(storage(y))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _b: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // Observations need no gradient.
        let x_grad = x.track_op().then(|| grad.apply_op2_no_bwd(&w.t()?, &Product)).transpose()?;
        let w_grad = x.t()?.apply_op2_no_bwd(grad, &Product)?;
        let b_grad = grad.apply_op1_no_bwd(&SumOfRows)?;
        Ok((x_grad, Some(w_grad), Some(b_grad)))
    }
}

/// Product of two matrices.
struct Product;

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (matrix(a, a_layout)?, matrix(b, b_layout)?);
        let mut product = Array2::zeros((a.nrows(), b.ncols()));
        general_mat_mul(1.0, &a, &b, 0.0, &mut product);
        Ok(storage(product))
    }
}

/// Sum of the rows of a matrix, from the first to the last.
struct SumOfRows;

impl CustomOp1 for SumOfRows {
    fn name(&self) -> &'static str {
        "sum-of-rows"
    }

    fn cpu_fwd(&self, a: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let a = matrix(a, layout)?;
        let mut sum = Array1::<f32>::zeros(a.ncols());
        a.axis_iter(Axis(0)).for_each(|row| sum += &row);
        Ok((CpuStorage::F32(sum.to_vec()), a.ncols().into()))
    }
}

struct Tanh;

impl CustomOp1 for Tanh {
    fn name(&self) -> &'static str {
        "tanh"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = contiguous(x, layout)?.to_vec();
        tanh_in_place(&mut y);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(grad.contiguous()?.apply_op2_no_bwd(y, &TanhGrad)?))
    }
}

/// Gradient of tanh's argument from the gradient of its result and the result.
struct TanhGrad;

impl CustomOp2 for TanhGrad {
    fn name(&self) -> &'static str {
        "tanh-grad"
    }

    fn cpu_fwd(
        &self,
        grad: &CpuStorage,
        grad_layout: &Layout,
        y: &CpuStorage,
        y_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (grad, y) = (contiguous(grad, grad_layout)?, contiguous(y, y_layout)?);
        let x_grad = grad.iter().zip(y).map(|(grad, y)| grad * (1.0 - y * y)).collect();
        Ok((CpuStorage::F32(x_grad), y_layout.shape().clone()))
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn tanh_in_place(values: &mut [f32]) {
    for value in values {
        *value = math::tanh(*value);
    }
}

fn matrix<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<ArrayView2<'a, f32>> {
    let dims = layout.shape().dims2()?;
    let &[row_stride, column_stride] = layout.stride() else {
        return Err(Error::RequiresContiguous { op: "matrix" });
    };
    let values = &storage.as_slice::<f32>()?[layout.start_offset()..];
    ArrayView2::from_shape(dims.strides((row_stride, column_stride)), values).map_err(Error::wrap)
}

fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: "elements" })?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// A matrix that was made here, so it is row-major from its first element.
fn storage(matrix: Array2<f32>) -> (CpuStorage, Shape) {
    let shape = matrix.dim().into();
    (CpuStorage::F32(matrix.into_raw_vec_and_offset().0), shape)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn var(values: &[f32], shape: (usize, usize)) -> Var {
        Var::from_tensor(&Tensor::from_slice(values, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn close(a: &Tensor, b: &Tensor) {
        let gap = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(gap < 1e-6, "{a} {b}");
    }

    /// The same layer with candle's own operations is the reference for values and gradients.
    #[test]
    fn layer_and_gradients_equal_candles() {
        let x = var(&[0.5, -1.0, 2.0, 0.1, 0.2, -0.3], (3, 2));
        let w = var(&[0.3, -0.4, 0.7, 0.9, 0.05, -0.6, 0.2, 0.8], (2, 4));
        let b = Var::from_slice(&[0.1f32, 0.2, -0.1, 0.0], 4, &Device::Cpu).unwrap();

        let ours = tanh(&linear(&x, &w, &b).unwrap()).unwrap();
        let candles = x.matmul(&w).unwrap().broadcast_add(&b).unwrap().tanh().unwrap();
        close(&ours, &candles);

        // Squared, so that the gradient that comes in differs from element to element.
        let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let candles = candles.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for var in [&x, &w, &b] {
            close(ours.get(var).unwrap(), candles.get(var).unwrap());
        }
    }

    #[test]
    fn observations_get_no_gradient() {
        let x = Tensor::ones((2, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let (w, b) = (var(&[1.0], (1, 1)), Var::from_slice(&[0.0f32], 1, &Device::Cpu).unwrap());
        let grads = linear(&x, &w, &b).unwrap().sum_all().unwrap().backward().unwrap();
        assert!(grads.get(&x).is_none() && grads.get(&w).is_some());
    }
}

//! Operations of candle's autograd, implemented for the CPU: the linear layer, convolutions, activations, the
//! recurrence of an LSTM, sums and exponentials.
//!
//! candle's own operations use the widest vectors of the processor and share products among its cores: their bits
//! depend on both. These run on the calling thread and add up in one order, in the kernels of the acting policies, so a
//! learner's weights have the same bits on every machine. On a GPU candle's operations are used, and the recurrence
//! goes through the CPU.

#[cfg(test)]
pub(super) mod candle_only;
mod convolution;
mod gru;
mod layer_norm;
mod lstm;
mod matrix;
mod sums;

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Device, Error, Layout, Result, Shape, Storage, Tensor};
use rollmesh_core::kernels::{Kernels, nets::Activation};

use self::matrix::{Matrix, product};
pub(super) use self::{
    convolution::convolution,
    gru::gru,
    layer_norm::layer_norm,
    lstm::{Steps, lstm},
    sums::{exp, log_softmax, mean_all, sum_all, sum_last},
};

/// Whether the kernels compute with a tensor: on the CPU. Elsewhere candle's operations do.
fn is_for_kernels(x: &Tensor) -> bool {
    #[cfg(test)]
    if candle_only::is_set() {
        return false;
    }
    x.device().is_cpu()
}

/// Returns `x w + b` for `x` `[rows, in]`, `w` `[in, out]`, `b` `[out]`.
pub(super) fn linear(x: &Tensor, w: &Tensor, b: &Tensor, kernels: Kernels) -> Result<Tensor> {
    if is_for_kernels(x) {
        return x.apply_op3(w, b, Linear(kernels));
    }
    // GPUs multiply no columns of a wider matrix, such as the hidden states of a recurrence's trace.
    x.contiguous()?.matmul(w)?.broadcast_add(b)
}

/// Applies a function to every element.
pub(super) fn activate(x: &Tensor, activation: Activation, kernels: Kernels) -> Result<Tensor> {
    match activation {
        Activation::Linear => Ok(x.clone()),
        _ if is_for_kernels(x) => x.contiguous()?.apply_op1(Activate(activation, kernels)),
        Activation::Tanh => x.tanh(),
        // candle's own has the slope 1 at 0, where PyTorch's and the kernels' have 0.
        Activation::Relu => x * x.detach().gt(0.0f32)?.to_dtype(x.dtype())?,
        Activation::Silu => x.silu(),
        Activation::Gelu => x.gelu_erf(),
        Activation::Elu => x.elu(1.0),
    }
}

/// Repeats numbers `[len]` as rows `[rows, len]`.
pub(super) fn repeat(numbers: &Tensor, rows: usize) -> Result<Tensor> {
    if is_for_kernels(numbers) {
        numbers.contiguous()?.apply_op1(Repeat(rows))
    } else {
        numbers.broadcast_as((rows, numbers.elem_count()))
    }
}

struct Repeat(usize);

impl CustomOp1 for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn cpu_fwd(&self, numbers: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let numbers = contiguous(numbers, layout)?;
        Ok((CpuStorage::F32(numbers.repeat(self.0)), (self.0, numbers.len()).into()))
    }

    fn bwd(&self, _numbers: &Tensor, _rows: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        sum_of_rows(grad).map(Some)
    }
}

struct Linear(Kernels);

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
        let (x, w) = (Matrix::of(x, x_layout)?, Matrix::of(w, w_layout)?);
        let (y, shape) = product(&self.0, x, w, contiguous(b, b_layout)?)?;
        Ok((CpuStorage::F32(y), shape))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _b: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = &grad.contiguous()?;
        // Observations need no gradient.
        let x_grad = x.track_op().then(|| product_of(grad, &w.t()?, &self.0)).transpose()?;
        Ok((x_grad, Some(product_of(&x.t()?, grad, &self.0)?), Some(sum_of_rows(grad)?)))
    }
}

/// A tensor in the CPU's memory.
#[derive(Clone, Copy)]
struct Input<'a> {
    storage: &'a Storage,
    layout: &'a Layout,
}

impl<'a> Input<'a> {
    fn cpu(&self) -> Result<&'a CpuStorage> {
        match self.storage {
            Storage::Cpu(storage) => Ok(storage),
            _ => Err(Error::Msg("a gradient of the CPU's operations is on another device".into())),
        }
    }

    fn numbers(&self) -> Result<&'a [f32]> {
        contiguous(self.cpu()?, self.layout)
    }

    fn matrix(&self) -> Result<Matrix<'a>> {
        Matrix::of(self.cpu()?, self.layout)
    }
}

/// Computes numbers of a shape from tensors in the CPU's memory. The result has no gradient of its own: gradients are such
/// results.
fn compute<const N: usize>(
    tensors: [&Tensor; N],
    numbers: impl FnOnce([Input<'_>; N]) -> Result<(Vec<f32>, Shape)>,
) -> Result<Tensor> {
    let memory = tensors.map(Tensor::storage_and_layout);
    let (numbers, shape) = numbers(memory.each_ref().map(|(storage, layout)| Input { storage, layout }))?;
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

/// Returns the product of two matrices.
fn product_of(a: &Tensor, b: &Tensor, kernels: &Kernels) -> Result<Tensor> {
    compute([a, b], |[a, b]| {
        let b = b.matrix()?;
        product(kernels, a.matrix()?, b, &vec![0.0; b.columns])
    })
}

/// Returns the sum of the rows of a matrix, from the first to the last.
fn sum_of_rows(a: &Tensor) -> Result<Tensor> {
    compute([a], |[a]| {
        let a = a.matrix()?;
        let mut sums = vec![0.0f32; a.columns];
        for row in a.row_major().chunks_exact(a.columns.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        Ok((sums, a.columns.into()))
    })
}

struct Activate(Activation, Kernels);

impl CustomOp1 for Activate {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = contiguous(x, layout)?.to_vec();
        (self.1.activate)(self.0, &mut y);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grads = compute([&grad.contiguous()?, x, y], |[grad, x, y]| {
            let mut grads = grad.numbers()?.to_vec();
            (self.1.activate_back)(self.0, x.numbers()?, y.numbers()?, &mut grads);
            Ok((grads, y.layout.shape().clone()))
        });
        grads.map(Some)
    }
}

fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: "elements" })?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    fn var(values: &[f32], shape: (usize, usize)) -> Var {
        Var::from_tensor(&Tensor::from_slice(values, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn close(a: &Tensor, b: &Tensor) {
        let gap = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(gap < 1e-6, "{a} {b}");
    }

    /// The reference for values and gradients is the same layer with candle's own operations.
    #[test]
    fn layer_and_gradients_equal_candles() {
        let x = var(&[0.5, -1.0, 2.0, 0.1, 0.2, -0.3], (3, 2));
        let w = var(&[0.3, -0.4, 0.7, 0.9, 0.05, -0.6, 0.2, 0.8], (2, 4));
        let b = Var::from_slice(&[0.1f32, 0.2, -0.1, 0.0], 4, &Device::Cpu).unwrap();

        type Reference = fn(&Tensor) -> Result<Tensor>;
        let activations: [(Activation, Reference); 6] = [
            (Activation::Tanh, Tensor::tanh),
            (Activation::Relu, Tensor::relu),
            (Activation::Silu, Tensor::silu),
            (Activation::Gelu, Tensor::gelu_erf),
            (Activation::Elu, |x| x.elu(1.0)),
            (Activation::Linear, |x| Ok(x.clone())),
        ];
        for (activation, reference) in activations {
            let ours = linear(&x, &w, &b, Kernels::PORTABLE).unwrap();
            let ours = activate(&ours, activation, Kernels::PORTABLE).unwrap();
            let candles = reference(&x.matmul(&w).unwrap().broadcast_add(&b).unwrap()).unwrap();
            close(&ours, &candles);

            // Squared, so that the gradient that comes in differs from element to element.
            let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let candles = candles.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            for var in [&x, &w, &b] {
                close(ours.get(var).unwrap(), candles.get(var).unwrap());
            }
        }
    }

    #[test]
    fn observations_get_no_gradient() {
        let x = Tensor::ones((2, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let (w, b) = (var(&[1.0], (1, 1)), Var::from_slice(&[0.0f32], 1, &Device::Cpu).unwrap());
        let grads = linear(&x, &w, &b, Kernels::PORTABLE).unwrap().sum_all().unwrap().backward().unwrap();
        assert!(grads.get(&x).is_none() && grads.get(&w).is_some());
    }
}

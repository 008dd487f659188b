//! Convolutions of images in the order row, column, channel.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rollmesh_core::kernels::{
    Kernels,
    nets::{ConvShape, Dense},
};

use super::{Input, compute, contiguous, is_for_kernels, matrix::transposed, sum_of_rows};

/// Approximate number of elements of the patches that are processed together.
const PATCHES: usize = 1 << 16;

/// Returns `[images, places x filters]` for `x` `[images, height x width x channels]`, `w` `[height, width, channels,
/// filters]` of a patch, `b` `[filters]`.
pub(in super::super) fn convolution(
    x: &Tensor,
    w: &Tensor,
    b: &Tensor,
    shape: &ConvShape,
    kernels: Kernels,
) -> Result<Tensor> {
    if is_for_kernels(x) {
        return x.contiguous()?.apply_op3(w, b, Convolution { shape: *shape, kernels });
    }
    let ([height, width, channels], [rows, columns]) = (shape.input, shape.places);
    let covered = [0, 1].map(|side| (shape.places[side] - 1) * shape.stride[side] + shape.kernel[side]);
    let x = x.reshape(((), height, width, channels))?;
    let padded = [0, 1].into_iter().try_fold(x, |x, side| {
        let after = covered[side].saturating_sub(shape.input[side] + shape.padding[side]);
        x.pad_with_zeros(side + 1, shape.padding[side], after)
    })?;
    let y = if shape.stride[0] == shape.stride[1] {
        // Only what the patches cover: candle's gradient expects the same remainder on both sides.
        let x = [0, 1].into_iter().try_fold(padded, |x, side| x.narrow(side + 1, 0, covered[side]))?;
        let x = x.permute((0, 3, 1, 2))?.contiguous()?;
        x.conv2d(&w.permute((3, 2, 0, 1))?.contiguous()?, 0, shape.stride[0], 1, 1)?.permute((0, 2, 3, 1))?
    } else {
        product_of_patches(&padded, w, shape)?
    };
    y.broadcast_add(b)?.reshape(((), rows * columns * shape.filters))
}

/// The convolution of padded images `[images, height, width, channels]` as one product: candle's own has one stride for both
/// sides.
fn product_of_patches(x: &Tensor, w: &Tensor, shape: &ConvShape) -> Result<Tensor> {
    let ([rows, columns], [height, width]) = (shape.places, shape.kernel);
    // Rows and columns of all patches, one patch after the other.
    let patches = [0, 1].into_iter().try_fold(x.contiguous()?, |x, side| {
        let (kernel, stride) = (shape.kernel[side], shape.stride[side]);
        let of_patch = |place: usize| (place * stride..place * stride + kernel).map(|at| at as u32);
        let indices: Vec<u32> = (0..shape.places[side]).flat_map(of_patch).collect();
        x.index_select(&Tensor::new(indices, x.device())?, side + 1)
    })?;
    let (images, ..) = patches.dims4()?;
    let patches = patches.reshape(&[images, rows, height, columns, width, shape.input[2]])?;
    let patches = patches.permute([0, 1, 3, 2, 4, 5])?.reshape(((), shape.patch_len()))?;
    patches.matmul(&w.reshape(((), shape.filters))?)?.reshape((images, rows, columns, shape.filters))
}

#[derive(Clone, Copy)]
struct Convolution {
    shape: ConvShape,
    kernels: Kernels,
}

impl Convolution {
    /// Returns the number of images that are processed together.
    fn block(&self) -> usize {
        (PATCHES / (self.shape.num_patches() * self.shape.patch_len()).max(1)).max(1)
    }

    /// Returns the patches of images, one after the other.
    fn patches(&self, images: &[f32]) -> Vec<f32> {
        let (inputs, len) = (self.shape.inputs(), self.shape.num_patches() * self.shape.patch_len());
        let mut patches = vec![0.0; images.len() / inputs * len];
        let pairs = images.chunks_exact(inputs).zip(patches.chunks_exact_mut(len));
        pairs.for_each(|(image, patches)| self.shape.patches(image, patches));
        patches
    }

    /// Checks the lengths, since the code here indexes without further checks.
    fn check(&self, len: usize, width: usize) -> Result<usize> {
        if !len.is_multiple_of(width) {
            bail!("{len} numbers are no rows of {width} for {:?}", self.shape)
        }
        Ok(len / width)
    }
}

impl CustomOp3 for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
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
        let (x, dense) = (contiguous(x, x_layout)?, Dense::pack(&[contiguous(w, w_layout)?], contiguous(b, b_layout)?));
        let (inputs, outputs) = (self.shape.inputs(), self.shape.outputs());
        let images = self.check(x.len(), inputs)?;
        let mut y = vec![0.0; images * outputs];
        for (x, y) in x.chunks(self.block() * inputs).zip(y.chunks_mut(self.block() * outputs)) {
            (self.kernels.linear)(&dense, &self.patches(x), y);
        }
        Ok((CpuStorage::F32(y), (images, outputs).into()))
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
        let x_grad = x.track_op().then(|| compute([grad, w], |[grad, w]| self.image_grad(grad, w))).transpose()?;
        let w_grad = compute([&x.contiguous()?, grad], |[x, grad]| self.filter_grad(x, grad))?;
        let b_grad = sum_of_rows(&grad.reshape(((), self.shape.filters))?)?;
        Ok((x_grad, Some(w_grad), Some(b_grad)))
    }
}

impl Convolution {
    /// Returns the gradient of the images, from that of the outputs and the filters.
    fn image_grad(&self, grad: Input<'_>, w: Input<'_>) -> Result<(Vec<f32>, Shape)> {
        let Self { shape, kernels } = self;
        let (grad, w) = (grad.numbers()?, w.numbers()?);
        let (inputs, outputs, len) = (shape.inputs(), shape.outputs(), shape.patch_len());
        let images = self.check(grad.len(), outputs)?;
        let dense = Dense::pack(&[&transposed(w, len, shape.filters)], &vec![0.0; len]);
        let mut x_grad = vec![0.0; images * inputs];
        let block = self.block();
        let mut patches = vec![0.0; block.min(images) * shape.num_patches() * len];
        for (grad, x_grad) in grad.chunks(block * outputs).zip(x_grad.chunks_mut(block * inputs)) {
            let patches = &mut patches[..grad.len() / shape.filters * len];
            (kernels.linear)(&dense, grad, patches);
            let pairs = x_grad.chunks_exact_mut(inputs).zip(patches.chunks_exact(shape.num_patches() * len));
            pairs.for_each(|(image, patches)| shape.add_patches(patches, image));
        }
        Ok((x_grad, (images, inputs).into()))
    }

    /// Returns the gradient of the filters, from the images and the gradient of the outputs: block after block, and in
    /// each the sums in the order of the patches.
    fn filter_grad(&self, x: Input<'_>, grad: Input<'_>) -> Result<(Vec<f32>, Shape)> {
        let Self { shape, kernels } = self;
        let (x, grad) = (x.numbers()?, grad.numbers()?);
        let (filters, len, block) = (shape.filters, shape.patch_len(), self.block());
        let mut sums = vec![0.0f32; filters * len];
        let mut part = vec![0.0; filters * len];
        let zeros = vec![0.0; len];
        let mut dense = None::<Dense>;
        for (x, grad) in x.chunks(block * shape.inputs()).zip(grad.chunks(block * shape.outputs())) {
            // Patches as weights: they are more numbers than the gradient, which has to be transposed.
            let patches = self.patches(x);
            let count = grad.len() / filters;
            match &mut dense {
                Some(dense) if dense.inputs() == count => dense.repack(&[&patches], &zeros),
                dense => *dense = Some(Dense::pack(&[&patches], &zeros)),
            }
            if let Some(dense) = &dense {
                (kernels.linear)(dense, &transposed(grad, count, filters), &mut part);
            }
            sums.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x);
        }
        let [height, width] = shape.kernel;
        let w_grad = transposed(&sums, filters, len);
        Ok((w_grad, (height, width, shape.input[2], filters).into()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::{super::candle_only::by_candle, *};

    fn wave(len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * scale).sin()).collect()
    }

    /// Relative to the largest number: sums over up to 150 images are in the hundreds, and candle's have another order.
    fn close(a: &Tensor, b: &Tensor) {
        let largest = |x: &Tensor| x.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        let (gap, size) = (largest(&(a - b).unwrap()), largest(b));
        assert!(gap < 1e-5 * size.max(1.0), "{gap} of {size}");
    }

    fn vars(images: usize, shape: &ConvShape) -> [Var; 3] {
        let ([kernel_height, kernel_width], channels) = (shape.kernel, shape.input[2]);
        let w = [kernel_height, kernel_width, channels, shape.filters];
        let var =
            |scale, dims: &[usize]| Var::from_vec(wave(dims.iter().product(), scale), dims, &Device::Cpu).unwrap();
        [var(0.37, &[images, shape.inputs()]), var(0.73, &w), var(1.1, &[shape.filters])]
    }

    /// Compares values and gradients.
    #[track_caller]
    fn close_with_gradients(ours: &Tensor, theirs: &Tensor, vars: &[Var; 3]) {
        close(ours, theirs);
        // Squared, so that the gradient that comes in differs from element to element.
        let images = ours.dim(0).unwrap() as f64;
        let grads = |y: &Tensor| (y.sqr().unwrap().sum_all().unwrap() / images).unwrap().backward().unwrap();
        let (ours, theirs) = (grads(ours), grads(theirs));
        for var in vars {
            close(ours.get(var).unwrap(), theirs.get(var).unwrap());
        }
    }

    /// candle's own convolution is the reference for values and gradients.
    #[test]
    fn values_and_gradients_equal_candles() {
        // More images than a block has, padded and not.
        for (images, height, padding, stride, places, filters) in
            [(3, 6, [0, 0], 1, [4, 3], 5), (150, 6, [1, 1], 1, [6, 5], 16), (2, 5, [1, 1], 2, [3, 3], 3)]
        {
            let input = [height, 5, 3];
            let shape = ConvShape { input, filters, kernel: [3, 3], stride: [stride; 2], padding, places };
            let vars = vars(images, &shape);
            let [x, w, b] = &vars;
            let ours = convolution(x, w, b, &shape, Kernels::PORTABLE).unwrap();
            let nchw = x.reshape((images, height, 5, 3)).unwrap().permute((0, 3, 1, 2)).unwrap();
            let filter = w.permute((3, 2, 0, 1)).unwrap();
            let theirs = nchw.conv2d(&filter, padding[0], stride, 1, 1).unwrap();
            let theirs = theirs.permute((0, 2, 3, 1)).unwrap().broadcast_add(b).unwrap();
            close_with_gradients(&ours, &theirs.reshape((images, shape.outputs())).unwrap(), &vars);
        }
    }

    /// Padding before and after, on both sides or one; images with a remainder that no patch covers; strides that differ.
    #[test]
    fn gpus_take_the_same_convolutions() {
        for (input, kernel, stride, padding, places) in [
            ([6, 5, 3], [3, 3], [1, 1], [1, 1], [6, 5]),
            ([7, 6, 2], [4, 3], [2, 2], [1, 0], [4, 3]),
            ([8, 9, 2], [3, 2], [2, 2], [0, 0], [3, 4]),
            ([9, 8, 2], [3, 2], [2, 1], [0, 0], [4, 7]),
            ([9, 8, 3], [3, 4], [2, 3], [1, 1], [5, 3]),
            ([7, 7, 1], [2, 3], [3, 1], [0, 1], [3, 7]),
        ] {
            let shape = ConvShape { input, filters: 4, kernel, stride, padding, places };
            let vars = vars(3, &shape);
            let [x, w, b] = &vars;
            let ours = convolution(x, w, b, &shape, Kernels::PORTABLE).unwrap();
            let theirs = by_candle(|| convolution(x, w, b, &shape, Kernels::PORTABLE)).unwrap();
            close_with_gradients(&ours, &theirs, &vars);
        }
    }
}

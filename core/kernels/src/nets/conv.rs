//! Convolutions over images whose numbers stand by row, column and channel.

use alloc::vec::Vec;

use super::{
    Dense,
    dense::{PANEL, Rows},
    reserve, stride,
};

/// Sizes of a convolution. Images are padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Height, width and channels of an image.
    pub input: [usize; 3],
    /// Outputs at each place.
    pub filters: usize,
    /// Height and width of a patch.
    pub kernel: [usize; 2],
    /// Rows and columns from one patch to the next.
    pub stride: [usize; 2],
    /// Rows of zeros above the image, and columns left of it.
    pub padding: [usize; 2],
    /// Places: how many below each other and side by side.
    pub places: [usize; 2],
}

impl ConvShape {
    /// Returns the number of elements of an image.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.input[0] * self.input[1] * self.input[2]
    }

    /// Returns the number of elements of a patch.
    #[must_use]
    pub const fn patch_len(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.input[2]
    }

    /// Returns the number of patches of an image.
    #[must_use]
    pub const fn num_patches(&self) -> usize {
        self.places[0] * self.places[1]
    }

    /// Returns the number of outputs of all filters for an image.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.num_patches() * self.filters
    }

    /// Writes the patches of an image one after the other: `[patches][kernel rows][kernel columns][channels]`.
    pub fn patches(&self, image: &[f32], patches: &mut [f32]) {
        let len = self.kernel[1] * self.input[2];
        self.for_each_run(|at, run, start, end| {
            let out = &mut patches[run * len..][..len];
            let Some(at) = at else { return out.fill(0.0) };
            out[..start].fill(0.0);
            out[start..end].copy_from_slice(&image[at..][..end - start]);
            out[end..].fill(0.0);
        });
    }

    /// Adds the numbers of patches to their places in an image, patch after patch.
    pub fn add_patches(&self, patches: &[f32], image: &mut [f32]) {
        let len = self.kernel[1] * self.input[2];
        self.for_each_run(|at, run, start, end| {
            let Some(at) = at else { return };
            let run = &patches[run * len..][start..end];
            image[at..].iter_mut().zip(run).for_each(|(sum, x)| *sum += x);
        });
    }

    /// Visits the rows of all patches, in order: where in the image it begins, `None` if it is padding as a whole, its
    /// number, and from where to where it has numbers of the image.
    #[inline(always)]
    fn for_each_run(&self, mut visit: impl FnMut(Option<usize>, usize, usize, usize)) {
        let [height, width, channels] = self.input;
        let mut run = 0;
        for y in 0..self.places[0] {
            for x in 0..self.places[1] {
                let left = x * self.stride[1];
                // Columns of the patch that are in the image.
                let start = self.padding[1].saturating_sub(left).min(self.kernel[1]);
                let end = (width + self.padding[1]).saturating_sub(left).clamp(start, self.kernel[1]);
                for k in 0..self.kernel[0] {
                    let row = (y * self.stride[0] + k).wrapping_sub(self.padding[0]);
                    let at = (row < height && start < end)
                        .then(|| (row * width + left + start - self.padding[1]) * channels);
                    visit(at, run, start * channels, end * channels);
                    run += 1;
                }
            }
        }
    }
}

/// A convolution with its filters.
#[derive(Clone, Debug)]
pub struct Conv {
    shape: ConvShape,
    filters: Dense,
}

/// Memory that convolutions need meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct ConvBuffers {
    patches: Vec<f32>,
    places: Vec<f32>,
}

impl Conv {
    /// Creates a convolution with these filters, a dense layer over patches. The caller has checked that they fit the
    /// shape.
    #[must_use]
    pub const fn new(shape: ConvShape, filters: Dense) -> Self {
        Self { shape, filters }
    }

    /// Returns its sizes.
    #[must_use]
    pub const fn shape(&self) -> &ConvShape {
        &self.shape
    }

    pub(super) const fn filters_mut(&mut self) -> &mut Dense {
        &mut self.filters
    }

    /// Applies the filters to images, one after the other, to rows at a distance of [`stride`].
    #[inline(always)]
    pub(super) fn forward<const ROWS: usize, const LANES: usize>(
        &self,
        input: Rows<'_>,
        count: usize,
        buffers: &mut ConvBuffers,
        output: &mut [f32],
    ) {
        let ConvBuffers { patches, places } = buffers;
        let (shape, filters) = (&self.shape, self.shape.filters);
        let (num_patches, patch_len) = (shape.num_patches(), shape.patch_len());
        reserve(patches, num_patches * patch_len);
        reserve(places, num_patches * stride(filters));
        for row in 0..count {
            let output = &mut output[row * stride(shape.outputs())..][..shape.outputs()];
            shape.patches(input.row(row, shape.inputs()), patches);
            // Whole panels have no place between the outputs of two patches.
            let is_whole = filters.is_multiple_of(PANEL);
            let (sums, distance) = if is_whole { (&mut *output, filters) } else { (&mut places[..], stride(filters)) };
            let patches = Rows { values: patches, stride: patch_len };
            self.filters.forward::<ROWS, LANES>(patches, num_patches, sums, distance);
            if !is_whole {
                let rows = output.chunks_exact_mut(filters).zip(places.chunks(stride(filters)));
                rows.for_each(|(output, row)| output.copy_from_slice(&row[..filters]));
            }
        }
    }
}

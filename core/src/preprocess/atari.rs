//! Preprocesses screens and memory of an Atari console.

use super::{
    PreprocessError,
    image::{Interpolation, Size, each, luma},
};
use crate::{
    column::{DType, Element, RowShape},
    space::{BoxSpace, Space},
};

/// The preprocessing of an Atari console's screens (210 x 160 pixels of three colours), with RLlib's names and
/// defaults.
///
/// The 25 rows at the top and at the bottom, which show scores, are cropped. The rest is resized by
/// [area](Interpolation::Area) to a square, optionally converted to grey, and scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtariOptions {
    /// Height and width of the result, in pixels.
    pub dim: u16,
    /// One channel of [grey](super::image::grey) instead of three colours.
    pub grayscale: bool,
    /// Numbers from -1 to almost 1 ([`to_zero_mean`](super::image::to_zero_mean)) instead of 0 to 1
    /// ([`to_unit`](super::image::to_unit)).
    pub zero_mean: bool,
}

impl Default for AtariOptions {
    fn default() -> Self {
        Self { dim: 84, grayscale: false, zero_mean: true }
    }
}

const WIDTH: u16 = 160;
/// Remaining rows of 210.
const CROPPED: Size = Size::new(160, WIDTH);
const COLOURS: usize = 3;
const CUT: usize = 25 * WIDTH as usize * COLOURS;

/// Bounds of `(x - 128) / 128`.
pub(super) const RAM_BOUNDS: (f64, f64) = (-1.0, 127.0 / 128.0);

pub(super) fn screen() -> Space {
    Space::uniform(DType::U8, RowShape::new(&[210, 160, 3]).unwrap_or(RowShape::SCALAR), 0.0, 255.0)
}

pub(super) fn is_screen(space: &BoxSpace) -> bool {
    space.dtype() == DType::U8 && space.shape().dims() == [210, 160, 3]
}

pub(super) fn is_ram(space: &BoxSpace) -> bool {
    space.dtype() == DType::U8 && space.shape().dims() == [128]
}

pub(super) fn zero_mean(x: impl Element) -> f32 {
    (x.to_f64() as f32 - 128.0) / 128.0
}

impl AtariOptions {
    pub(super) const fn bounds(self) -> (f64, f64) {
        if self.zero_mean { RAM_BOUNDS } else { (0.0, 1.0) }
    }

    pub(super) fn shape(self) -> RowShape {
        let dim = u32::from(self.dim);
        let dims = [dim, dim, if self.grayscale { 1 } else { COLOURS as u32 }];
        // At most 2^32, which RowShape rejects.
        RowShape::new(&dims).unwrap_or(RowShape::vector(u32::MAX))
    }

    pub(super) fn write<T: Element>(self, screen: &[T], out: &mut [f32]) -> Result<(), PreprocessError> {
        let screen = u8::rows(T::erase_rows(screen)).unwrap_or_default();
        let cropped = screen.get(CUT..screen.len().saturating_sub(CUT)).unwrap_or_default();
        let scale = |x: u8| if self.zero_mean { zero_mean(x) } else { f32::from(x) / 255.0 };
        let mut results = out.iter_mut();
        let mut write = |x: u8| {
            if let Some(result) = results.next() {
                *result = scale(x);
            }
        };
        let (mut pixel, mut filled) = ([0; COLOURS], 0);
        each(cropped, CROPPED, Size::new(self.dim, self.dim), Interpolation::Area, |x| {
            if !self.grayscale {
                return write(x);
            }
            pixel[filled] = x;
            filled = (filled + 1) % COLOURS;
            if filled == 0 {
                write(luma(pixel));
            }
        })?;
        Ok(())
    }
}

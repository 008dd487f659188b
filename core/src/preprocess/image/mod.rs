//! Images as bytes: grey scale, resizing, scaling to floats.
//!
//! Images are rows of bytes, row-major, the channels of a pixel side by side, as Gymnasium's: height x width x
//! channels. Everything is integer arithmetic, rounded once at the end, half up; nothing allocates.
//!
//! ```
//! use rollmesh_core::preprocess::image::{Interpolation, Size, grey, resize};
//!
//! let red_and_white = [255, 0, 0, 255, 255, 255];
//! let mut row = [0; 2];
//! grey(&red_and_white, &mut row)?;
//! assert_eq!(row, [76, 255]);
//!
//! let mut pixel = [0];
//! resize(&row, Size::new(1, 2), &mut pixel, Size::new(1, 1), Interpolation::Area)?;
//! assert_eq!(pixel, [166]);
//! # Ok::<(), rollmesh_core::preprocess::image::ImageError>(())
//! ```

mod area;
mod colour;
mod resize;

pub(crate) use area::AreaResizer;
pub(super) use colour::luma;
pub use colour::{grey, to_unit, to_zero_mean};
pub(super) use resize::each;
pub use resize::{Interpolation, resize};

/// Height and width of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of rows.
    pub height: u16,
    /// Pixels in a row.
    pub width: u16,
}

impl Size {
    /// An image of so many rows, and so many pixels in each.
    #[must_use]
    pub const fn new(height: u16, width: u16) -> Self {
        Self { height, width }
    }

    /// Number of pixels.
    #[must_use]
    pub const fn pixels(self) -> usize {
        self.height as usize * self.width as usize
    }
}

/// Why an image could not be worked on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The buffer for the result does not fit the image.
    #[error("the result has {wanted} elements, the buffer {found}")]
    WrongOutput {
        /// Elements of the result.
        wanted: usize,
        /// Elements of the buffer.
        found: usize,
    },
    /// The bytes are no whole pixels of red, green and blue.
    #[error("{0} bytes make no pixels of three colours")]
    NotRgb(usize),
    /// The bytes do not make an image of that size.
    #[error("{bytes} bytes make no image of {height} x {width} pixels")]
    WrongSize {
        /// Number of bytes.
        bytes: usize,
        /// Rows of the image.
        height: u16,
        /// Pixels in a row.
        width: u16,
    },
    /// Nothing can be shown on an image without pixels.
    #[error("the result has no pixels")]
    NoPixels,
}

//! Processes images as bytes: grey scale, resizing, scaling to floats.
//!
//! Images are bytes in row-major order with adjacent channels, as in Gymnasium: height x width x channels. All arithmetic is
//! in integers and rounds once at the end, half up; no function allocates.
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

pub use area::AreaResizer;
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
    /// Returns the size of an image.
    #[must_use]
    pub const fn new(height: u16, width: u16) -> Self {
        Self { height, width }
    }

    /// Returns the number of pixels.
    #[must_use]
    pub const fn pixels(self) -> usize {
        self.height as usize * self.width as usize
    }
}

/// The reason why an image could not be processed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The output buffer does not fit the image.
    #[error("the result has {wanted} elements, the buffer {found}")]
    WrongOutput {
        /// Required number of elements.
        wanted: usize,
        /// Elements of the buffer.
        found: usize,
    },
    /// The bytes do not form whole pixels of red, green and blue.
    #[error("{0} bytes make no pixels of three colours")]
    NotRgb(usize),
    /// The bytes do not form an image of this size.
    #[error("{bytes} bytes make no image of {height} x {width} pixels")]
    WrongSize {
        /// Number of bytes.
        bytes: usize,
        /// Rows of the image.
        height: u16,
        /// Pixels in a row.
        width: u16,
    },
    /// The output image has no pixels.
    #[error("the result has no pixels")]
    NoPixels,
}

//! Rendering of environments without a display.
//!
//! A [`Frame`] is a picture, a [`Canvas`] draws shapes into it, a [`Film`] is many of them in a few bytes, and [`palette`] has the colours of this crate's
//! environments. A picture depends on a state and nothing else, so it is the same on every machine: every byte follows from
//! `+ - * /`, square roots and integers.
//!
//! ```
//! use rollmesh_core::env::{AnyVectorEnv as _, CartPole, Frame};
//! use rollmesh_core::kernels::Kernels;
//!
//! let env = CartPole::new(2, Kernels::PORTABLE);
//! let mut frame = Frame::new();
//! assert!(env.render_at(1, &mut frame));
//! assert_eq!(frame.rgb().len(), 300 * 200 * 3);
//! assert!(!env.render_at(2, &mut frame)); // there is no such lane
//! ```

mod canvas;
mod film;
pub mod palette;
mod scan;

pub use canvas::{Canvas, CanvasPoint};
pub use film::{Film, FilmWriter};

use crate::prelude::*;

/// Red, green and blue.
pub type Colour = [u8; 3];

/// A picture: rows of pixels from the top, each red, green and blue. A [`Canvas`] draws on one. If rendering has failed, it holds
/// the reason, since `render` only returns whether there is a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    failure: Option<String>,
}

impl Frame {
    /// Most pixels in each direction.
    pub const MAX_SIDE: u32 = 4096;

    /// Creates an empty picture, which drawing resizes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Resizes the picture, up to [`MAX_SIDE`](Self::MAX_SIDE) in each direction, and fills it with one colour.
    pub fn fill(&mut self, width: u32, height: u32, colour: Colour) {
        (self.width, self.height) = (width.min(Self::MAX_SIDE), height.min(Self::MAX_SIDE));
        self.rgb.clear();
        let len = 3 * self.width as usize * self.height as usize;
        self.rgb.extend(colour.into_iter().take(len));
        while self.rgb.len() < len {
            self.rgb.extend_from_within(..self.rgb.len().min(len - self.rgb.len()));
        }
    }

    /// Sets the pixels, 3 bytes each; returns false, without a change, if their number is wrong or the picture is too large.
    #[must_use]
    pub fn set(&mut self, width: u32, height: u32, rgb: &[u8]) -> bool {
        let fits = width.max(height) <= Self::MAX_SIDE && rgb.len() == 3 * width as usize * height as usize;
        if fits {
            (self.width, self.height) = (width, height);
            self.rgb.clear();
            self.rgb.extend_from_slice(rgb);
        }
        fits
    }

    /// Stores why there is no picture, for an environment that has pictures and cannot render this one; returns false, as its
    /// `render` then does.
    #[must_use]
    pub fn fail(&mut self, reason: String) -> bool {
        self.failure = Some(reason);
        false
    }

    /// Takes the reason of a `render` that has returned false; `None` if the environment has no picture.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Returns the number of pixels in a row.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the pixels: height x width x 3 bytes.
    #[must_use]
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Returns the pixel in column `x` from the left and row `y` from the top; `None` outside of the picture.
    #[must_use]
    pub fn pixel(&self, x: u32, y: u32) -> Option<Colour> {
        let (pixels, _) = self.rgb.as_chunks();
        let inside = x < self.width && y < self.height;
        if inside { pixels.get(y as usize * self.width as usize + x as usize).copied() } else { None }
    }

    /// Returns the pixels of a row; empty below the picture.
    fn row_mut(&mut self, y: usize) -> &mut [Colour] {
        let (pixels, _) = self.rgb.as_chunks_mut();
        pixels.chunks_exact_mut((self.width as usize).max(1)).nth(y).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_lie_row_by_row() {
        let mut frame = Frame::new();
        assert_eq!(frame.pixel(0, 0), None);
        frame.fill(3, 2, [1, 2, 3]);
        frame.row_mut(1)[2] = [4, 5, 6];
        assert_eq!(frame.rgb()[12..], [1, 2, 3, 4, 5, 6]);
        assert_eq!((frame.pixel(2, 1), frame.pixel(3, 0), frame.pixel(0, 2)), (Some([4, 5, 6]), None, None));
        assert!(frame.row_mut(2).is_empty());
    }

    #[test]
    fn pixels_from_elsewhere_must_fit() {
        let mut frame = Frame::new();
        assert!(frame.set(2, 1, &[1, 2, 3, 4, 5, 6]) && frame.pixel(1, 0) == Some([4, 5, 6]));
        assert!(!frame.set(2, 2, &[0; 6]) && !frame.set(u32::MAX, u32::MAX, &[]) && frame.height() == 1);
    }

    #[test]
    fn no_picture_is_larger_than_the_limit() {
        let mut frame = Frame::new();
        frame.fill(u32::MAX, 1, [0; 3]);
        assert_eq!((frame.width(), frame.rgb().len()), (Frame::MAX_SIDE, 3 * Frame::MAX_SIDE as usize));
        frame.fill(0, u32::MAX, [0; 3]);
        assert_eq!((frame.width(), frame.height(), frame.rgb().len()), (0, Frame::MAX_SIDE, 0));
        assert_eq!(frame.pixel(0, 0), None);
        assert!(frame.row_mut(0).is_empty());
    }
}

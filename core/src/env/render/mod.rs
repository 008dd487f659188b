//! Pictures of environments, drawn without a display.

use crate::prelude::*;

/// A picture: rows of pixels from the top, each red, green and blue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Frame {
    /// An empty picture, which whoever draws makes as large as it likes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the picture that large, all in one colour.
    pub fn fill(&mut self, width: u32, height: u32, colour: [u8; 3]) {
        (self.width, self.height) = (width, height);
        self.rgb.clear();
        self.rgb.extend((0..width as usize * height as usize).flat_map(|_| colour));
    }

    /// Pixels in a row.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The pixels: height x width x 3 bytes.
    #[must_use]
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

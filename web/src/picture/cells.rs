//! The cells of a game.

use rollmesh_core::env::pixel::{self, BACKGROUND, Channel, SIDE};
use wasm_bindgen::JsValue;

use super::pen::Pen;

const ACROSS: usize = SIDE as usize;
/// Colour of a cell with nothing in it, a little lighter than the ground between all cells.
const EMPTY: [u8; 3] = [31, 34, 44];

/// One moment of a game: the colours of its cells, row after row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cells {
    rgb: Vec<[u8; 3]>,
}

impl Cells {
    /// Of an observation: for every cell, row after row, whether each of `channels` is in it.
    pub(super) fn of(channels: &[Channel], obs: &[f32]) -> Option<Self> {
        if obs.len() != ACROSS * ACROSS * channels.len() {
            return None;
        }
        let obs: Vec<u8> = obs.iter().map(|value| u8::from(*value != 0.0)).collect();
        let mut rgb = vec![BACKGROUND; ACROSS * ACROSS];
        pixel::draw(channels, &obs, rgb.as_flattened_mut());
        Some(Self { rgb })
    }

    /// A square in the middle. Its ground is dark in both themes: white is one of the things' colours.
    pub(super) fn draw(&self, pen: &Pen<'_>, (width, height): (f64, f64)) -> Result<(), JsValue> {
        let context = pen.context;
        let side = (width.min(height) / ACROSS as f64).floor().max(1.0);
        let grid = side * ACROSS as f64;
        let (left, top) = (((width - grid) / 2.0).floor(), ((height - grid) / 2.0).floor());
        context.set_fill_style_str(&css_color(BACKGROUND));
        context.begin_path();
        context.round_rect_with_f64(left, top, grid, grid, 6.0)?;
        context.fill();
        for (cell, rgb) in self.rgb.iter().enumerate() {
            let (x, y) = (left + (cell % ACROSS) as f64 * side, top + (cell / ACROSS) as f64 * side);
            context.set_fill_style_str(&css_color(if *rgb == BACKGROUND { EMPTY } else { *rgb }));
            context.begin_path();
            context.round_rect_with_f64(x + 1.0, y + 1.0, side - 2.0, side - 2.0, side * 0.16)?;
            context.fill();
        }
        Ok(())
    }
}

/// A colour as style sheets write it.
pub(crate) fn css_color([red, green, blue]: [u8; 3]) -> String {
    format!("rgb({red} {green} {blue})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_colours_of_what_is_in_them() {
        let channels = pixel::channels("PixelBreakout-v0").expect("a game");
        let mut obs = vec![0.0; 100 * channels.len()];
        obs[channels.len() * 12 + 1] = 1.0;
        let picture = Cells::of(channels, &obs).expect("a Breakout");
        let seen: Vec<_> = picture.rgb.iter().enumerate().filter(|(_, rgb)| **rgb != BACKGROUND).collect();
        assert_eq!(seen, [(12, &channels[1].rgb)]);
        assert_eq!(css_color([1, 20, 255]), "rgb(1 20 255)");
    }
}

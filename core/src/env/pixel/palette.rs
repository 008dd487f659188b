//! Colours of the games, for pages and pictures.

use super::grid::CELLS;
use crate::env::{
    Frame,
    pixel::SIDE,
    render::{Canvas, Colour},
};

/// One kind of thing on the grid: its name and the colour it is drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Name of the things it shows, for example `ball`.
    pub name: &'static str,
    /// Red, green and blue.
    pub rgb: Colour,
    /// Whether it is drawn behind other things in the cell.
    pub is_behind: bool,
}

impl Channel {
    pub(super) const fn new(name: &'static str, rgb: Colour) -> Self {
        Self { name, rgb, is_behind: false }
    }

    pub(super) const fn behind(self) -> Self {
        Self { is_behind: true, ..self }
    }
}

/// Colour of an empty cell.
pub const BACKGROUND: Colour = [22, 24, 32];

/// Colour of an empty cell in pictures with gaps between cells, slightly lighter than the ground.
const EMPTY: Colour = [31, 34, 44];
/// Width and height of a cell in a picture in pixels, with the gap to the next one.
const CELL: u32 = 16;

pub(super) use crate::env::render::palette::{
    BLUE, BLUISH_GREEN, DARK_GREY, GREY, LIGHT_GREY, ORANGE, REDDISH_PURPLE, SKY_BLUE, VERMILLION, WHITE, YELLOW,
};

/// Paints an observation: `rgb` receives [`SIDE`] x [`SIDE`] cells, row-major, three bytes each.
///
/// If several things share a cell, the first of `channels` is drawn that is not [behind](Channel::is_behind), or the first
/// one at all. Cells missing in `obs` or `rgb` stay unchanged.
pub fn draw(channels: &[Channel], obs: &[u8], rgb: &mut [u8]) {
    const { assert!(CELLS == SIDE as usize * SIDE as usize) };
    let cells = obs.chunks_exact(channels.len().max(1)).zip(rgb.chunks_exact_mut(3)).take(CELLS);
    for (cell, pixel) in cells {
        let there = || channels.iter().zip(cell).filter(|(_, value)| **value != 0).map(|(channel, _)| channel);
        let seen = there().find(|channel| !channel.is_behind).or_else(|| there().next());
        pixel.copy_from_slice(&seen.map_or(BACKGROUND, |channel| channel.rgb));
    }
}

/// Draws an observation as cells with gaps.
pub(super) fn render(channels: &[Channel], obs: &[u8], frame: &mut Frame) {
    let mut rgb = [BACKGROUND; CELLS];
    draw(channels, obs, rgb.as_flattened_mut());
    let side = SIDE as u32 * CELL;
    let mut canvas = Canvas::new(frame, [side, side], BACKGROUND).with_cells(f64::from(CELL));
    let gap = 1.0 / f64::from(CELL);
    for (cell, colour) in rgb.into_iter().enumerate() {
        let (x, y) = ((cell % SIDE as usize) as f64, (cell / SIDE as usize) as f64);
        let colour = if colour == BACKGROUND { EMPTY } else { colour };
        canvas.rectangle([x + gap, y + gap], [x + 1.0 - gap, y + 1.0 - gap], colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_channel_shows_only_where_it_is_alone() {
        let channels = [Channel::new("trail", GREY).behind(), Channel::new("fish", ORANGE)];
        let mut obs = [0; 200];
        obs[..4].copy_from_slice(&[1, 1, 1, 0]);
        let mut rgb = [0; 300];
        draw(&channels, &obs, &mut rgb);
        assert_eq!(rgb[..6], [ORANGE, GREY].concat());
    }

    #[test]
    fn the_first_channel_of_a_cell_is_seen() {
        let channels = [Channel::new("ball", WHITE), Channel::new("wall", ORANGE)];
        let mut obs = [0; 200];
        obs[..6].copy_from_slice(&[1, 1, 0, 1, 0, 0]);
        let mut rgb = [1; 301];
        draw(&channels, &obs, &mut rgb);
        assert_eq!(rgb[..9], [WHITE, ORANGE, BACKGROUND].concat());
        assert_eq!(rgb[297..], [22, 24, 32, 1]);
        draw(&[], &obs, &mut rgb);
        draw(&channels, &obs[..1], &mut []);
    }
}

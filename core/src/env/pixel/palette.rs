//! Colours of the games, for a page or a picture.

use super::grid::CELLS;
use crate::env::pixel::SIDE;

/// One kind of thing on the grid: its name and the colour it is drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// What the channel shows, for example `ball`.
    pub name: &'static str,
    /// Red, green and blue.
    pub rgb: [u8; 3],
    /// Drawn behind what else is in the cell.
    pub is_behind: bool,
}

impl Channel {
    pub(super) const fn new(name: &'static str, rgb: [u8; 3]) -> Self {
        Self { name, rgb, is_behind: false }
    }

    pub(super) const fn behind(self) -> Self {
        Self { is_behind: true, ..self }
    }
}

/// Colour of a cell with nothing in it.
pub const BACKGROUND: [u8; 3] = [22, 24, 32];

// Colours that everybody can tell apart (Okabe and Ito: "Color universal design", 2008); their black is the ground.
pub(super) const ORANGE: [u8; 3] = [230, 159, 0];
pub(super) const SKY_BLUE: [u8; 3] = [86, 180, 233];
pub(super) const BLUISH_GREEN: [u8; 3] = [0, 158, 115];
pub(super) const YELLOW: [u8; 3] = [240, 228, 66];
pub(super) const BLUE: [u8; 3] = [0, 114, 178];
pub(super) const VERMILLION: [u8; 3] = [213, 94, 0];
pub(super) const REDDISH_PURPLE: [u8; 3] = [204, 121, 167];
// For what is told apart by brightness alone.
pub(super) const WHITE: [u8; 3] = [245, 245, 245];
pub(super) const LIGHT_GREY: [u8; 3] = [178, 178, 178];
pub(super) const GREY: [u8; 3] = [122, 122, 122];
pub(super) const DARK_GREY: [u8; 3] = [74, 74, 74];

/// Paints an observation: `rgb` receives [`SIDE`] x [`SIDE`] cells, row-major, three bytes each.
///
/// Where several things share a cell, the first of `channels` is seen, of those that are not
/// [behind](Channel::is_behind) if there are any. What `obs` or `rgb` lack is left as it was.
pub fn draw(channels: &[Channel], obs: &[u8], rgb: &mut [u8]) {
    const { assert!(CELLS == SIDE as usize * SIDE as usize) };
    let cells = obs.chunks_exact(channels.len().max(1)).zip(rgb.chunks_exact_mut(3)).take(CELLS);
    for (cell, pixel) in cells {
        let there = || channels.iter().zip(cell).filter(|(_, value)| **value != 0).map(|(channel, _)| channel);
        let seen = there().find(|channel| !channel.is_behind).or_else(|| there().next());
        pixel.copy_from_slice(&seen.map_or(BACKGROUND, |channel| channel.rgb));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_is_seen_only_alone() {
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

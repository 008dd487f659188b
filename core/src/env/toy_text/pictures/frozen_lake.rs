//! The picture of a lake from above.

use super::{
    super::frozen_lake_map::{FrozenLakeMap, Tile},
    things::{draw_figure, draw_flag, draw_tile},
};
use crate::env::{
    Frame,
    render::{
        Canvas, Colour,
        palette::{BLUE, VERMILLION},
    },
};

const ICE: Colour = [214, 234, 246];
const CRACK: Colour = [186, 214, 232];
const START: Colour = [240, 247, 251];

/// Draws the map. Small maps have large tiles; a map that is too large for a picture is clipped.
pub(super) fn draw(map: &FrozenLakeMap, state: u16, frame: &mut Frame) {
    let grid = map.grid();
    let [columns, rows] = [grid.columns, grid.rows].map(u32::from);
    let side = (256 / columns.max(rows)).clamp(1, 48);
    let mut canvas = Canvas::new(frame, [columns * side, rows * side], CRACK).with_cells(f64::from(side));
    let gap = 1.0 / f64::from(side.max(8));
    for cell in 0..grid.cells() {
        let [x, y] = grid.place(cell);
        match map.tile(cell) {
            Tile::Start => draw_tile(&mut canvas, [x, y], gap, START),
            Tile::Frozen => draw_tile(&mut canvas, [x, y], gap, ICE),
            Tile::Hole => {
                draw_tile(&mut canvas, [x, y], gap, ICE);
                canvas.circle([x + 0.5, y + 0.5], 0.36, BLUE);
            }
            Tile::Goal => {
                draw_tile(&mut canvas, [x, y], gap, ICE);
                draw_flag(&mut canvas, [x, y]);
            }
        }
    }
    draw_figure(&mut canvas, grid.place(state), VERMILLION);
}

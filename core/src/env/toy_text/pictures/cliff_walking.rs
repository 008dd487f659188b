//! The picture of CliffWalking.

use super::{
    super::cliff_walking::{GOAL, GRID, START},
    things::{draw_figure, draw_flag, draw_tile},
};
use crate::env::{
    Frame,
    render::{
        Canvas, Colour,
        palette::{PAPER, VERMILLION},
    },
};

const GROUND: Colour = [219, 228, 200];
const EDGE: Colour = [199, 211, 176];
const ABYSS: Colour = [58, 52, 56];
const ROCK: Colour = [128, 108, 92];

pub(super) fn draw(state: u16, frame: &mut Frame) {
    const SIDE: u32 = 28;
    let [columns, rows] = [GRID.columns, GRID.rows].map(u32::from);
    let mut canvas = Canvas::new(frame, [columns * SIDE, rows * SIDE], EDGE).with_cells(f64::from(SIDE));
    for cell in 0..GRID.cells() {
        let [x, y] = GRID.place(cell);
        if START < cell && cell < GOAL {
            canvas.rectangle([x, y], [x + 1.0, y + 1.0], ABYSS);
            // The uneven rim.
            for [left, depth] in [[0.0, 0.3], [0.25, 0.18], [0.5, 0.36], [0.75, 0.24]] {
                canvas.rectangle([x + left, y], [x + left + 0.25, y + depth], ROCK);
            }
        } else {
            let colour = if cell == START { PAPER } else { GROUND };
            draw_tile(&mut canvas, [x, y], 1.0 / f64::from(SIDE), colour);
        }
    }
    draw_flag(&mut canvas, GRID.place(GOAL));
    draw_figure(&mut canvas, GRID.place(state), VERMILLION);
}

//! Things on a grid, each in a cell whose upper left corner is given, in units of cells.

use crate::env::render::{
    Canvas, CanvasPoint, Colour,
    palette::{BLUISH_GREEN, INK},
};

/// Draws a person.
pub(super) fn draw_figure(canvas: &mut Canvas<'_>, [x, y]: CanvasPoint, colour: Colour) {
    canvas.circle([x + 0.5, y + 0.3], 0.16, colour);
    let (left, right, foot) = (x + 0.3, x + 0.7, y + 0.86);
    canvas.polygon(&[[x + 0.38, y + 0.48], [x + 0.62, y + 0.48], [right, foot], [left, foot]], colour);
}

/// Draws a flag at the goal.
pub(super) fn draw_flag(canvas: &mut Canvas<'_>, [x, y]: CanvasPoint) {
    canvas.polygon(&[[x + 0.34, y + 0.14], [x + 0.84, y + 0.32], [x + 0.34, y + 0.5]], BLUISH_GREEN);
    canvas.rectangle([x + 0.28, y + 0.14], [x + 0.36, y + 0.88], INK);
}

/// Draws a cell in one colour, with a gap to its neighbours.
pub(super) fn draw_tile(canvas: &mut Canvas<'_>, [x, y]: CanvasPoint, gap: f64, colour: Colour) {
    canvas.rectangle([x + gap, y + gap], [x + 1.0 - gap, y + 1.0 - gap], colour);
}

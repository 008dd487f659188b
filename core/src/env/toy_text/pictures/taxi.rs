//! The picture of Taxi from above.

use super::{
    super::taxi::{GRID, IN_TAXI, PLACES, Scene, WALLS},
    things::{draw_figure, draw_tile},
};
use crate::env::{
    Frame,
    render::{
        Canvas, CanvasPoint, Colour,
        palette::{BLUE, BLUISH_GREEN, INK, ORANGE, PAPER, SHADE, VERMILLION, WHITE, YELLOW},
    },
};

const GROUND: Colour = [222, 224, 228];
/// Colours of the places: red, green, yellow, blue.
const COLOURS: [Colour; 4] = [VERMILLION, BLUISH_GREEN, YELLOW, BLUE];
const CAB: Colour = ORANGE;

pub(super) fn draw(state: u16, frame: &mut Frame) {
    const SIDE: u32 = 40;
    let [columns, rows] = [GRID.columns, GRID.rows].map(u32::from);
    let mut canvas = Canvas::new(frame, [columns * SIDE, rows * SIDE], GROUND).with_cells(f64::from(SIDE));
    let gap = 1.0 / f64::from(SIDE);
    (0..GRID.cells()).for_each(|cell| draw_tile(&mut canvas, GRID.place(cell), gap, SHADE));
    let Scene { taxi, passenger, destination } = Scene::of(state);
    for (index, (cell, colour)) in (0..).zip(PLACES.into_iter().zip(COLOURS)) {
        let at = GRID.place(cell);
        draw_tile(&mut canvas, at, gap, colour);
        if index != destination {
            draw_tile(&mut canvas, at, 5.0 * gap, PAPER);
        }
    }
    for cell in WALLS {
        let [x, y] = GRID.place(cell);
        canvas.line([x + 1.0, y + 0.04], [x + 1.0, y + 0.96], 0.09, INK);
    }
    if let Some(cell) = PLACES.get(usize::from(passenger)) {
        draw_figure(&mut canvas, GRID.place(*cell), INK);
    }
    draw_taxi(&mut canvas, GRID.place(taxi), passenger == IN_TAXI);
}

fn draw_taxi(canvas: &mut Canvas<'_>, [x, y]: CanvasPoint, occupied: bool) {
    let at = |dx: f64, dy: f64| [x + dx, y + dy];
    for wheel in [0.28, 0.72] {
        canvas.circle(at(wheel, 0.76), 0.11, INK);
    }
    canvas.polygon(&[at(0.3, 0.34), at(0.68, 0.34), at(0.8, 0.52), at(0.2, 0.52)], INK);
    canvas.polygon(&[at(0.34, 0.38), at(0.65, 0.38), at(0.73, 0.5), at(0.27, 0.5)], WHITE);
    if occupied {
        canvas.circle(at(0.5, 0.46), 0.09, INK);
    }
    canvas.line(at(0.16, 0.62), at(0.84, 0.62), 0.24, INK);
    canvas.line(at(0.16, 0.62), at(0.84, 0.62), 0.18, CAB);
}

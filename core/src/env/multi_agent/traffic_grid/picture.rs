//! The town from above.

use super::{
    lights::Light,
    streets::{BLOCK, Heading, Street},
    traffic::{Traffic, Trip},
};
use crate::env::{
    Frame,
    render::{
        Canvas, Point,
        palette::{BLUE, BLUISH_GREEN, LINE, ORANGE, PAPER, SHADE, VERMILLION},
    },
};

/// Pixels of a cell.
const SIDE: usize = 8;
/// Cells from one junction to the next: a street, and the junction's two.
const STRIDE: usize = BLOCK + 2;

/// Streets and lights, cars that drive in blue and cars that stand in orange.
pub(super) fn draw(traffic: &Traffic, lights: &[Light], frame: &mut Frame) {
    let map = traffic.map;
    let cells = map.size * STRIDE + BLOCK;
    let pixels = (cells * SIDE) as u32;
    let mut canvas = Canvas::new(frame, [pixels; 2], PAPER).with_cells(SIDE as f64);
    let end = cells as f64;
    for row in 0..map.size {
        let at = (BLOCK + row * STRIDE) as f64;
        canvas.rectangle([0.0, at], [end, at + 2.0], SHADE);
        canvas.rectangle([at, 0.0], [at + 2.0, end], SHADE);
    }
    for (junction, light) in lights.iter().enumerate() {
        let (row, column) = map.place(junction);
        let [x, y] = [column, row].map(|place| (BLOCK + place * STRIDE) as f64);
        canvas.rectangle([x, y], [x + 2.0, y + 2.0], LINE);
        for heading in Heading::ALL {
            let colour = if light.is_green(heading) { BLUISH_GREEN } else { VERMILLION };
            canvas.circle(place(Street { junction, heading }, BLOCK as f64, map.size), 0.3, colour);
        }
    }
    for car in traffic.cars.iter().filter(|car| car.trip == Trip::Driving) {
        let colour = if car.speed == 0 { ORANGE } else { BLUE };
        canvas.circle(place(car.street, car.cell as f64, map.size), 0.42, colour);
    }
}

/// Middle of a cell of a street; traffic keeps to the right. Cell `BLOCK` is the first one of the junction.
fn place(street: Street, cell: f64, size: usize) -> Point {
    let (row, column) = (street.junction / size, street.junction % size);
    let [x, y] = [column, row].map(|place| (BLOCK + place * STRIDE) as f64);
    let before = BLOCK as f64 - cell - 0.5;
    match street.heading {
        Heading::North => [x + 1.5, y + 2.0 + before],
        Heading::East => [x - before, y + 1.5],
        Heading::South => [x + 0.5, y - before],
        Heading::West => [x + 2.0 + before, y + 0.5],
    }
}

//! The picture of MountainCar.

use super::mountain_car::{MAX_POSITION, MIN_POSITION};
use crate::{
    env::{
        Frame,
        render::{
            Canvas, CanvasPoint,
            palette::{BLUE, BLUISH_GREEN, INK, LINE, PAPER, SHADE},
        },
    },
    math,
    prelude::*,
};

const SCALE: f64 = 300.0 / (MAX_POSITION - MIN_POSITION);
const PIXEL: f64 = 1.0 / SCALE;
/// Straight pieces of ground.
const PIECES: u32 = 60;

/// Draws a car at a position, and a flag at its goal.
pub(super) fn draw(position: f64, goal: f64, frame: &mut Frame) -> bool {
    let mut canvas = Canvas::new(frame, [300, 200], PAPER).with_world([-MIN_POSITION * SCALE, 196.0], SCALE);
    draw_ground(&mut canvas);
    draw_flag(&mut canvas, [goal, height(goal)]);
    draw_car(&mut canvas, position);
    true
}

/// Returns the height of Gymnasium's hills, slightly flattened to fit below the flag in a picture of 300 x 200.
fn height(position: f64) -> f64 {
    0.4 * math::sin_cos(3.0 * position).0 + 0.5
}

fn draw_ground(canvas: &mut Canvas<'_>) {
    let step = (MAX_POSITION - MIN_POSITION) / f64::from(PIECES);
    // One more piece on either side, so that the line does not end inside the picture.
    let xs = (0..PIECES + 3).map(|piece| MIN_POSITION + (f64::from(piece) - 1.0) * step);
    let mut ground: Vec<CanvasPoint> = xs.map(|x| [x, height(x)]).collect();
    let line = ground.len();
    ground.extend([[MAX_POSITION + 1.0, -1.0], [MIN_POSITION - 1.0, -1.0]]);
    canvas.polygon(&ground, SHADE);
    canvas.path(&ground[..line], 2.0 * PIXEL, LINE);
}

fn draw_flag(canvas: &mut Canvas<'_>, [x, ground]: CanvasPoint) {
    let top = ground + 36.0 * PIXEL;
    canvas.polygon(&[[x, top], [x + 15.0 * PIXEL, top - 7.0 * PIXEL], [x, top - 14.0 * PIXEL]], BLUISH_GREEN);
    canvas.rectangle([x - PIXEL, ground], [x + PIXEL, top], INK);
}

/// Draws a car on its wheels, tilted as the ground below it.
fn draw_car(canvas: &mut Canvas<'_>, position: f64) {
    const BODY: [CanvasPoint; 8] = [
        [-17.0, 5.0],
        [17.0, 5.0],
        [17.0, 11.0],
        [10.0, 12.5],
        [5.0, 18.0],
        [-8.0, 18.0],
        [-13.0, 12.5],
        [-17.0, 12.0],
    ];
    let slope = 1.2 * math::sin_cos(3.0 * position).1;
    let length = math::sqrt_f64(1.0 + slope * slope);
    let [cos, sin] = [PIXEL / length, PIXEL * slope / length];
    let ground = height(position);
    let at = |[along, up]: CanvasPoint| [position + along * cos - up * sin, ground + along * sin + up * cos];
    canvas.polygon(&BODY.map(at), BLUE);
    canvas.polygon(&[[-6.5, 12.5], [-4.5, 16.0], [3.5, 16.0], [6.5, 12.5]].map(at), PAPER);
    for wheel in [-9.5, 9.5] {
        canvas.circle(at([wheel, 5.0]), 5.0 * PIXEL, INK);
        canvas.circle(at([wheel, 5.0]), 1.8 * PIXEL, LINE);
    }
}

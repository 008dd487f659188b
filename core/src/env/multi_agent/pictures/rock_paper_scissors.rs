//! The picture of rock, paper, scissors.

use super::{super::matrix_games::winner, PLAYERS, digits::draw_number};
use crate::env::{
    Frame,
    render::{
        Canvas, CanvasPoint, Colour,
        palette::{DARK_GREY, GREY, INK, LIGHT_GREY, LINE, PAPER, SHADE, WHITE},
    },
};

/// Draws the latest moves next to each other, the winning one framed; below them the rounds, in the colours of their
/// winners, and each player's score.
pub(crate) fn draw(rounds: &[[i64; 2]], all: u32, frame: &mut Frame) {
    let mut canvas = Canvas::new(frame, [300, 200], PAPER);
    let latest = rounds.last();
    for (player, colour) in PLAYERS.into_iter().enumerate() {
        let left = 12.0 + 144.0 * player as f64;
        if latest.and_then(|moves| winner(*moves)) == Some(player) {
            canvas.rectangle([left, 12.0], [left + 132.0, 144.0], colour);
        }
        canvas.rectangle([left + 4.0, 16.0], [left + 128.0, 140.0], SHADE);
        let centre = [left + 66.0, 78.0];
        match latest.map(|moves| moves[player]) {
            Some(0) => draw_rock(&mut canvas, centre),
            Some(1) => draw_paper(&mut canvas, centre),
            Some(_) => draw_scissors(&mut canvas, centre, colour),
            None => [-18.0, 0.0, 18.0].into_iter().for_each(|x| canvas.circle([centre[0] + x, 78.0], 4.0, LIGHT_GREY)),
        }
        let wins = rounds.iter().filter(|moves| winner(**moves) == Some(player)).count() as u32;
        draw_number(&mut canvas, [30.0 + 240.0 * player as f64, 172.0], 24.0, wins, colour);
    }
    let first = 150.0 - 9.0 * f64::from(all.saturating_sub(1));
    for round in 0..all {
        let at = [first + 18.0 * f64::from(round), 172.0];
        match rounds.get(round as usize).map(|moves| winner(*moves)) {
            None => canvas.circle(at, 2.5, LINE),
            Some(None) => canvas.circle(at, 6.0, LIGHT_GREY),
            Some(Some(player)) => canvas.circle(at, 6.0, PLAYERS[player]),
        }
    }
}

fn draw_rock(canvas: &mut Canvas<'_>, centre: CanvasPoint) {
    const OUTLINE: [CanvasPoint; 8] = [
        [-44.0, 14.0],
        [-36.0, -16.0],
        [-14.0, -34.0],
        [16.0, -32.0],
        [38.0, -14.0],
        [44.0, 14.0],
        [30.0, 32.0],
        [-30.0, 32.0],
    ];
    const TOP: [CanvasPoint; 5] = [[-36.0, -16.0], [-14.0, -34.0], [16.0, -32.0], [8.0, -12.0], [-16.0, -4.0]];
    const SIDE: [CanvasPoint; 5] = [[8.0, -12.0], [38.0, -14.0], [44.0, 14.0], [30.0, 32.0], [14.0, 10.0]];
    canvas.polygon(&OUTLINE.map(|corner| moved(centre, corner)), GREY);
    canvas.polygon(&TOP.map(|corner| moved(centre, corner)), LIGHT_GREY);
    canvas.polygon(&SIDE.map(|corner| moved(centre, corner)), DARK_GREY);
}

fn draw_paper(canvas: &mut Canvas<'_>, centre: CanvasPoint) {
    const SHEET: [CanvasPoint; 5] = [[-32.0, -42.0], [16.0, -42.0], [32.0, -26.0], [32.0, 42.0], [-32.0, 42.0]];
    const CORNER: [CanvasPoint; 3] = [[16.0, -42.0], [32.0, -26.0], [16.0, -26.0]];
    canvas.polygon(&SHEET.map(|corner| moved(centre, [corner[0] + 3.0, corner[1] + 3.0])), LIGHT_GREY);
    canvas.polygon(&SHEET.map(|corner| moved(centre, corner)), WHITE);
    canvas.polygon(&CORNER.map(|corner| moved(centre, corner)), LIGHT_GREY);
    for (line, to) in [(-12.0, 20.0), (2.0, 20.0), (16.0, 20.0), (30.0, 0.0)] {
        canvas.line(moved(centre, [-20.0, line]), moved(centre, [to, line]), 3.0, LINE);
    }
}

fn draw_scissors(canvas: &mut Canvas<'_>, centre: CanvasPoint, handles: Colour) {
    for side in [-1.0, 1.0] {
        let at = |[x, y]: CanvasPoint| moved(centre, [side * x, y]);
        canvas.circle(at([17.0, 29.0]), 14.0, handles);
        canvas.circle(at([17.0, 29.0]), 7.5, SHADE);
        let colour = if side < 0.0 { GREY } else { LIGHT_GREY };
        canvas.polygon(&[[10.0, 19.0], [15.0, 15.0], [-14.0, -46.0], [-20.0, -32.0]].map(at), colour);
    }
    canvas.circle(moved(centre, [0.0, -1.0]), 3.0, INK);
}

fn moved([x, y]: CanvasPoint, [right, down]: CanvasPoint) -> CanvasPoint {
    [x + right, y + down]
}

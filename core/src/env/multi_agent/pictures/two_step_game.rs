//! The picture of the two-step game.

use super::{PLAYERS, digits::draw_number};
use crate::env::{
    Frame,
    render::{
        Canvas, CanvasPoint,
        palette::{INK, LIGHT_GREY, LINE, PAPER, SHADE, WHITE, YELLOW},
    },
};

/// Width and height of a payoff in pixels.
const SIDE: f64 = 42.0;

/// Draws the way to the chosen table, and the chosen payoff in it. The numbers of the moves have the players' colours.
pub(crate) fn draw(payoffs: [[[u8; 2]; 2]; 2], chosen: Option<usize>, moves: Option<[usize; 2]>, frame: &mut Frame) {
    const ROOT: CanvasPoint = [150.0, 26.0];
    let mut canvas = Canvas::new(frame, [300, 200], PAPER);
    for (table, payoffs) in payoffs.into_iter().enumerate() {
        let here = chosen == Some(table);
        let middle = 78.0 + 144.0 * table as f64;
        let (colour, thickness) = if here { (PLAYERS[0], 4.0) } else { (LINE, 2.0) };
        canvas.line(ROOT, [middle, 62.0], thickness, colour);
        let label = if chosen.is_none_or(|_| here) { PLAYERS[0] } else { LIGHT_GREY };
        draw_number(&mut canvas, [if table == 0 { 100.0 } else { 200.0 }, 32.0], 12.0, table as u32, label);
        draw_table(&mut canvas, [middle - SIDE, 96.0], payoffs, chosen.is_none_or(|_| here), moves.filter(|_| here));
    }
    canvas.circle(ROOT, 9.0, if chosen.is_none() { INK } else { PLAYERS[0] });
    canvas.circle(ROOT, 5.0, if chosen.is_none() { YELLOW } else { PAPER });
}

/// Draws a row for each move of player 0, a column for each of player 1. An unreachable table is pale.
fn draw_table(
    canvas: &mut Canvas<'_>,
    [left, top]: CanvasPoint,
    payoffs: [[u8; 2]; 2],
    reachable: bool,
    moves: Option<[usize; 2]>,
) {
    let [edge, ground, ink] = if reachable { [INK, WHITE, INK] } else { [LINE, SHADE, LIGHT_GREY] };
    for action in 0..2 {
        let along = SIDE * (action as f64 + 0.5);
        for (player, at) in [[left - 13.0, top + along], [left + along, top - 14.0]].into_iter().enumerate() {
            let is_chosen = moves.is_some_and(|moves| moves[player] == action);
            if is_chosen {
                canvas.circle(at, 10.0, PLAYERS[player]);
            }
            let colour = if is_chosen {
                PAPER
            } else if reachable {
                PLAYERS[player]
            } else {
                LIGHT_GREY
            };
            draw_number(canvas, at, 11.0, action as u32, colour);
        }
    }
    canvas.rectangle([left - 1.0, top - 1.0], [left + 2.0 * SIDE + 1.0, top + 2.0 * SIDE + 1.0], edge);
    for (row, payoffs) in payoffs.into_iter().enumerate() {
        for (column, payoff) in payoffs.into_iter().enumerate() {
            let [x, y] = [left + SIDE * column as f64, top + SIDE * row as f64];
            let is_chosen = moves == Some([row, column]);
            let colour = if is_chosen { YELLOW } else { ground };
            canvas.rectangle([x + 1.0, y + 1.0], [x + SIDE - 1.0, y + SIDE - 1.0], colour);
            draw_number(canvas, [x + SIDE / 2.0, y + SIDE / 2.0], 18.0, u32::from(payoff), ink);
        }
    }
}

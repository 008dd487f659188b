//! Pictures of the matrix games.

mod digits;
mod rock_paper_scissors;
mod two_step_game;

pub(super) use rock_paper_scissors::draw as draw_rock_paper_scissors;
pub(super) use two_step_game::draw as draw_two_step_game;

use crate::env::render::{
    Colour,
    palette::{BLUE, VERMILLION},
};

/// Of the two players.
const PLAYERS: [Colour; 2] = [BLUE, VERMILLION];

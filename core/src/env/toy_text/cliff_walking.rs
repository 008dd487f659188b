//! CliffWalking: the shortest way leads along a cliff (Sutton and Barto, example 6.6).

use super::{
    Mdp, TableOutcome,
    grid::{Direction, Grid},
    pictures::World,
};
use crate::prelude::*;

pub(super) const GRID: Grid = Grid { rows: 4, columns: 12 };
pub(super) const START: u16 = 36;
pub(super) const GOAL: u16 = 47;
/// In the order of the actions.
const MOVES: [Direction; 4] = [Direction::Up, Direction::Right, Direction::Down, Direction::Left];

impl Mdp {
    /// Creates CliffWalking: reward -1 for every step, -100 for one over the cliff, which leads back to the start.
    ///
    /// 48 cells in rows of twelve; actions up, right, down, left.
    #[must_use]
    #[doc(alias = "CliffWalking-v1")]
    pub fn cliff_walking() -> Self {
        Self::tabulate(
            World::CliffWalking,
            GRID.cells(),
            MOVES.len() as u32,
            vec![START],
            &[1.0],
            |state, action, _| match GRID.neighbour(state, MOVES[action as usize]) {
                37..GOAL => TableOutcome { state: START, terminated: false, reward: -100.0 },
                state => TableOutcome { state, terminated: state == GOAL, reward: -1.0 },
            },
        )
    }
}

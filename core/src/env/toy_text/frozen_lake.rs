//! FrozenLake: over slippery ice to the goal, past the holes.

use super::{
    Mdp, Outcome,
    frozen_lake_map::{FrozenLakeMap, Tile},
    grid::Direction,
};

/// In the order of the actions, so that the neighbours of a direction are those at right angles to it.
const MOVES: [Direction; 4] = [Direction::Left, Direction::Down, Direction::Right, Direction::Up];

/// How a lake behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrozenLakeOptions {
    /// Steps may slip to either side.
    pub is_slippery: bool,
    /// Probability that a step does not slip, if steps may, between 0 and 1; both sides share the rest.
    pub success_rate: f64,
    /// Rewards for reaching the goal, a hole, and any other tile.
    pub reward_schedule: [f64; 3],
}

impl Default for FrozenLakeOptions {
    /// Gymnasium's: slippery, a third each way, reward 1 at the goal and nowhere else.
    fn default() -> Self {
        Self { is_slippery: true, success_rate: 1.0 / 3.0, reward_schedule: [1.0, 0.0, 0.0] }
    }
}

impl Mdp {
    /// FrozenLake: holes and the goal end the episode.
    ///
    /// Tiles are numbered row by row; actions left, down, right, up. Terminal tiles lead to themselves, without
    /// reward.
    #[must_use]
    #[doc(alias = "FrozenLake-v1")]
    pub fn frozen_lake(map: &FrozenLakeMap, options: FrozenLakeOptions) -> Self {
        let success = options.success_rate.clamp(0.0, 1.0);
        let fail = (1.0 - success) / 2.0;
        // The turns from the action's direction, of which none is the middle one.
        let (probabilities, first_turn): (&[f64], _) =
            if options.is_slippery { (&[fail, success, fail], 3) } else { (&[1.0], 0) };
        let [goal, hole, other] = options.reward_schedule;
        Self::tabulate(map.grid().cells(), 4, map.starts(), probabilities, |state, action, place| {
            if map.tile(state).is_terminal() {
                return Outcome { state, terminated: true, reward: 0.0 };
            }
            let direction = MOVES[(action as usize + first_turn + place) % 4];
            let state = map.grid().neighbour(state, direction);
            let tile = map.tile(state);
            let reward = match tile {
                Tile::Goal => goal,
                Tile::Hole => hole,
                Tile::Start | Tile::Frozen => other,
            };
            Outcome { state, terminated: tile.is_terminal(), reward }
        })
    }
}

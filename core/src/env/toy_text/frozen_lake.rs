//! FrozenLake: over slippery ice to the goal, past the holes.

use super::{
    Mdp, TableOutcome,
    frozen_lake_map::{FrozenLakeMap, Tile},
    grid::Direction,
    pictures::World,
};

/// In the order of the actions, so that the neighbours of a direction are those at right angles to it.
const MOVES: [Direction; 4] = [Direction::Left, Direction::Down, Direction::Right, Direction::Up];

/// Options of a lake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrozenLakeOptions {
    /// Steps may slip to either side.
    pub is_slippery: bool,
    /// Probability that a step does not slip, if steps may, between 0 and 1; both sides share the remainder.
    pub success_rate: f64,
    /// Rewards for reaching the goal, a hole, and any other tile.
    pub reward_schedule: [f64; 3],
}

impl Default for FrozenLakeOptions {
    /// Returns Gymnasium's defaults: slippery, a third in each direction, reward 1 at the goal and nowhere else.
    fn default() -> Self {
        Self { is_slippery: true, success_rate: 1.0 / 3.0, reward_schedule: [1.0, 0.0, 0.0] }
    }
}

impl Mdp {
    /// Creates FrozenLake: holes and the goal end the episode.
    ///
    /// Tiles are numbered row by row; actions left, down, right, up. Terminal tiles lead to themselves, without
    /// reward.
    #[must_use]
    #[doc(alias = "FrozenLake-v1")]
    pub fn frozen_lake(map: &FrozenLakeMap, options: FrozenLakeOptions) -> Self {
        let rate = options.success_rate;
        let success = if rate.is_nan() { 0.0 } else { rate.clamp(0.0, 1.0) };
        let fail = (1.0 - success) / 2.0;
        // Turns from the action's direction; the middle one is no turn.
        let (probabilities, first_turn): (&[f64], _) =
            if options.is_slippery { (&[fail, success, fail], 3) } else { (&[1.0], 0) };
        let [goal, hole, other] = options.reward_schedule;
        let world = World::FrozenLake(map.clone());
        Self::tabulate(world, map.grid().cells(), 4, map.starts(), probabilities, |state, action, place| {
            if map.tile(state).is_terminal() {
                return TableOutcome { state, terminated: true, reward: 0.0 };
            }
            let direction = MOVES[(action as usize + first_turn + place) % 4];
            let state = map.grid().neighbour(state, direction);
            let tile = map.tile(state);
            let reward = match tile {
                Tile::Goal => goal,
                Tile::Hole => hole,
                Tile::Start | Tile::Frozen => other,
            };
            TableOutcome { state, terminated: tile.is_terminal(), reward }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn slippery_steps_go_three_ways() {
        let lake = Mdp::frozen_lake(&FrozenLakeMap::small(), FrozenLakeOptions::default());
        // To the right, next to the goal.
        let third = |p: f64| (p - 1.0 / 3.0).abs() < 1e-15;
        let outcomes: Vec<_> = lake.outcomes(14, 2).collect();
        assert!(outcomes.iter().all(|(p, _)| third(*p)));
        let expected = [(14, false, 0.0), (15, true, 1.0), (10, false, 0.0)];
        let found: Vec<_> = outcomes.iter().map(|(_, to)| (to.state, to.terminated, to.reward)).collect();
        assert_eq!(found, expected);
        assert!(lake.outcomes(5, 0).all(|(_, to)| to == TableOutcome { state: 5, terminated: true, reward: 0.0 }));
        assert_eq!(lake.outcomes(16, 0).count() + lake.outcomes(0, 4).count(), 0);
    }

    #[test]
    fn rewards_follow_the_schedule() {
        let options =
            FrozenLakeOptions { is_slippery: false, reward_schedule: [5.0, -2.0, -0.1], ..Default::default() };
        let map = FrozenLakeMap::new(&["GSH"]).unwrap();
        let lake = Mdp::frozen_lake(&map, options);
        let step = |action| lake.outcomes(1, action).map(|(_, to)| (to.state, to.reward)).next();
        assert_eq!([0, 1, 2, 3].map(step), [Some((0, 5.0)), Some((1, -0.1)), Some((2, -2.0)), Some((1, -0.1))]);
    }

    #[test]
    fn success_rates_that_are_no_probabilities_do_no_harm() {
        for success_rate in [-1.0, 2.0, f64::NAN, f64::INFINITY] {
            let options = FrozenLakeOptions { success_rate, ..FrozenLakeOptions::default() };
            let lake = Mdp::frozen_lake(&FrozenLakeMap::small(), options);
            assert!([0.0, 0.5, 1.0 - f64::EPSILON].map(|uniform| lake.place(uniform)).iter().all(|place| *place < 3));
        }
    }
}

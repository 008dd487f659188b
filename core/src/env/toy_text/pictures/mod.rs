//! What the states of the small worlds look like.

mod cliff_walking;
mod frozen_lake;
mod taxi;
mod things;

use super::FrozenLakeMap;
use crate::env::Frame;

/// A world that has a picture of each of its states.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum World {
    /// With the tiles of this map as states.
    FrozenLake(FrozenLakeMap),
    CliffWalking,
    Taxi,
}

impl World {
    /// Draws a state that the world has.
    pub(super) fn draw(&self, state: u16, frame: &mut Frame) {
        match self {
            Self::FrozenLake(map) => frozen_lake::draw(map, state, frame),
            Self::CliffWalking => cliff_walking::draw(state, frame),
            Self::Taxi => taxi::draw(state, frame),
        }
    }
}

//! Pictures of the toy text problems.

mod cliff_walking;
mod frozen_lake;
mod taxi;
mod things;

use super::FrozenLakeMap;
use crate::env::Frame;

/// A toy text problem with a picture of each of its states.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum World {
    /// Its states are the tiles of this map.
    FrozenLake(FrozenLakeMap),
    CliffWalking,
    Taxi,
}

impl World {
    /// Draws a state, which must exist.
    pub(super) fn draw(&self, state: u16, frame: &mut Frame) {
        match self {
            Self::FrozenLake(map) => frozen_lake::draw(map, state, frame),
            Self::CliffWalking => cliff_walking::draw(state, frame),
            Self::Taxi => taxi::draw(state, frame),
        }
    }
}

//! Moving things of Seaquest.

use crate::{
    env::{
        EnvError, SnapshotReader,
        pixel::{SIDE, grid::read_coordinate},
    },
    prelude::*,
};

/// The lowest row for swimmers: the one below shows the gauges.
pub(super) const BOTTOM: i8 = SIDE - 2;
/// Frames between two steps of enemies at the beginning, and of divers always.
pub(super) const MOVE_INTERVAL: u8 = 5;
/// Frames between two shots of an enemy.
pub(super) const ENEMY_SHOT_INTERVAL: u8 = 10;
/// Most swimmers of one kind. With the fastest spawning and the slowest swimming there are 60 enemies.
pub(super) const MAX_SWIMMERS: usize = 64;

/// A thing that moves along a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Swimmer {
    pub(super) x: i8,
    pub(super) y: i8,
    pub(super) to_right: bool,
    /// Frames until the next step.
    pub(super) wait: u8,
    /// Frames until the next shot may be fired.
    pub(super) reload: u8,
}

impl Swimmer {
    const fn ahead(&self) -> i8 {
        if self.to_right { self.x + 1 } else { self.x - 1 }
    }

    pub(super) const fn behind(&self) -> i8 {
        if self.to_right { self.x - 1 } else { self.x + 1 }
    }

    pub(super) const fn is_at(&self, other: &Self) -> bool {
        self.x == other.x && self.y == other.y
    }

    /// Takes a step when it is due; returns false when that leads off the grid.
    pub(super) fn swim(&mut self, interval: u8) -> bool {
        if self.wait > 0 {
            self.wait -= 1;
            return true;
        }
        self.wait = interval;
        self.x = self.ahead();
        (0..SIDE).contains(&self.x)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend([self.x as u8, self.y as u8, u8::from(self.to_right), self.wait, self.reload]);
    }

    pub(super) fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        Ok(Self {
            x: read_coordinate(snapshot)?,
            y: snapshot.below(BOTTOM as u8 + 1)? as i8,
            to_right: snapshot.bool()?,
            wait: snapshot.below(MOVE_INTERVAL + 1)?,
            reload: snapshot.below(ENEMY_SHOT_INTERVAL + 1)?,
        })
    }
}

/// Removes the first of `swimmers` at a position; returns whether there was one.
pub(super) fn take_at(swimmers: &mut Vec<Swimmer>, place: &Swimmer) -> bool {
    let found = swimmers.iter().position(|swimmer| swimmer.is_at(place));
    if let Some(i) = found {
        swimmers.remove(i);
    }
    found.is_some()
}

pub(super) fn push(swimmers: &mut Vec<Swimmer>, swimmer: Swimmer) {
    if swimmers.len() < MAX_SWIMMERS {
        swimmers.push(swimmer);
    }
}
